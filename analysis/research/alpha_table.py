"""The alpha table of Leviathan et al. (2211.17192, Table 3) from runs of the overlay `leviathan_alpha`.

alpha is the mean of sum_x min(p, q) over the positions of the target's own text that had a proposal (`alpha.text`).
Runs and printed values never share a table or a figure: models, text and tokenizers differ.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import nan

import pandas as pd
from matplotlib.figure import Figure

from specdec.config import BASELINE
from specdec.errors import UsageError

from ..figures import style
from ..intervals import Interval
from ..papers.paper_tables import ROUNDING
from ..read.find_runs import load_runs, open_run, open_runs
from ..read.runs import Run
from ..sections import counted

OVERLAY = "leviathan_alpha"
SHORT = "notebooks"  # overlay of shorter runs, which stand in where OVERLAY has left none
OF_THE_PAPER = ("unigram", "bigram", "corpus_ngram", "small_model")  # drafters of the kinds that the paper has
COLUMNS = ("setting", "drafter", "temperature", "alpha", "ci_low", "ci_high", "tokens", "prompts")
ORDERS = {"unigram": 1, "bigram": 2}
MODELS = 99  # rank of drafters that are no n-grams of a corpus


def alpha_runs(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> list[Run]:
    """Return the finished runs of the overlay, newest first, then the shorter ones of `notebooks` with such drafters;
    or those of the ids or folders in `chosen`. UsageError if one of these is no run, or there is none.
    """
    if chosen:
        return open_runs(tracking_uri, chosen)
    table = load_runs(tracking_uri, experiment)
    table = table[table["status"] == "FINISHED"]
    table = table.reindex(columns=["params.experiment_name", "params.drafter.name"])
    overlay, drafter = table["params.experiment_name"], table["params.drafter.name"]
    finished = pd.concat([table[overlay == OVERLAY], table[(overlay == SHORT) & drafter.isin(OF_THE_PAPER)]])
    if finished.empty:
        raise UsageError(
            f"The experiment {experiment!r} has no finished run of the overlay {OVERLAY}: "
            f"`python -m specdec.run +experiment={OVERLAY}` makes them."
        )
    return [open_run(tracking_uri, str(run_id)) for run_id in finished.index]


def alpha_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return a line per setting, drafter and temperature, the first run of each (COLUMNS), in the paper's order.

    setting: model, dtype, prompts and hardware, such as "pocket (float32) on stdlib_code, EPYC"; lines of different
    settings must not be compared. The interval is the prompt bootstrap; NaN where there are too few prompts. Runs
    without any proposal have no alpha and are left out.
    """
    lines: dict[tuple[str, str, float], tuple[object, ...]] = {}
    for run in runs:
        model, _, hardware = run.setting.partition(", ")
        setting = f"{model} on {run.params.get('prompts.name', 'unknown prompts')}, {hardware}"
        key = (setting, run.drafter_name, float(run.params.get("sampling.temperature", nan)))
        if key not in lines and "alpha.text" in run.metrics:
            alpha = Interval.from_metrics(run.metrics, "alpha.text")
            own = run.generations().loc[lambda lines: lines["method"] == BASELINE]
            size = int(own["tokens"].sum()), int(own["prompt"].nunique())
            lines[key] = (*key, alpha.estimate, alpha.low, alpha.high, *size)
    ordered = sorted(lines, key=lambda key: (key[0], _rank(key[1]), *key[1:]))
    return pd.DataFrame([lines[key] for key in ordered], columns=list(COLUMNS))


def _rank(drafter: str) -> int:
    """Return the place in the paper's order: n-grams by their order, then everything else."""
    numbered = re.fullmatch(r"corpus_ngram of order (\d+)", drafter)
    return int(numbered[1]) if numbered else ORDERS.get(drafter, MODELS)


@style.in_style
def alpha_figure(table: pd.DataFrame, title: str, caption: str = "") -> Figure:
    """Draw the alphas of one setting (drafter, temperature, alpha) with their intervals if any (ci_low, ci_high); a
    line per drafter, a marker per temperature.
    """
    drafters = list(dict.fromkeys(table["drafter"]))
    figure, axes = style.new_figure(title, caption, height=2.3 + 0.45 * len(drafters))
    temperatures = table["temperature"].nunique()
    for index, (temperature, part) in enumerate(table.groupby("temperature")):
        colour, marker, *_ = style.look(index)
        offset = 0.16 * (index - (temperatures - 1) / 2)
        height = [drafters.index(name) + offset for name in part["drafter"]]
        if "ci_low" in part:
            axes.hlines(height, part["ci_low"], part["ci_high"], color=colour, linewidth=2)
        axes.plot(part["alpha"], height, marker, color=colour, label=f"temperature {temperature:g}")
    axes.set(xlabel="α, mean of Σ min(p, q) over the target's own text", xlim=(-0.02, 1.02))
    axes.set_yticks(range(len(drafters)), drafters)
    axes.set_ylim(len(drafters) - 0.5, -0.5)
    style.legend_above(axes, temperatures)
    return figure


