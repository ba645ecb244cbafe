"""Study `typical_acceptance`: which rule yields most tokens per call as the temperature rises, and what the text of
typical acceptance loses for it.
"""

import numpy as np
import pandas as pd

from ..comparisons import compare, interval, intervals, metrics_of, printed
from ..figures import pictures, style
from ..figures.style import Look
from ..findings import About, Findings, Section, Tables, counted, register

KEYS = ["temperature", "rule", "epsilon"]
METRICS = {  # name in MLflow -> column
    "tokens_per_call": "rate",
    "speedup": "speedup",
    "log_likelihood": "log_likelihood",
    "tv": "tv",
    "decided_otherwise": "otherwise",
    "over_rejection": "lead",
}
_RULES = {  # rule -> its name and its look
    "plain": ("without drafts", Look(style.GREY, "x", "-")),
    "greedy": ("greedy text", Look(style.BLACK, "s", style.DOTTED)),
    "rejection": ("lossless rejection", Look(style.BLUE, "o", "-")),
    "typical": ("typical acceptance", Look(style.ORANGE, "^", "--")),
}


@register("typical_acceptance")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study."""
    outputs, settings = tables["outputs"], tables["settings"].iloc[0]
    cells, prompts = rules(outputs, about.replicates, about.seed)
    usual = cells[cells["epsilon"].isin([0.0, settings["epsilon"]])]
    counts = f"{counted(prompts, 'prompt')} of {about.prompts}, {counted(len(outputs), 'text')}"
    notes = (
        f"{counts}, decoded live; intervals are 95% prompt-bootstrap intervals.",
        *about.caveats(tables["skipped"]),
    )
    sections = (_rates(usual, settings, notes, counts, about), _quality(cells, settings, counts, about))
    swept = cells[(cells["rule"] == "typical") & (cells["temperature"] == settings["epsilon_temperature"])]
    metrics = metrics_of(usual, "typical_acceptance/{rule}.{what}.{temperature:g}", METRICS)
    metrics |= metrics_of(swept, "typical_acceptance/epsilon.{what}.{epsilon:g}", METRICS)
    return Findings(sections, metrics)


# Numbers --------------------------------------------------------------------------------------------


def rules(outputs: pd.DataFrame, replicates: int, seed: int) -> tuple[pd.DataFrame, int]:
    """Return a line for each temperature, rule and epsilon, and the number of prompts.

    Columns, each with `_low` and `_high` of a prompt bootstrap: rate (tokens per call), log_likelihood and tv (per
    token), otherwise (per round with a proposal), speedup (over plain decoding at the same temperature), lead (rate
    less that of rejection at the same temperature) and rise (rate less the same rule's at the lowest temperature above
    0). NaN where there is nothing to compare with, and for quality that is not known of all of a rule's texts.
    """
    outputs = outputs.copy()
    for column in ("tv", "otherwise"):
        missing = outputs[column].isna().groupby([outputs[key] for key in KEYS]).transform("any")
        outputs.loc[missing, column] = np.nan
    columns = ["tokens", "rounds", "seconds", "offers", "log_likelihood", "tv", "otherwise"]
    compared = compare(outputs, KEYS, columns, replicates, seed)
    ratio, beside = compared.ratio, compared.beside
    rate, per_token = ratio("tokens", "rounds"), ratio("seconds", "tokens")
    temperatures = compared.cells["temperature"]
    statistics = {
        "rate": rate,
        "log_likelihood": ratio("log_likelihood", "tokens"),
        "tv": ratio("tv", "tokens"),
        "otherwise": ratio("otherwise", "offers"),
        "speedup": beside(per_token, rule="plain", epsilon=0.0) / per_token,
        "lead": rate - beside(rate, rule="rejection", epsilon=0.0),
        "rise": rate - beside(rate, temperature=temperatures[temperatures > 0].min()),
    }
    return compared.table(statistics), compared.prompts


# Words ----------------------------------------------------------------------------------------------


def _rates(cells: pd.DataFrame, settings: pd.Series, notes: tuple[str, ...], counts: str, about: About) -> Section:
    of = {str(rule): part.sort_values("temperature") for rule, part in cells.groupby("rule")}
    coolest, warmest = of["typical"].iloc[0], of["typical"].iloc[-1]
    strict, greedy = of["rejection"].iloc[-1], of["greedy"].iloc[0]
    text = [
        f"At temperature {warmest['temperature']:g} typical acceptance yields {interval(warmest, 'rate'):.2f} tokens "
        f"per call, lossless rejection {interval(strict, 'rate'):.2f}: {interval(warmest, 'lead'):+.2f}. Greedy text, "
        f"at temperature 0, has {interval(greedy, 'rate'):.2f}."
    ]
    if coolest["temperature"] < warmest["temperature"]:
        # Medusa's paper says that rejection loses efficiency as the temperature rises (2.3.1).
        verdict = {
            -1: "rejection loses as the temperature rises, as the paper says.",
            0: "whether rejection loses as the temperature rises, as the paper says, cannot be told from these "
            "prompts.",
            1: "rejection gains as the temperature rises, against what the paper says.",
        }
        text.append(
            f"From temperature {coolest['temperature']:g} to {warmest['temperature']:g} rejection changes by "
            f"{interval(strict, 'rise'):+.2f} and typical acceptance by {interval(warmest, 'rise'):+.2f} tokens per "
            f"call: {verdict[interval(strict, 'rise').side]}"
        )
    text.append(
        "At temperature 0 the three rules are exact match, one and the same; the speedup of a rule is over decoding "
        "without drafts at its own temperature."
    )
    with style.styled():
        figure, axes = style.new_figure(
            f"Tokens per call as the temperature rises, epsilon {settings['epsilon']:g}\n{about.title}",
            f"{counts}; bars: 95% prompt-bootstrap intervals. At temperature 0 all rules are exact match.",
        )
        pictures.level(axes, float(greedy["rate"]))
        for rule in ("greedy", "rejection", "typical"):
            name, look = _RULES[rule]
            part = cells[cells["rule"].isin(["greedy", rule])].sort_values("temperature")  # at 0 greedy is all rules
            pictures.line(axes, part["temperature"].tolist(), intervals(part, "rate"), look, name)
        axes.set(xlabel="sampling temperature", ylabel="tokens per call")
        axes.set_xlim(left=-0.03)
        style.legend_above(axes, 3)
    return Section(
        "Tokens per call as the temperature rises",
        (*text, *notes),
        tables=(("Each rule at each temperature, with 95% prompt-bootstrap intervals", _table(cells)),),
        figures=(("rate_over_temperature", figure),),
    )


def _quality(cells: pd.DataFrame, settings: pd.Series, counts: str, about: About) -> Section:
    temperature = settings["epsilon_temperature"]
    here = cells[cells["temperature"] == temperature]
    sweep = here[here["rule"] == "typical"].sort_values("epsilon")
    plain, greedy = here[here["rule"] == "plain"].iloc[0], cells[cells["rule"] == "greedy"].iloc[0]
    first, last = sweep.iloc[0], sweep.iloc[-1]
    low, high, lossless, cold = (interval(each, "log_likelihood") for each in (first, last, plain, greedy))
    text = (
        f"At temperature {temperature:g} a token of typical acceptance has a log-likelihood of {low:.3f} nats "
        f"under the target at epsilon {first['epsilon']:g} with {interval(first, 'rate'):.2f} tokens per call, and "
        f"{high:.3f} at {last['epsilon']:g} with {interval(last, 'rate'):.2f}. Text sampled without loss has "
        f"{lossless:.3f}, greedy text {cold:.3f}.",
        "Likelihood is under the target at temperature 1, so text of a lower temperature has more of it: more is not "
        "better than the text without loss, only more like greedy text. tv is the distance between the law that a rule "
        "emits at a position, given its draft, and the target's at that temperature; a rule that always takes one "
        "token is far from it even where that token is the likeliest.",
    )
    with style.styled():
        figure, axes = style.new_figure(
            f"Tokens per call against likelihood at temperature {temperature:g}\n{about.title}",
            f"{counts}; bars: 95% prompt-bootstrap intervals. Numbers beside points: epsilon; greedy text has "
            "temperature 0.",
        )
        for rule, (name, look) in _RULES.items():
            part = sweep if rule == "typical" else (cells if rule == "greedy" else here)
            part = part[part["rule"] == rule]
            pictures.line(axes, intervals(part, "rate"), intervals(part, "log_likelihood"), look, name)
        for point in sweep.to_dict("records"):
            axes.annotate(f"{point['epsilon']:g}", (point["rate"], point["log_likelihood"]), xytext=(5, 5),
                          textcoords="offset points", fontsize=10)  # fmt: skip
        axes.set(xlabel="tokens per call", ylabel="log-likelihood of a token, nats")
        style.legend_above(axes, 2)
    caption = f"Typical acceptance at temperature {temperature:g} over epsilon, and the other rules"
    return Section("What the text loses", text, ((caption, _table(here)),), (("rate_against_quality", figure),))


def _table(cells: pd.DataFrame) -> pd.DataFrame:
    ordered = cells.sort_values(["temperature", "rule", "epsilon"])
    leads = zip(ordered["rule"], printed(ordered, "lead", "+.2f"), strict=True)
    return pd.DataFrame(
        {
            "temperature": ordered["temperature"].map("{:g}".format),
            "rule": [_RULES[rule][0] for rule in ordered["rule"]],
            "epsilon": [f"{epsilon:g}" if epsilon else "–" for epsilon in ordered["epsilon"]],
            "tokens per call": printed(ordered, "rate", ".2f"),
            "over rejection": [lead if rule == "typical" else "–" for rule, lead in leads],
            "speedup": printed(ordered, "speedup", ".2f"),
            "nats per token": printed(ordered, "log_likelihood", ".3f"),
            "tv": printed(ordered, "tv", ".3f"),
            "decided otherwise": printed(ordered, "otherwise", ".3f"),
        }
    )
