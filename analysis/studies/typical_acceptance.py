"""Study `typical_acceptance`: which rule yields most tokens per call as the temperature rises, and what the text of
typical acceptance loses for it.
"""

import pandas as pd

from ..comparisons import OF_RULES, RANGES_OF_RULES, compare, interval, intervals, listed, metrics_of
from ..figures import pictures, style
from ..intervals import ANY
from ..sections import About, Findings, Section, Tables, counted, register

KEYS = ["temperature", "rule", "epsilon"]
# Name in MLflow -> column.
METRICS = {"tokens_per_call": "rate", "speedup": "speedup", "log_likelihood": "log_likelihood", "tv": "tv",
           "decided_otherwise": "otherwise", "over_rejection": "lead"}  # fmt: skip
_RULES = {  # rule -> its name and its look
    "plain": ("without drafts", style.Look(style.GREY, "x", "-")),
    "greedy": ("greedy text", style.Look(style.BLACK, "s", style.DOTTED)),
    "rejection": ("lossless rejection", style.Look(style.BLUE, "o", "-")),
    "typical": ("typical acceptance", style.Look(style.ORANGE, "^", "--")),
}
_COLUMNS = {"temperature": "temperature", "rule": "name", "epsilon": "shown_epsilon", "tokens per call": "rate:.2f",
            "over rejection": "lead:+.2f", "speedup": "speedup:.2f", "nats per token": "log_likelihood:.3f",
            "tv": "tv:.3f", "decided otherwise": "otherwise:.3f"}  # fmt: skip


@register("typical_acceptance")
def findings(tables: Tables, about: About) -> Findings:
    outputs, settings = tables["outputs"], tables["settings"].iloc[0]
    temperature = settings["epsilon_temperature"]
    cells, prompts = rules(outputs, about.replicates, about.seed)
    cells["name"] = [_RULES[rule][0] for rule in cells["rule"]]
    cells["shown_epsilon"] = [f"{epsilon:g}" if epsilon else "–" for epsilon in cells["epsilon"]]
    usual = cells[cells["epsilon"].isin([0.0, settings["epsilon"]])]
    sweep = cells[(cells["temperature"] == temperature) & (cells["rule"] == "typical")]
    counts = f"{counted(prompts, 'prompt')} of {about.prompts}"
    notes = (
        f"{counts}, {counted(len(outputs), 'text')}, decoded live; intervals are 95% prompt-bootstrap intervals.",
        *about.caveats(tables["skipped"]),
    )
    bars = f"{counts}; bars: 95% prompt-bootstrap intervals."
    sections = (_rates(usual, settings["epsilon"], notes, bars, about), _quality(cells, temperature, bars, about))
    metrics = metrics_of(usual, "typical_acceptance/{rule}.{what}.{temperature:g}", METRICS)
    metrics |= metrics_of(sweep, "typical_acceptance/epsilon.{what}.{epsilon:g}", METRICS)
    return Findings(sections, metrics)


def _rates(cells: pd.DataFrame, epsilon: float, notes: tuple[str, ...], bars: str, about: About) -> Section:
    """Compare the rules, typical acceptance at its usual epsilon, as the temperature rises."""
    of = {str(rule): part for rule, part in cells.groupby("rule")}
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
    drawn = {}
    for rule in ("greedy", "rejection", "typical"):
        name, look = _RULES[rule]
        lines = cells[cells["rule"].isin(["greedy", rule])]  # at 0 greedy is all rules
        drawn[name] = pictures.over(lines, "temperature", "rate", look)
    figure = pictures.chart(
        pictures.Panel("tokens per call", drawn, (float(greedy["rate"]), "")),
        title=f"Tokens per call as the temperature rises, epsilon {epsilon:g}\n{about.title}",
        caption=f"{bars} At temperature 0 all rules are exact match.",
        xlabel="sampling temperature",
    )
    caption = "Each rule at each temperature, with 95% prompt-bootstrap intervals"
    title = "Tokens per call as the temperature rises"
    tables = ((caption, listed(cells, _COLUMNS)),)
    return Section(title, (*text, *notes), tables, (("rate_over_temperature", figure),))


def _quality(cells: pd.DataFrame, temperature: float, bars: str, about: About) -> Section:
    """Set tokens per call against what the text loses, at the temperature of the sweep over epsilon."""
    here = cells[cells["temperature"] == temperature]
    groups = {rule: (cells if rule == "greedy" else here).query("rule == @rule") for rule in _RULES}
    sweep, plain, greedy = groups["typical"], groups["plain"].iloc[0], groups["greedy"].iloc[0]
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
    drawn = {
        _RULES[rule][0]: (intervals(part, "rate"), intervals(part, "log_likelihood"), _RULES[rule][1])
        for rule, part in groups.items()
    }
    figure = pictures.chart(
        pictures.Panel("log-likelihood of a token, nats", drawn),
        title=f"Tokens per call against likelihood at temperature {temperature:g}\n{about.title}",
        caption=f"{bars} Numbers beside points: epsilon; greedy text has temperature 0.",
        xlabel="tokens per call",
        columns=2,
    )
    for place, same in sweep.groupby(["rate", "log_likelihood"]):  # several thresholds may accept the same tokens
        label = ", ".join(f"{epsilon:g}" for epsilon in same["epsilon"])
        figure.axes[0].annotate(label, place, (5, 5), textcoords="offset points", fontsize=10)
    caption = f"Typical acceptance at temperature {temperature:g} over epsilon, and the other rules"
    tables = ((caption, listed(here, _COLUMNS)),)
    return Section("What the text loses", text, tables, (("rate_against_quality", figure),))


def rules(outputs: pd.DataFrame, replicates: int, seed: int) -> tuple[pd.DataFrame, int]:
    """Return a line for each temperature, rule and epsilon, and the number of prompts.

    Columns, each with `_low` and `_high` of a prompt bootstrap: those of `StrategyComparison.of_rules`, beside plain
    decoding and rejection at the same temperature, and rise (rate less the same rule's at the lowest temperature above
    0). NaN where there is nothing to compare with, and for quality that is not known of all of a rule's texts.
    """
    compared = compare(outputs, KEYS, OF_RULES, replicates, seed)
    warm = compared.cells["temperature"][compared.cells["temperature"] > 0].min()
    statistics = compared.of_rules({"rule": "plain", "epsilon": 0.0}, {"rule": "rejection", "epsilon": 0.0})
    rise = statistics["rate"] - compared.beside(statistics["rate"], temperature=warm)
    return compared.table({**statistics, "rise": rise}, {**RANGES_OF_RULES, "rise": ANY}), compared.prompts