def measured_figures(table: pd.DataFrame) -> list[Figure]:
    """Draw a figure per setting of an `alpha_table`, titled with model and hardware."""
    figures = []
    for setting, part in table.groupby("setting", sort=False):
        size = f"{counted(int(part['prompts'].max()), 'prompt')}, up to {part['tokens'].max():,} tokens of the target"
        level = "95% prompt-bootstrap intervals" if part["ci_low"].notna().any() else "no intervals"
        figures.append(alpha_figure(part, str(setting), f"{size}; {level}."))
    return figures


def printed_figures(printed: pd.DataFrame) -> list[Figure]:
    """Draw a figure per target of `paper_tables.leviathan_table_3`."""
    return [
        alpha_figure(part, f"Leviathan et al., Table 3: {target}, {part['task'].iloc[0]}", "As printed; no intervals.")
        for target, part in printed.groupby("target", sort=False)
    ]


def alpha_in_words(table: pd.DataFrame) -> str:
    """Say what was measured, setting by setting: values, order of the drafters, effect of the temperature."""
    if table.empty:
        return "No run of the overlay had a proposal, so there is no alpha."
    paragraphs = []
    for setting, part in table.groupby("setting", sort=False):
        sentences = [f"**{setting}.**"]
        for temperature, rows in part.groupby("temperature"):
            values = [f"{row.drafter} {Interval(row.alpha, row.ci_low, row.ci_high):.3f}" for row in rows.itertuples()]
            sentences.append(f"Temperature {temperature:g}: {', '.join(values)}. {_order_in_words(rows)}")
        sentences.append(temperature_in_words(part))
        if short := int((part["tokens"] < 10_000).sum()):
            fewest = counted(int(part["tokens"].min()), "token")
            few = f"{short} of {len(part)} rows rest on fewer than the protocol's 10,000 tokens, down to {fewest}."
            sentences.append(few)
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def _order_in_words(rows: pd.DataFrame) -> str:
    """Say whether alpha rises from unigram to bigram to models, as in the paper, and how surely."""
    pairs = [pair for pair in combinations(rows.itertuples(), 2) if _rank(pair[0].drafter) < _rank(pair[1].drafter)]
    if not pairs:
        return ""
    falls = [f"{after.drafter} is not above {before.drafter}" for before, after in pairs if after.alpha <= before.alpha]
    if falls:
        return f"The order is not the paper's: {' and '.join(falls)}."
    apart = sum(after.ci_low > before.ci_high for before, after in pairs)
    return f"It rises in the paper's order; {apart} of {len(pairs)} pairs have intervals apart."


def temperature_in_words(table: pd.DataFrame) -> str:
    """Say for how many drafters alpha is higher at temperature 0 than at 1."""
    index = [name for name in ("target", "drafter") if name in table]
    wide = table.pivot_table(index=index, columns="temperature", values="alpha", sort=False)
    if not {0.0, 1.0} <= set(wide.columns):
        return "Only one of the temperatures 0 and 1 was run."
    both = wide[[0.0, 1.0]].dropna()
    higher = int((both[0.0] > both[1.0]).sum())
    return f"alpha is higher at temperature 0 than at 1 for {higher} of {counted(len(both), 'drafter')}."


def printed_in_words(printed: pd.DataFrame) -> str:
    """Say what the paper prints (`paper_tables.leviathan_table_3`), or that there is nothing."""
    if printed.empty:
        return "The file of published figures has no row of Leviathan's Table 3."
    ngrams = printed["drafter"].map(_rank) < MODELS
    kinds = (("n-gram", printed["alpha"][ngrams]), ("model", printed["alpha"][~ngrams]))
    parts = [f"{name} drafters {alpha.min():.2f} to {alpha.max():.2f}" for name, alpha in kinds if len(alpha)]
    return (
        f"**Printed, {counted(len(printed), 'row')} of Table 3** (targets {', '.join(printed['target'].unique())}; no "
        f"interval, no hardware stated): {'; '.join(parts)}. {temperature_in_words(printed)}"
    )


def comparison_in_words(table: pd.DataFrame, printed: pd.DataFrame) -> str:
    """Say whether measured alphas lie within the range printed for their kind, all that can be compared."""
    if printed.empty or table.empty:
        return ""
    ours_ngram, theirs_ngram = (rows["drafter"].map(_rank) < MODELS for rows in (table, printed))
    ours_model = table["drafter"].str.startswith("small_model")
    sentences = []
    for kind, ours, theirs in (
        ("n-gram", table[ours_ngram]["alpha"], printed[theirs_ngram]["alpha"]),
        ("model", table[ours_model]["alpha"], printed[~theirs_ngram]["alpha"]),
    ):
        if len(ours) and len(theirs):
            inside = int(ours.between(theirs.min() - ROUNDING, theirs.max() + ROUNDING).sum())
            lie = f"{inside} of {counted(len(ours), 'row')} of {kind} drafters lie"
            sentences.append(f"{lie} within the range that the paper prints for its own")
    alike = f"{'; '.join(sentences)}. Models, text and tokenizers differ, so no row here should equal a row there."
    return alike if sentences else ""
