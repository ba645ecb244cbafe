"""Study `lenience`: how much more is accepted at each lenience, what that is worth, and what the text loses for it
(Leviathan et al. 2211.17192, A.5).
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.speedup import optimal_gamma

from ..comparisons import compare, interval, intervals, metrics_of, printed
from ..figures import pictures, style
from ..figures.style import Look
from ..findings import About, Findings, Section, Tables, counted, register

KEYS = ["form", "lenience"]
PLAIN, STRICT = 0.0, 1.0  # in the column lenience: text without drafts, and speculative sampling
METRICS = {  # name in MLflow -> column
    "alpha": "alpha",
    "alpha_mle": "mle",
    "tokens_per_round": "rate",
    "tokens_per_round.capped_geometric": "omega",
    "speedup": "speedup",
    "speedup.capped_geometric": "formula",
    "tv": "tv",
    "log_likelihood": "log_likelihood",
    "decided_otherwise": "otherwise",
    "over_strict": "lead",
}
_FORMS = {  # form -> its name and its look
    "sampled": ("sampled text", Look(style.BLUE, "o", "-")),
    "greedy": ("greedy text", Look(style.ORANGE, "D", "--")),
}


@register("lenience")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study."""
    outputs, settings = tables["outputs"], tables["settings"].iloc[0]
    gamma = int(settings["gamma"])
    cells, prompts = rules(outputs, tables["alphas"], gamma, about.replicates, about.seed)
    alphas = drafter_alphas(tables["alphas"], about.replicates, about.seed)
    counts = f"{counted(prompts, 'prompt')} of {about.prompts}, {counted(len(outputs), 'text')}"
    notes = (
        f"{counts}, decoded live at temperature {settings['temperature']:g}; intervals are 95% prompt-bootstrap "
        "intervals.",
        *about.caveats(tables["skipped"]),
    )
    sections = (
        _alphas(alphas, cells, notes, counts, about),
        _worth(cells, gamma, counts, about),
        _loss(cells, counts, about),
    )
    metrics = metrics_of(cells[cells["lenience"] != PLAIN], "lenience/{form}.{what}.{lenience:g}", METRICS)
    metrics |= metrics_of(alphas, "lenience/{what}.{drafter}.{form}.{lenience:g}", {"alpha": "alpha"})
    return Findings(sections, metrics)


# Numbers --------------------------------------------------------------------------------------------


