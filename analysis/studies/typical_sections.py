"""What study `typical_acceptance` says: which rule yields most tokens per call as the temperature rises, and what the
text of typical acceptance loses for it.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..figures.plots import counted
from ..findings import About, Findings
from ..sections import Section
from .replayed import bracket, caveats
from .typical import rules
from .typical_plots import NAMES, over_temperature, rate_against_quality


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From all tables of the study."""
    outputs, settings = tables["outputs"], tables["settings"].iloc[0]
    cells, prompts = rules(outputs, about.replicates, about.seed)
    usual = cells[cells["epsilon"].isin([0.0, settings["epsilon"]])]
    counts = f"{counted(prompts, 'prompt')} of {about.prompts}, {counted(len(outputs), 'text')}"
    notes = (
        f"{counts}, decoded live; intervals are 95% prompt-bootstrap intervals.",
        *caveats(tables["skipped"], about.title, about.prompts),
    )
    sections = (
        _rates(usual, settings, notes, counts, about),
        _quality(cells, settings, counts, about),
    )
    return Findings(sections, _metrics(cells, settings))


def _metrics(cells: pd.DataFrame, settings: pd.Series) -> dict[str, float]:
    """`typical_acceptance.<rule>.<what>.<temperature>`; of the sweep `typical_acceptance.epsilon.<what>.<epsilon>`."""
    metrics: dict[str, float] = {}
    for row in cells.to_dict("records"):
        names = []
        if row["epsilon"] in (0.0, settings["epsilon"]):
            names.append((row["rule"], f"{row['temperature']:g}"))
        if row["rule"] == "typical" and row["temperature"] == settings["epsilon_temperature"]:
            names.append(("epsilon", f"{row['epsilon']:g}"))
        for group, point in names:
            for what, column in (
                ("tokens_per_call", "rate"),
                ("speedup", "speedup"),
                ("log_likelihood", "log_likelihood"),
                ("tv", "tv"),
                ("decided_otherwise", "otherwise"),
                ("over_rejection", "lead"),
            ):
                for end, suffix in (("", ""), (".ci_low", "_low"), (".ci_high", "_high")):
                    metrics[f"typical_acceptance.{group}.{what}.{point}{end}"] = float(row[column + suffix])
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


# Sections -------------------------------------------------------------------------------------------


def _rates(cells: pd.DataFrame, settings: pd.Series, notes: tuple[str, ...], counts: str, about: About) -> Section:
    of = {str(rule): part.sort_values("temperature") for rule, part in cells.groupby("rule")}
    coolest, warmest = of["typical"].iloc[0], of["typical"].iloc[-1]
    strict = of["rejection"].iloc[-1]
    answer = (
        f"At temperature {warmest['temperature']:g} typical acceptance yields {_value(warmest, 'rate')} tokens per "
        f"call, lossless rejection {_value(strict, 'rate')}: {_signed(warmest, 'lead')}. Greedy text, of temperature "
        f"0, has {_value(of['greedy'].iloc[0], 'rate')}."
    )
    text = [answer]
    if coolest["temperature"] < warmest["temperature"]:
        text.append(
            f"From temperature {coolest['temperature']:g} to {warmest['temperature']:g} rejection changes by "
            f"{_signed(strict, 'rise')} and typical acceptance by {_signed(warmest, 'rise')} tokens per call: "
            f"{_verdict(strict)}"
        )
    text.append(
        "At temperature 0 the three rules are exact match, one and the same; the speedup of a rule is over decoding "
        "without drafts at its own temperature."
    )
    figure = over_temperature(
        cells,
        title=f"Tokens per call as the temperature rises, epsilon {settings['epsilon']:g}\n{about.title}",
        caption=f"{counts}; bars: 95% prompt-bootstrap intervals. At temperature 0 all rules are exact match.",
    )
    return Section(
        "Tokens per call as the temperature rises",
        (*text, *notes),
        tables=(("Each rule at each temperature, with 95% prompt-bootstrap intervals", _table(cells)),),
        figures=(("rate_over_temperature", figure),),
    )


def _verdict(strict: pd.Series) -> str:
    """Medusa's paper says that rejection loses efficiency as the temperature rises (2.3.1)."""
    if strict["rise_high"] < 0:
        return "rejection loses as the temperature rises, as the paper says."
    if strict["rise_low"] > 0:
        return "rejection gains as the temperature rises, against what the paper says."
    return "whether rejection loses as the temperature rises, as the paper says, cannot be told from these prompts."


def _quality(cells: pd.DataFrame, settings: pd.Series, counts: str, about: About) -> Section:
    temperature = settings["epsilon_temperature"]
    here = cells[cells["temperature"] == temperature]
    sweep = here[here["rule"] == "typical"].sort_values("epsilon")
    plain, greedy = here[here["rule"] == "plain"].iloc[0], cells[cells["rule"] == "greedy"].iloc[0]
    first, last = sweep.iloc[0], sweep.iloc[-1]
    text = [
        f"At temperature {temperature:g} a token of typical acceptance has a log-likelihood of "
        f"{_value(first, 'log_likelihood', 3)} nats under the target at epsilon {first['epsilon']:g} with "
        f"{_value(first, 'rate')} tokens per call, and {_value(last, 'log_likelihood', 3)} at {last['epsilon']:g} with "
        f"{_value(last, 'rate')}. Text sampled without loss has {_value(plain, 'log_likelihood', 3)}, greedy text "
        f"{_value(greedy, 'log_likelihood', 3)}.",
        "Likelihood is under the target at temperature 1, so text of a lower temperature has more of it: more is not "
        "better than the text without loss, only more like greedy text. tv is the distance between the law that a rule "
        "emits at a position, given its draft, and the target's at that temperature; a rule that always takes one "
        "token is far from it even where that token is the likeliest.",
    ]
    figure = rate_against_quality(
        pd.concat([here, cells[cells["rule"] == "greedy"]]),
        title=f"Tokens per call against likelihood at temperature {temperature:g}\n{about.title}",
        caption=f"{counts}; bars: 95% prompt-bootstrap intervals. Numbers beside points: epsilon; greedy text has "
        "temperature 0.",
    )
    return Section(
        "What the text loses",
        tuple(text),
        tables=(
            (f"Typical acceptance at temperature {temperature:g} over epsilon, and the other rules", _table(here)),
        ),
        figures=(("rate_against_quality", figure),),
    )


def _table(cells: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "temperature": f"{row['temperature']:g}",
                "rule": NAMES[row["rule"]],
                "epsilon": f"{row['epsilon']:g}" if row["epsilon"] else "–",
                "tokens per call": _value(row, "rate"),
                "over rejection": _signed(row, "lead") if row["rule"] == "typical" else "–",
                "speedup": _value(row, "speedup"),
                "nats per token": _value(row, "log_likelihood", 3),
                "tv": _value(row, "tv", 3),
                "decided otherwise": _value(row, "otherwise", 3),
            }
            for row in cells.sort_values(["temperature", "rule", "epsilon"]).to_dict("records")
        ]
    )


def _value(row: Mapping[str, float] | pd.Series, name: str, digits: int = 2) -> str:
    if not np.isfinite(row[name]):
        return "–"
    return f"{row[name]:.{digits}f}{bracket(row[f'{name}_low'], row[f'{name}_high'], digits)}"


def _signed(row: Mapping[str, float] | pd.Series, name: str) -> str:
    if not np.isfinite(row[name]):
        return "–"
    return f"{row[name]:+.2f}{bracket(row[f'{name}_low'], row[f'{name}_high'])}"
