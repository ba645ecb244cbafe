"""Study `lenience`: how much more is accepted at each lenience, what that is worth, and what the text loses for it
(Leviathan et al. 2211.17192, A.5).
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.theory.capped_geometric import optimal_gamma, tokens_per_round

from ..comparisons import OF_RULES, RANGES_OF_RULES, compare, interval, listed, metrics_of, printed
from ..figures import pictures, style
from ..intervals import SHARE, Range, per_round
from ..sections import About, Findings, Section, Tables, counted, register

KEYS = ["form", "lenience"]
PLAIN, STRICT = 0.0, 1.0  # in the column lenience: text without drafts, and speculative sampling
# Name in MLflow -> column.
METRICS = {"alpha": "alpha", "alpha_mle": "mle", "tokens_per_round": "rate",
           "tokens_per_round.capped_geometric": "omega", "speedup": "speedup", "speedup.capped_geometric": "formula",
           "tv": "tv", "log_likelihood": "log_likelihood", "decided_otherwise": "otherwise",
           "over_strict": "lead"}  # fmt: skip
_FORMS = {  # form -> its name, its look, and where the paper has its alphas
    "sampled": ("sampled text", style.Look(style.BLUE, "o", "-"), "Table 5"),
    "greedy": ("greedy text", style.Look(style.ORANGE, "D", "--"), "last paragraph of A.5"),
}
_WORTH = {"text": "text", "l": "l", "alpha": "alpha:.3f", "MLE": "mle:.3f", "tokens per round": "rate:.2f",
          "capped geometric": "omega:.2f", "speedup": "speedup:.2f", "speedup, capped geometric": "formula:.2f",
          "best gamma": "best:.0f", "its speedup": "best_speedup:.2f"}  # fmt: skip
_LOSS = {"text": "text", "l": "l", "total variation": "tv:.3f", "nats per token": "log_likelihood:.3f",
         "decided otherwise": "otherwise:.3f", "tokens per round": "rate:.2f"}  # fmt: skip
_INTERVALS = "with 95% prompt-bootstrap intervals"


@register("lenience")
def findings(tables: Tables, about: About) -> Findings:
    outputs, settings = tables["outputs"], tables["settings"].iloc[0]
    gamma = int(settings["gamma"])
    cells, prompts = rules(outputs, tables["alphas"], gamma, about.replicates, about.seed)
    cells["text"] = [_FORMS[form][0] for form in cells["form"]]
    cells["l"] = ["no drafts" if each == PLAIN else f"{each:g}" for each in cells["lenience"]]
    swept = cells[cells["lenience"] != PLAIN]
    alphas = drafter_alphas(tables["alphas"], about.replicates, about.seed)
    counts = f"{counted(prompts, 'prompt')} of {about.prompts}, {counted(len(outputs), 'text')}"
    rises, worth, loss, by_drafter = [], [], [], []
    for form, lines in swept.groupby("form", sort=False):
        name, _, paper = _FORMS[str(form)]
        strict, last, said = lines.iloc[0], lines.iloc[-1], name.capitalize()
        plain = cells[(cells["form"] == form) & (cells["lenience"] == PLAIN)].iloc[0]
        end = f" no more than {min(1.0, strict['alpha'] / last['lenience']):.3f} was possible (alpha over l)."
        rises.append(
            f"{said}: alpha is {interval(strict, 'alpha'):.3f} at lenience 1 and {interval(last, 'alpha'):.3f} at "
            f"{last['lenience']:g}, {interval(last, 'rise'):+.3f};{end if form == 'sampled' else _half(lines)}"
        )
        worth.append(
            f"{said}, chains of {gamma}: {interval(strict, 'rate'):.2f} tokens per round at lenience 1, "
            f"{interval(last, 'rate'):.2f} at {last['lenience']:g} ({interval(last, 'lead'):+.2f}); speedup "
            f"{interval(strict, 'speedup'):.2f} and {interval(last, 'speedup'):.2f}. The capped geometric gives "
            f"{interval(strict, 'formula'):.2f} and {interval(last, 'formula'):.2f} at these alphas and the measured c "
            f"of {last['c']:.3g}."
        )
        loss.append(
            f"{said}: at lenience {last['lenience']:g} the law of a token is {interval(last, 'tv'):.3f} from the "
            f"target's in total variation, and a token has a log-likelihood of {interval(last, 'log_likelihood'):.3f} "
            f"nats; without drafts {interval(plain, 'tv'):.3f} and {interval(plain, 'log_likelihood'):.3f}."
        )
        mine = alphas[alphas["form"] == form]
        shown = mine.assign(lenience=mine["lenience"].map("l = {:g}".format), shown=printed(mine, "alpha", ".3f"))
        wide = shown.pivot(index="drafter", columns="lenience", values="shown")
        wide = wide.loc[shown["drafter"].unique(), shown["lenience"].unique()[::-1]]
        caption = f"Alpha by drafter and lenience, {name} (the paper's {paper})"
        by_drafter.append((caption, wide.rename_axis(columns=None).reset_index()))
    pictured = _figures(swept, alphas, gamma, counts, about)
    rises += [
        "Alpha is the mean chance that a token drawn from q passes along the target's own text: of sum min(p / l, q) "
        "where text is sampled, and where it is greedy the share of positions at which p of the drafter's likeliest "
        "token is at least l max p. No token gets more than p / l.",
        f"{counts}, decoded live at temperature {settings['temperature']:g}; intervals are 95% prompt-bootstrap "
        "intervals.",
        *about.caveats(tables["skipped"]),
    ]
    worth.append(
        "The capped geometric (Theorem 3.8) assumes that a call on the whole draft takes as long as a plain call, and "
        "that acceptance is independent; under lenience the text also drifts from the one along which alpha was read. "
        "The paper's printed speedups are its own, not measured."
    )
    loss.append(
        "Greedy text always takes one token, so its law is far from the target's even without drafts. Lenience bounds "
        "how likely a token may become, not how unlikely: the text goes from what the target would write towards what "
        "the drafter would, and its likelihood may fall or rise."
    )
    of_worth = (f"Each rule {_INTERVALS}; MLE: accepted over tested draft tokens", listed(swept, _WORTH))
    of_loss = (f"Each rule {_INTERVALS}", listed(cells, _LOSS))
    sections = (
        Section("Alpha at each lenience", tuple(rises), tuple(by_drafter), pictured["alpha"]),
        Section("What lenience is worth", tuple(worth), (of_worth,), pictured["speedup"]),
        Section("What the text loses", tuple(loss), (of_loss,), pictured["loss"]),
    )
    metrics = metrics_of(swept, "lenience/{form}.{what}.{lenience:g}", METRICS)
    metrics |= metrics_of(alphas, "lenience/{what}.{drafter}.{form}.{lenience:g}", {"alpha": "alpha"})
    return Findings(sections, metrics)


def _figures(
    swept: pd.DataFrame, alphas: pd.DataFrame, gamma: int, counts: str, about: About
) -> dict[str, tuple[tuple[str, Figure]]]:
    """Draw alpha, speedup and loss over lenience, strict on the left."""
    speedups, losses, first = {}, {}, alphas[alphas["form"] == swept["form"].iloc[0]]
    for form, lines in swept.groupby("form", sort=False):
        name, look, _ = _FORMS[str(form)]
        formula, dotted = lines[["lenience", "formula"]], look._replace(marker="", dash=":")
        speedups[name] = pictures.over(lines, "lenience", "speedup", look)
        speedups[f"{name}, capped geometric"] = pictures.over(formula, "lenience", "formula", dotted)
        losses[name] = pictures.over(lines, "lenience", "tv", look)
    by_drafter = {  # of sampled text, as in the paper's table
        str(name): pictures.over(part, "lenience", "alpha", style.look(place))
        for place, (name, part) in enumerate(first.groupby("drafter", sort=False))
    }
    figures = {
        "alpha": (f"Alpha over lenience, {swept['text'].iloc[0]}", "α", by_drafter),
        "speedup": (f"Speedup over lenience, chains of {gamma}, and by Theorem 3.8", "speedup over plain decoding",
                    speedups),
        "loss": ("What lenience costs the text, beside the target's law", "total variation of a token's law", losses),
    }  # fmt: skip
    pictured = {}
    for name, (title, ylabel, drawn) in figures.items():
        figure = pictures.chart(
            pictures.Panel(ylabel, drawn, (1.0, "no drafts") if name == "speedup" else None, zero=True),
            title=f"{title}\n{about.title}",
            caption=f"{counts}; bars: 95% prompt-bootstrap intervals. Right is more lenient.",
            xlabel="lenience l (1 is speculative sampling)",
            ticks=sorted(set(swept["lenience"]), reverse=True),
            base=10,
            columns=2 if name == "speedup" else 3,
        )
        figure.axes[0].invert_xaxis()
        pictured[name] = ((f"{name}_over_lenience", figure),)
    return pictured


def _half(lines: pd.DataFrame) -> str:
    """Compare with the paper, where a lenience of 0.5 changes nothing for greedy text."""
    half = lines[lines["lenience"] == 0.5]
    if half.empty:
        return ""
    change = interval(half.iloc[0], "rise")
    verdict = "on too few prompts to say more"
    if change.known:
        verdict = f"{'as' if change.contains(0.0) else 'unlike'} in the paper, where it changes nothing"
    return f" a lenience of 0.5 changes it by {change:+.3f}, {verdict}."


def drafter_alphas(alphas: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
    """Return a line for each drafter, form and lenience: alpha with its interval, and `rise`, alpha less the strict."""
    keys = ["drafter", *KEYS]
    compared = compare(alphas, keys, ["chance", "positions"], replicates, seed)
    alpha = compared.ratio("chance", "positions")
    rise = alpha - compared.beside(alpha, lenience=STRICT)
    table = compared.table({"alpha": alpha, "rise": rise}, {"alpha": SHARE, "rise": Range(-1.0, 1.0)})
    order = {name: place for place, name in enumerate(alphas["drafter"].unique())}  # the run's own drafter first
    return table.sort_values("drafter", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def rules(
    outputs: pd.DataFrame, alphas: pd.DataFrame, gamma: int, replicates: int, seed: int
) -> tuple[pd.DataFrame, int]:
    """Return a line for each form and lenience of the run's drafter, strict rules first, and the number of prompts.

    Columns, each with `_low` and `_high` of a prompt bootstrap: those of `StrategyComparison.of_rules`, alpha (mean
    chance to pass along the text without drafts), mle (accepted over tested), omega and formula (tokens per round and
    speedup of the capped geometric at alpha and c, Theorem 3.8), c (a drafter step over a plain call) and rise (alpha
    less that of the strict rule). Also best, the gamma that it prefers, and best_speedup. NaN where there is nothing to
    compare with.
    """
    own = alphas[alphas["own"]][[*KEYS, "stream", "chance", "positions"]]
    lines = outputs.merge(own, on=[*KEYS, "stream"], how="left")
    columns = [*OF_RULES, "draft_s", "verify_s", "offered", "accepted", "rejected", "chance", "positions"]
    compared = compare(lines, KEYS, columns, replicates, seed)
    alpha = compared.ratio("chance", "positions")
    call = compared.beside(compared.ratio("verify_s", "rounds"), lenience=PLAIN)
    c = compared.ratio("draft_s", "offered") / call
    known = np.isfinite(alpha)
    omega = np.where(known, tokens_per_round(np.where(known, alpha, 0.0).clip(0, 1), gamma), np.nan)
    mle = compared.values["accepted"] / np.maximum(compared.values["accepted"] + compared.values["rejected"], 1)
    statistics = compared.of_rules(plain={"lenience": PLAIN}, strict={"lenience": STRICT})
    statistics |= {"alpha": alpha, "mle": np.where(known, mle, np.nan), "omega": omega}
    statistics |= {"formula": omega / (1 + gamma * c), "c": c, "rise": alpha - compared.beside(alpha, lenience=STRICT)}
    ranges = RANGES_OF_RULES | dict.fromkeys(("rate", "omega"), per_round(gamma))
    ranges |= {"alpha": SHARE, "mle": SHARE, "rise": Range(-1.0, 1.0)}
    table = compared.table(statistics, ranges).assign(best=np.nan, best_speedup=np.nan)
    for place in np.flatnonzero(known[0]):
        best = optimal_gamma(min(1.0, table["alpha"][place]), table["c"][place])
        table.loc[place, ["best", "best_speedup"]] = best.gamma, best.speedup
    return table.sort_values(KEYS, ascending=[False, False]).reset_index(drop=True), compared.prompts