def drafter_alphas(alphas: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
    """Return a line for each drafter, form and lenience: alpha with its interval, and `rise`, alpha less the strict."""
    keys = ["drafter", *KEYS]
    compared = compare(alphas, keys, ["chance", "positions"], replicates, seed)
    alpha = compared.ratio("chance", "positions")
    table = compared.table({"alpha": alpha, "rise": alpha - compared.beside(alpha, lenience=STRICT)})
    order = {name: place for place, name in enumerate(alphas["drafter"].unique())}  # the run's own drafter first
    return table.sort_values("drafter", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def rules(
    outputs: pd.DataFrame, alphas: pd.DataFrame, gamma: int, replicates: int, seed: int
) -> tuple[pd.DataFrame, int]:
    """Return a line for each form and lenience of the run's drafter, and the number of prompts.

    Columns, each with `_low` and `_high` of a prompt bootstrap: alpha (mean chance to pass along the text without
    drafts), mle (accepted over tested), rate (tokens per round) and omega (the formula's, at alpha), speedup over
    plain decoding and formula (Theorem 3.8 at alpha and c), c (a drafter step over a plain call), log_likelihood and tv
    (per token), otherwise (per round with a proposal), lead and rise (rate and alpha less those of the strict rule).
    Also best, the gamma that the formula prefers, and best_speedup. NaN where there is nothing to compare with.
    """
    own = alphas[alphas["own"]][[*KEYS, "stream", "chance", "positions"]]
    lines = outputs.merge(own, on=[*KEYS, "stream"], how="left")
    columns = ["tokens", "rounds", "seconds", "draft_s", "verify_s", "offered", "accepted", "rejected", "chance"]
    columns += ["positions", "offers", "log_likelihood", "tv", "otherwise"]
    compared = compare(lines, KEYS, columns, replicates, seed)
    ratio, beside = compared.ratio, compared.beside
    rate, per_token, alpha = ratio("tokens", "rounds"), ratio("seconds", "tokens"), ratio("chance", "positions")
    call = beside(ratio("verify_s", "rounds"), lenience=PLAIN)
    c = ratio("draft_s", "offered") / call
    known = np.isfinite(alpha)
    omega = np.where(known, tokens_per_round(np.where(known, alpha, 0.0).clip(0, 1), gamma), np.nan)
    mle = compared.values["accepted"] / np.maximum(compared.values["accepted"] + compared.values["rejected"], 1)
    table = compared.table(
        {
            "alpha": alpha,
            "mle": np.where(known, mle, np.nan),
            "rate": rate,
            "omega": omega,
            "speedup": beside(per_token, lenience=PLAIN) / per_token,
            "formula": omega / (1 + gamma * c),
            "c": c,
            "log_likelihood": ratio("log_likelihood", "tokens"),
            "tv": ratio("tv", "tokens"),
            "otherwise": ratio("otherwise", "offers"),
            "lead": rate - beside(rate, lenience=STRICT),
            "rise": alpha - beside(alpha, lenience=STRICT),
        }
    )
    best = [
        optimal_gamma(min(1.0, a), cost) if np.isfinite(a) else None
        for a, cost in zip(table["alpha"], table["c"], strict=True)
    ]
    table["best"] = [np.nan if each is None else each.gamma for each in best]
    table["best_speedup"] = [np.nan if each is None else each.speedup for each in best]
    return table.sort_values(KEYS, ascending=[False, False]).reset_index(drop=True), compared.prompts


# Words ----------------------------------------------------------------------------------------------


def _of_form(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the lines with drafts of each form, from strict to lenient."""
    swept = cells[cells["lenience"] != PLAIN].sort_values("lenience", ascending=False)
    return {form: swept[swept["form"] == form] for form in _FORMS if form in set(swept["form"])}


def _alphas(alphas: pd.DataFrame, cells: pd.DataFrame, notes: tuple[str, ...], counts: str, about: About) -> Section:
    text = []
    for form, lines in _of_form(cells).items():
        strict, last = lines.iloc[0], lines.iloc[-1]
        said = (
            f"{_FORMS[form][0].capitalize()}: alpha is {interval(strict, 'alpha'):.3f} at lenience 1 and "
            f"{interval(last, 'alpha'):.3f} at {last['lenience']:g}, {interval(last, 'rise'):+.3f}"
        )
        most = min(1.0, strict["alpha"] / last["lenience"])
        bound = f"; no more than {most:.3f} was possible for sampled text (alpha over l)."
        text.append(said + (bound if form == "sampled" else f". {_half(lines)}"))
    text.append(
        "Alpha is the mean chance that a token drawn from q passes along the target's own text: of sum min(p / l, q) "
        "where text is sampled, and where it is greedy the share of positions at which p of the drafter's likeliest "
        "token is at least l max p. No token gets more than p / l."
    )
    tables = []
    for form, paper in (("sampled", "Table 5"), ("greedy", "last paragraph of A.5")):
        mine = alphas[alphas["form"] == form]
        if len(mine):
            mine = mine.assign(lenience=mine["lenience"].map("l = {:g}".format), shown=printed(mine, "alpha", ".3f"))
            wide = mine.pivot(index="drafter", columns="lenience", values="shown")
            wide = wide.loc[mine["drafter"].unique(), mine["lenience"].unique()[::-1]]
            caption = f"Alpha by drafter and lenience, {_FORMS[form][0]} (the paper's {paper})"
            tables.append((caption, wide.rename_axis(columns=None).reset_index()))
    drawn = next(form for form in _FORMS if form in set(alphas["form"]))  # sampled text, as in the paper's table
    shown = alphas[alphas["form"] == drawn]
    by_drafter = enumerate(shown.groupby("drafter", sort=False))
    figure = _over_lenience(
        {str(name): (part, style.look(place)) for place, (name, part) in by_drafter},
        "alpha",
        ylabel="α",
        title=f"Alpha over lenience, {_FORMS[drawn][0]}\n{about.title}",
        caption=f"{counts}; bars: 95% prompt-bootstrap intervals. Right is more lenient.",
    )  # fmt: skip
    return Section("Alpha at each lenience", (*text, *notes), tuple(tables), (("alpha_over_lenience", figure),))


def _half(lines: pd.DataFrame) -> str:
    """Compare with the paper, where a lenience of 0.5 changes nothing for greedy text."""
    half = lines[lines["lenience"] == 0.5]
    if half.empty:
        return ""
    change = interval(half.iloc[0], "rise")
    told = "on one prompt"
    if change.known:
        told = "as in" if change.contains(0.0) else "unlike in"
        told += " the paper, where it changes nothing"
    return f"A lenience of 0.5 changes it by {change:+.3f}, {told}."


def _worth(cells: pd.DataFrame, gamma: int, counts: str, about: About) -> Section:
    text = []
    for form, lines in _of_form(cells).items():
        strict, last = lines.iloc[0], lines.iloc[-1]
        text.append(
            f"{_FORMS[form][0].capitalize()}, chains of {gamma}: {interval(strict, 'rate'):.2f} tokens per round at "
            f"lenience 1, {interval(last, 'rate'):.2f} at {last['lenience']:g} ({interval(last, 'lead'):+.2f}); "
            f"speedup {interval(strict, 'speedup'):.2f} and {interval(last, 'speedup'):.2f}. Theorem 3.8 gives "
            f"{interval(strict, 'formula'):.2f} and {interval(last, 'formula'):.2f} at these alphas and the measured c "
            f"of {last['c']:.3g}."
        )
    text.append(
        "The formula assumes that a call on the whole draft takes as long as a plain call, and that acceptance is "
        "independent; under lenience the text also drifts from the one along which alpha was read. The paper's printed "
        "speedups are the formula's, not measured."
    )
    forms = _of_form(cells)
    figure = _over_lenience(
        {_FORMS[form][0]: (lines, _FORMS[form][1]) for form, lines in forms.items()},
        "speedup",
        formula="formula",
        ylabel="speedup over plain decoding",
        title=f"Speedup over lenience, chains of {gamma}\n{about.title}",
        caption=f"{counts}; bars: 95% prompt-bootstrap intervals. Dotted: Theorem 3.8. Right is more lenient.",
    )
    lines = pd.concat(forms.values(), ignore_index=True)
    table = pd.DataFrame(
        {
            "text": [_FORMS[form][0] for form in lines["form"]],
            "l": lines["lenience"].map("{:g}".format),
            "alpha": printed(lines, "alpha", ".3f"),
            "MLE": printed(lines, "mle", ".3f"),
            "tokens per round": printed(lines, "rate", ".2f"),
            "by formula": printed(lines, "omega", ".2f"),
            "speedup": printed(lines, "speedup", ".2f"),
            "speedup by formula": printed(lines, "formula", ".2f"),
            "best gamma": lines["best"].map("{:.0f}".format),
            "its speedup": lines["best_speedup"].map("{:.2f}".format),
        }
    )
    caption = "Each rule with 95% prompt-bootstrap intervals; MLE: accepted over tested draft tokens"
    return Section("What lenience is worth", tuple(text), ((caption, table),), (("speedup_over_lenience", figure),))


def _loss(cells: pd.DataFrame, counts: str, about: About) -> Section:
    text = []
    for form, lines in _of_form(cells).items():
        last, plain = lines.iloc[-1], cells[(cells["form"] == form) & (cells["lenience"] == PLAIN)].iloc[0]
        text.append(
            f"{_FORMS[form][0].capitalize()}: at lenience {last['lenience']:g} the law of a token is "
            f"{interval(last, 'tv'):.3f} from the target's in total variation, and a token has a log-likelihood of "
            f"{interval(last, 'log_likelihood'):.3f} nats; without drafts {interval(plain, 'tv'):.3f} and "
            f"{interval(plain, 'log_likelihood'):.3f}."
        )
    text.append(
        "Greedy text always takes one token, so its law is far from the target's even without drafts. Lenience bounds "
        "how likely a token may become, not how unlikely: the text goes from what the target would write towards what "
        "the drafter would, and its likelihood may fall or rise."
    )
    shown = _of_form(cells)
    table = pd.concat([cells[(cells["form"] == form)] for form in shown], ignore_index=True)
    listed = pd.DataFrame(
        {
            "text": [_FORMS[form][0] for form in table["form"]],
            "l": ["no drafts" if each == PLAIN else f"{each:g}" for each in table["lenience"]],
            "total variation": printed(table, "tv", ".3f"),
            "nats per token": printed(table, "log_likelihood", ".3f"),
            "decided otherwise": printed(table, "otherwise", ".3f"),
            "tokens per round": printed(table, "rate", ".2f"),
        }
    )
    figure = _over_lenience(
        {_FORMS[form][0]: (lines, _FORMS[form][1]) for form, lines in shown.items()},
        "tv",
        ylabel="total variation of a token's law",
        title=f"What lenience costs the text\n{about.title}",
        caption=f"{counts}; bars: 95% prompt-bootstrap intervals; from the target's law at the same temperature. Right "
        "is more lenient.",
    )
    caption = "Each rule with 95% prompt-bootstrap intervals"
    return Section("What the text loses", tuple(text), ((caption, listed),), (("loss_over_lenience", figure),))


# Pictures -------------------------------------------------------------------------------------------


@style.in_style
def _over_lenience(
    groups: dict[str, tuple[pd.DataFrame, Look]],
    column: str,
    *,
    ylabel: str,
    title: str,
    caption: str,
    formula: str = "",
) -> Figure:
    """Draw a column over lenience, strict on the left, a line for each group; and dotted, column `formula`."""
    figure, axes = style.new_figure(title, caption)
    for name, (lines, look) in groups.items():
        across = lines["lenience"].tolist()
        pictures.line(axes, across, intervals(lines, column), look, f"{name}, measured" if formula else name)
        if formula:
            axes.plot(across, lines[formula], color=look.colour, linestyle=":", linewidth=1.6, label=f"{name}, formula")
    if formula:
        pictures.level(axes, 1.0, "no drafts")
    leniences = sorted({each for lines, _ in groups.values() for each in lines["lenience"]}, reverse=True)
    pictures.log_axis(axes, leniences, "lenience l (1 is speculative sampling)", base=10)
    axes.invert_xaxis()
    axes.set(ylabel=ylabel)
    axes.set_ylim(bottom=0)
    style.legend_above(axes, 2 if formula else 3)
    return figure
