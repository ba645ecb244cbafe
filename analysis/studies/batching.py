"""Study `batching`: up to which batch speculation pays, what eats the speedup there, and whether the cost model of
single calls could have said so (theory.md 7.3).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from specdec.theory.batch_speedup import batch_speedup, longest_of_batch

from ..comparisons import StrategyComparison, compare, finite
from ..cost.break_even import batch_in_words, few_units_interval, interval_in_words, stops_paying
from ..engines.vllm_flags import DRAFTS, batch_schedule
from ..engines.vllm_flags import ENGINE as VLLM
from ..figures import pictures, style
from ..findings import About, Findings, FinishedStudy, Section, Tables, counted, register
from ..intervals import Interval

RESULT = Path(__file__).parents[1] / "results" / "batching.json"
_DIGITS = 5  # of committed numbers
_FEW = 5  # repeats below which resampling them cannot give 95%
KEYS = ["drafter", "gamma", "batch"]
PREDICTIONS = {"formula": "timed calls on batches", "model": "cost model of single calls"}
_SUMS = ["tokens", "steps", "seconds", "draft_s", "verify_s", "places", "baseline_tokens", "baseline_steps",
         "baseline_seconds"]  # fmt: skip
_COSTS = {"draft": "draft", "verify": "verify", "rest": "accept, commit, rest"}
_HATCHES = {"draft": (style.YELLOW, "//"), "verify": (style.SKY, ""), "rest": (style.LIGHT, "--")}


@register("batching")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study."""
    found = batch_numbers(tables, about.replicates, about.seed)
    sections = (
        _answer(found, tables, about),
        _costs(found, about),
        _throughput(found, about),
        _calls(found, tables, about),
    )
    return Findings(sections, _metrics(found), _curves(found), _refuted(tables["batching"]))


# Numbers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchNumbers:
    """The study in numbers. An array of a statistic is [1 + R, C]: the data's values, then those of R replicates, which
    draw whole repeats; C cells in the order of `cells`.

    Attributes:
        drafters: their names, in the order of the study.
        sums: sums over repeats for each drafter, gamma and batch, with the baseline's of the same repeats beside them.
        chosen: the same for each drafter and batch with its best gamma, chosen for every repeat on the other repeats.
        gammas: for each line of `chosen.cells`, the gammas that were chosen, such as "4" or "2, 4".
        predicted: for each name of `PREDICTIONS`, the speedup that the formula gives, [1 + R, C].
    """

    drafters: tuple[str, ...]
    sums: StrategyComparison
    chosen: StrategyComparison
    gammas: tuple[str, ...]
    predicted: Mapping[str, np.ndarray]

    @property
    def repeats(self) -> int:
        """Number of repeats: what intervals rest on."""
        return self.sums.prompts

    @cached_property
    def batches(self) -> list[int]:
        return sorted(int(batch) for batch in self.sums.cells["batch"].unique())

    @property
    def largest(self) -> int:
        return self.batches[-1]

    def gammas_of(self, drafter: str) -> list[int]:
        """Return the gammas that a drafter was tried with; heads draft no deeper than there are of them."""
        cells = self.sums.cells
        return sorted(int(gamma) for gamma in cells[cells["drafter"] == drafter]["gamma"].unique())

    def interval(self, values: np.ndarray) -> Interval:
        """Return one statistic [1 + R] as an Interval over repeats."""
        return few_units_interval(values, self.repeats)

    def places(self, drafter: str, gamma: int | None = None) -> list[int]:
        """Return the places of a drafter's cells by ascending batch: those of one gamma, or of the best (None)."""
        cells = self.chosen.cells if gamma is None else self.sums.cells
        mine = cells[cells["drafter"] == drafter] if gamma is None else cells[
            (cells["drafter"] == drafter) & (cells["gamma"] == gamma)
        ]  # fmt: skip
        return [int(place) for place in mine.sort_values("batch").index]

    def speedups(self, drafter: str, gamma: int | None = None) -> np.ndarray:
        """Return the speedups [1 + R, M] at equal batch, by ascending batch."""
        return speedup(self.chosen if gamma is None else self.sums)[:, self.places(drafter, gamma)]

    def predictions(self, name: str, drafter: str, gamma: int | None = None) -> np.ndarray:
        """Return the predicted speedups [1 + R, M]; for the best gamma the largest over all gammas."""
        if gamma is not None:
            return self.predicted[name][:, self.places(drafter, gamma)]
        return np.max([self.predictions(name, drafter, each) for each in self.gammas_of(drafter)], axis=0)

    def break_even(self, drafter: str, gamma: int | None = None) -> Interval:
        """Return the batch behind which a drafter does not pay (`stops_paying`), as measured."""
        return self.interval(stops_paying(self.batches, self.speedups(drafter, gamma)))

    def predicted_break_even(self, name: str, drafter: str, gamma: int | None = None) -> Interval:
        """Return the same batch as a prediction has it; its interval is that of tokens per round alone."""
        return self.interval(stops_paying(self.batches, self.predictions(name, drafter, gamma)))

    def costs(self, drafter: str, gamma: int) -> dict[str, np.ndarray]:
        """Return by ascending batch [1 + R, M]: tokens per round and sequence, and draft, verify and rest of a round in
        plain steps of the same batch. Tokens over the sum of the three is the speedup.
        """
        values, at = self.sums.values, self.places(drafter, gamma)
        batch = np.asarray(self.batches, dtype=float)
        steps, plain = values["steps"][:, at], (values["baseline_seconds"] / values["baseline_steps"])[:, at]
        draft, verify = (values[name][:, at] / steps / plain for name in ("draft_s", "verify_s"))
        whole = values["seconds"][:, at] / steps / plain
        tokens = values["tokens"][:, at] / steps / batch
        width = values["places"][:, at] / steps / batch
        return {"tokens": tokens, "draft": draft, "verify": verify, "rest": whole - draft - verify, "width": width}


def speedup(sums: StrategyComparison) -> np.ndarray:
    """Return plain seconds per token over speculative seconds per token at the same batch, [1 + R, C]."""
    return sums.ratio("baseline_seconds", "baseline_tokens") / sums.ratio("seconds", "tokens")


def batch_numbers(tables: Tables, replicates: int, seed: int) -> BatchNumbers:
    """Compute the numbers from the study's tables.

    The unit that is drawn again is the repeat: sequences of one batch share the time of every step, so that texts of
    one repeat are not independent; repeats have prompts of their own and are.
    """
    lines = tables["batching"].rename(columns={"repeat": "prompt"}).sort_values(["prompt", *KEYS], ignore_index=True)
    sums = compare(lines, KEYS, _SUMS, replicates, seed)
    best = _best_gammas(lines)
    chosen = compare(best, ["drafter", "batch"], _SUMS, replicates, seed)
    by_cell = best.groupby(["drafter", "batch"])["gamma"].agg(lambda found: ", ".join(map(str, sorted(set(found)))))
    gammas = tuple(by_cell[key] for key in chosen.cells.itertuples(index=False, name=None))
    predicted = {
        name: np.stack([_predicted(sums, tables, at, column) for at in range(len(sums.cells))], axis=1)
        for name, column in (("formula", "seconds"), ("model", "model_s"))
    }
    drafters = tuple(str(name) for name in tables["batching"]["drafter"].unique())
    return BatchNumbers(drafters, sums, chosen, gammas, predicted)


def _best_gammas(lines: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of the best gamma of each drafter and batch, chosen for every repeat by the speedup over all
    other repeats, so that the best of many is not flattered by its luck. A single repeat chooses for itself.
    """
    parts = []
    for _, mine in lines.groupby(["drafter", "batch"]):
        for repeat in mine["prompt"].unique():
            others = mine[mine["prompt"] != repeat] if mine["prompt"].nunique() > 1 else mine
            totals = others.groupby("gamma")[["tokens", "seconds", "baseline_tokens", "baseline_seconds"]].sum()
            plain = totals["baseline_seconds"] / totals["baseline_tokens"]
            gamma = (plain * totals["tokens"] / totals["seconds"]).idxmax()
            parts.append(mine[(mine["prompt"] == repeat) & (mine["gamma"] == gamma)])
    return pd.concat(parts, ignore_index=True)


def _predicted(sums: StrategyComparison, tables: Tables, at: int, column: str) -> np.ndarray:
    """Return E / (v + gamma c) of one cell, [1 + R].

    E is that of the drafter and gamma at all batches together, v the mean of t(B (k + 1)) / t(B) over the longest of B
    drafts, gamma c a timed draft for the batch over t(B).

    Args:
        column: of `calls`: where t comes from.
    """
    cell = sums.cells.iloc[at]
    same = (sums.cells["drafter"] == cell["drafter"]) & (sums.cells["gamma"] == cell["gamma"])
    alike, batch, gamma = np.flatnonzero(same), int(cell["batch"]), int(cell["gamma"])
    sequences = sums.values["steps"][:, alike] * sums.cells["batch"].to_numpy(dtype=float)[alike]
    tokens = sums.values["tokens"][:, alike].sum(axis=1) / sequences.sum(axis=1)
    timed = tables["calls"][tables["calls"]["batch"] == batch].groupby("tokens")[column].median()
    drafts = tables["drafts"]
    draft = drafts[(drafts["drafter"] == cell["drafter"]) & (drafts["gamma"] == gamma) & (drafts["batch"] == batch)]
    if timed.isna().any() or draft.empty:
        return np.full(len(tokens), np.nan)
    offers = tables["offers"]
    mine = offers[(offers["drafter"] == cell["drafter"]) & (offers["gamma"] == gamma)]
    counts = np.bincount(mine["offered"], weights=mine["rounds"], minlength=gamma + 1)
    widths = longest_of_batch(counts / counts.sum(), batch)
    seconds = np.interp(np.arange(len(widths)) + 1, timed.index, timed.to_numpy())
    plain = float(seconds[0])
    return np.asarray(batch_speedup(tokens, 1, draft["seconds"].median() / plain, float(widths @ seconds) / plain))


def call_errors(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each batch and tokens per sequence: seconds (median of the calls) and what the cost model says
    (model_s), both also over the call on one token per sequence (ratio, model_ratio).
    """
    cells = calls.groupby(["batch", "tokens"])[["seconds", "model_s"]].median().reset_index()
    plain = cells[cells["tokens"] == 1].set_index("batch")
    for name, column in (("ratio", "seconds"), ("model_ratio", "model_s")):
        cells[name] = cells[column] / cells["batch"].map(plain[column])
    return cells


def _metrics(found: BatchNumbers) -> dict[str, float]:
    """Return `batching/<drafter>.break_even` (0: no batch pays; absent: all tried do), those of the predictions and of
    every gamma, and `batching/<drafter>.speedup.<batch>` with the best gamma.
    """
    values: dict[str, float] = {"batching/repeats": float(found.repeats), "batching/largest": float(found.largest)}
    for drafter in found.drafters:
        name = f"batching/{drafter}"
        values |= found.break_even(drafter).as_metrics(f"{name}.break_even")
        for gamma in found.gammas_of(drafter):
            values |= found.break_even(drafter, gamma).as_metrics(f"{name}.break_even.gamma{gamma}")
        for each in PREDICTIONS:
            values[f"{name}.break_even.{each}"] = found.predicted_break_even(each, drafter).estimate
        for batch, column in zip(found.batches, found.speedups(drafter).T, strict=True):
            values |= found.interval(column).as_metrics(f"{name}.speedup.{batch}")
    return finite(values)


def _curves(found: BatchNumbers) -> dict[str, dict[int, float]]:
    """Return speedups over batches, measured and predicted, by gamma and with the best; and tokens per second."""
    curves: dict[str, dict[int, float]] = {}

    def add(name: str, values: np.ndarray) -> None:
        points = {batch: float(value) for batch, value in zip(found.batches, values, strict=True)}
        curves[f"curve/batching/{name}"] = finite_points(points)

    for drafter in found.drafters:
        for gamma in (None, *found.gammas_of(drafter)):
            label = f"{drafter}.{'best' if gamma is None else f'gamma{gamma}'}"
            add(f"speedup.{label}", found.speedups(drafter, gamma)[0])
            for each in PREDICTIONS:
                add(f"speedup.{label}.{each}", found.predictions(each, drafter, gamma)[0])
        at = found.places(drafter)
        add(f"tokens_per_s.{drafter}.best", found.chosen.ratio("tokens", "seconds")[0, at])
        add(f"tokens_per_s.{drafter}.plain", found.chosen.ratio("baseline_tokens", "baseline_seconds")[0, at])
    return curves


def finite_points(points: Mapping[int, float]) -> dict[int, float]:
    """Keep the points that have a value."""
    return {step: value for step, value in points.items() if np.isfinite(value)}


# A committed study ----------------------------------------------------------------------------------


def write_committed(tables: Tables, facts: Mapping[str, Any], path: Path = RESULT) -> None:
    """Write the tables of a study, with five digits, behind the facts of where and how it was made; `study` among them
    holds the values of `About`.
    """
    columns = {name: {key: _short(table[key]) for key in table} for name, table in tables.items()}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    told = [f"  {json.dumps(name)}: {json.dumps(values, separators=(',', ':'))}" for name, values in columns.items()]
    lines.append(' "tables": {\n' + ",\n".join(told) + "\n }")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _short(column: pd.Series) -> list[Any]:
    if not pd.api.types.is_float_dtype(column):
        return list(column.tolist())
    return [None if np.isnan(value) else float(f"{value:.{_DIGITS}g}") for value in column]


def committed_study(path: Path = RESULT) -> FinishedStudy:
    """Return the study that comes with specdec."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    facts = {key: value for key, value in kept["study"].items() if key != "study"}
    tables = {name: pd.DataFrame(columns) for name, columns in kept["tables"].items()}
    tables["calls"] = tables["calls"].astype({"model_s": float})
    return FinishedStudy("batching", tables, About(**facts), str(path))


def committed_in_words(path: Path = RESULT) -> str:
    """Say where and when the committed study was made."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    load = kept["load_average"]
    return (
        f"Committed: `{kept['command']}` on {kept['date']}, {kept['cpu']['model']}, {kept['clock']}, load average "
        f"{load['start'][0]} before and {load['end'][0]} after."
    )


# Up to which batch it pays --------------------------------------------------------------------------


def _answer(found: BatchNumbers, tables: Tables, about: About) -> Section:
    measured = {drafter: found.break_even(drafter) for drafter in found.drafters}
    said = "; ".join(f"{drafter} {interval_in_words(value, found.largest)}" for drafter, value in measured.items())
    answer = (
        f"Speculation pays up to this batch, with the best gamma at each: {said}. "
        f"{_predicted_in_words(found, measured)}"
    )
    meaning = (
        "Speedup at equal batch: seconds per token of plain decoding over seconds per token with drafts, both over as "
        "many sequences at once, in steps with every slot in use, prefill apart. The batch at which it falls below 1 "
        "for the last time is interpolated over log2 of the batch. The best gamma is chosen for every repeat on the "
        "other repeats."
    )
    title = f"Speedup at equal batch\n{about.title}"
    caption = (
        f"Markers: measured, with 95% intervals over {counted(found.repeats, 'repeat')}; dotted: the formula with the "
        "cost model of single calls. Below the line plain decoding is faster."
    )
    shown = (
        ("Batch behind which speculation does not pay: measured (95%), and as predicted", _break_even_table(found)),
        ("Speedup at equal batch with the best gamma (95%), and the gammas chosen", best_table(found)),
    )
    figure = _speedup_figure(found, title=title, caption=caption)
    caveats = about.caveats(tables["skipped"])
    unit, outcomes = _unit(found, tables["cost"].iloc[0]), _outcomes(tables["batching"])
    text = (answer, meaning, unit, outcomes, *_schedules(found, about), *caveats)
    return Section("Up to which batch speculation pays", text, shown, (("batching_speedup", figure),))


def _unit(found: BatchNumbers, facts: pd.Series) -> str:
    """Say what intervals rest on."""
    if found.repeats == 1:
        return "A single repeat: no intervals, and the best gamma is chosen on the numbers that it is judged by."
    words = (
        f"Intervals draw whole repeats again ({found.repeats}): sequences of one batch share the time of every step, "
        "so that neither texts nor rounds of a repeat are independent, and repeats have prompts of their own. They are "
        "widened for so few units (expanded percentiles)."
    )
    if found.repeats < _FEW:
        words += f" {found.repeats} repeats are too few all the same: an interval spans what they gave, not 95%."
    if found.repeats * facts["largest"] > facts["prompts"]:
        words += (
            f" There are {counted(int(facts['prompts']), 'prompt')}, and a repeat takes {int(facts['largest'])} at the "
            "largest batch: some stand in several repeats, so that intervals are too short."
        )
    return words


def _outcomes(lines: pd.DataFrame) -> str:
    """Say whether drafts changed what was written."""
    same, near, differs = (int(lines[name].sum()) for name in ("same", "near_tie", "differs"))
    words = (
        f"Of {counted(same + near + differs, 'text')} with drafts, {same:,} are those of plain decoding at the batch"
    )
    return f"{words}; {near:,} part from it at a near-tie, {differs:,} otherwise."


def _refuted(lines: pd.DataFrame) -> str:
    """Say how many texts drafts changed for no near-tie; "" where there is none."""
    differs = int(lines["differs"].sum())
    if not differs:
        return ""
    return (
        f"Outputs refuted: {counted(differs, 'text')} with drafts part from plain decoding without a near-tie that "
        "rounding could explain."
    )


def _schedules(found: BatchNumbers, about: About) -> list[str]:
    """Return the gamma to serve at each batch as vLLM takes it: the fastest whose interval is above 1, else none."""
    words = []
    for drafter in found.drafters:
        best: dict[int, int] = {}
        for place, batch in enumerate(found.batches):
            of_gamma = {gamma: found.speedups(drafter, gamma)[:, place] for gamma in found.gammas_of(drafter)}
            intervals = {gamma: found.interval(values) for gamma, values in of_gamma.items()}
            paying = {gamma: value.estimate for gamma, value in intervals.items() if value.low > 1}
            best[batch] = max(paying, key=paying.__getitem__, default=0)
        if drafter in DRAFTS and any(best.values()):
            words.append(f'{drafter} `"num_speculative_tokens_per_batch_size": {batch_schedule(best)}`')
    if not words:
        return []
    pocket = " and demonstrates the tool, as all figures of pocket models do" if "pocket" in about.title else ""
    return [
        f"To serve it by load, a key of `--speculative-config` in the format of {VLLM}: [first batch, last batch, "
        f"draft tokens]. It is a starting point, not measured there{pocket}. {'; '.join(words)}."
    ]


def _predicted_in_words(found: BatchNumbers, measured: Mapping[str, Interval]) -> str:
    """Say what the cost model of single calls predicted, and whether the measured interval contains it."""
    parts = []
    for drafter, value in measured.items():
        predicted = found.predicted_break_even("model", drafter).estimate
        if np.isnan(predicted):
            return "There is no cost model of single calls to compare with."
        words = f"{drafter} {batch_in_words(predicted, found.largest)}"
        if not np.isnan(value.low):
            inside = value.low <= predicted <= value.high
            words += " (within the interval)" if inside else " (outside the interval)"
        parts.append(words)
    return f"The cost model fitted to calls on a single sequence predicted {'; '.join(parts)}."


def _break_even_table(found: BatchNumbers) -> pd.DataFrame:
    lines = []
    for drafter in found.drafters:
        for gamma in (*found.gammas_of(drafter), None):
            line = {"drafter": drafter, "gamma": "best" if gamma is None else str(gamma)}
            line["measured"] = interval_in_words(found.break_even(drafter, gamma), found.largest)
            for name, label in PREDICTIONS.items():
                predicted = found.predicted_break_even(name, drafter, gamma).estimate
                line[f"formula, {label}"] = batch_in_words(predicted, found.largest)
            lines.append(line)
    return pd.DataFrame(lines)


def best_table(found: BatchNumbers) -> pd.DataFrame:
    shown: dict[str, list[str]] = {"batch": [str(batch) for batch in found.batches]}
    for drafter in found.drafters:
        values = found.speedups(drafter)
        gammas = [found.gammas[place] for place in found.places(drafter)]
        shown[drafter] = [f"{found.interval(column):.2f}" for column in values.T]
        shown[f"gamma of {drafter}"] = gammas
    return pd.DataFrame(shown)


# Parts of a round ------------------------------------------------------------------------------------


def _costs(found: BatchNumbers, about: About) -> Section:
    """Write the section on the factors, each drafter at the gamma that is fastest at the smallest batch."""
    chosen = {drafter: _fastest(found, drafter) for drafter in found.drafters}
    first, last = found.batches[0], found.largest
    sentences = []
    for drafter, gamma in chosen.items():
        costs = {name: values[0] for name, values in found.costs(drafter, gamma).items()}
        whole = sum(costs[name] for name in _COSTS)
        rises = {label: costs[name][-1] - costs[name][0] for name, label in _COSTS.items()}
        falls = max(rises.values()) <= 0
        most = max(rises, key=lambda label: abs(rises[label]) if falls else rises[label])
        sentences.append(
            f"{drafter} at gamma {gamma}: from batch {first} to {last} a round goes from {whole[0]:.2f} to "
            f"{whole[-1]:.2f} plain steps ({'; '.join(f'{label} {rise:+.2f}' for label, rise in rises.items())}), for "
            f"{costs['tokens'][0]:.2f} and {costs['tokens'][-1]:.2f} tokens: {most} "
            + ("eats most of the speedup." if rises[most] > 0 else "is what changes most.")
        )
    title = f"A round in plain steps of the same batch\n{about.title}"
    caption = (
        "Bars: what a round of all sequences takes, in steps of plain decoding of as many; line: tokens per round and "
        "sequence. Speculation pays where the line is above the bar."
    )
    table = pd.concat([_cost_table(found, drafter, gamma) for drafter, gamma in chosen.items()], ignore_index=True)
    shown = (
        (
            "Tokens per round and sequence, and the parts of a round in plain steps; tokens per sequence of a call, "
            "padding included; speedup as measured and by the formula",
            table,
        ),
    )
    figure = _cost_figure(found, chosen, title=title, caption=caption)
    return Section("What eats the speedup", tuple(sentences), shown, (("batching_costs", figure),))


def _fastest(found: BatchNumbers, drafter: str) -> int:
    """Return the gamma with the highest speedup at the smallest batch."""
    return max(found.gammas_of(drafter), key=lambda gamma: float(found.speedups(drafter, gamma)[0, 0]))


def _cost_table(found: BatchNumbers, drafter: str, gamma: int) -> pd.DataFrame:
    costs = found.costs(drafter, gamma)
    shown: dict[str, object] = {"drafter": drafter, "gamma": gamma, "batch": found.batches}
    for name, label in {"tokens": "tokens per round", **_COSTS, "width": "tokens per call and sequence"}.items():
        shown[label] = [f"{value:.2f}" for value in costs[name][0]]
    shown["speedup"] = [f"{found.interval(column):.2f}" for column in found.speedups(drafter, gamma).T]
    for name, label in PREDICTIONS.items():
        values = found.predictions(name, drafter, gamma)[0]
        shown[f"formula, {label}"] = ["–" if np.isnan(value) else f"{value:.2f}" for value in values]
    return pd.DataFrame(shown)


# Throughput -----------------------------------------------------------------------------------------


def _throughput(found: BatchNumbers, about: About) -> Section:
    plain, own = _plain_rates(found), found.chosen.ratio("tokens", "seconds")
    largest = found.interval(plain[:, -1] / plain[:, 0])
    sentences = [
        f"Plain decoding writes {found.interval(plain[:, 0]):.0f} tokens per second at batch {found.batches[0]} and "
        f"{found.interval(plain[:, -1]):.0f} at batch {found.largest}, {largest:.2f} times as many: batching is the "
        "other way to fill a call, and the two spend the same spare arithmetic."
    ]
    shown: dict[str, list[str]] = {"batch": [str(batch) for batch in found.batches]}
    shown["plain"] = [f"{found.interval(column):.0f}" for column in plain.T]
    for drafter in found.drafters:
        rates = own[:, found.places(drafter)]
        shown[drafter] = [f"{found.interval(column):.0f}" for column in rates.T]
    title = f"Tokens per second over all sequences\n{about.title}"
    caption = (
        f"Each drafter with its best gamma at each batch; 95% intervals over {counted(found.repeats, 'repeat')}. "
        "Prefill is apart."
    )
    figure = _throughput_figure(found, plain, title=title, caption=caption)
    table = ("Tokens per second over all sequences (95%), drafters with their best gamma", pd.DataFrame(shown))
    return Section("Throughput", tuple(sentences), (table,), (("batching_throughput", figure),))


def _plain_rates(found: BatchNumbers) -> np.ndarray:
    """Return tokens per second of plain decoding [1 + R, M]. Every cell of a repeat stands beside the same baseline, so
    the first drafter's are those of all.
    """
    return found.chosen.ratio("baseline_tokens", "baseline_seconds")[:, found.places(found.drafters[0])]


# Calls on batches -----------------------------------------------------------------------------------


def _calls(found: BatchNumbers, tables: Tables, about: About) -> Section:
    calls, cost = call_errors(tables["calls"]), tables["cost"].iloc[0]
    wide = calls[calls["tokens"] > 1]
    seconds = {int(batch): part.set_index("tokens")["seconds"] for batch, part in calls.groupby("batch")}
    ends = [(batch, tokens) for batch in (found.batches[0], found.largest) for tokens in (int(wide["tokens"].max()),)]
    ratios = calls.set_index(["batch", "tokens"])["ratio"]
    answer = (
        f"A call on {ends[0][1]} tokens per sequence takes {ratios[ends[0]]:.2f} times a plain step at batch "
        f"{ends[0][0]} and {ratios[ends[1]]:.2f} times at batch {ends[1][0]}, of at most {ends[0][1]}."
    )
    sentences = [answer]
    if calls["model_s"].notna().all():
        off = calls["model_s"] / calls["seconds"] - 1
        ratio_off = wide["model_ratio"] / wide["ratio"] - 1
        sentences.append(
            f"The cost model was fitted to calls on one sequence (up to {int(cost['rows'])} tokens, "
            f"{cost['error']:.1%} off on sizes that it had not seen) and never saw a batch: over all batches it is "
            f"{off.abs().median():.0%} off in seconds (worst {off.abs().max():.0%}) and {ratio_off.abs().median():.0%} "
            f"in t(B (gamma + 1)) / t(B) (worst {ratio_off.abs().max():.0%})."
        )
    table = pd.DataFrame(
        {
            "batch": [str(batch) for batch in seconds],
            "t(B), ms": [f"{1e3 * each[1]:.3g}" for each in seconds.values()],
            **{
                f"{tokens} tokens each": [_ratio_cell(calls, batch, tokens) for batch in seconds]  # fmt: skip
                for tokens in sorted(int(each) for each in wide["tokens"].unique())
            },
        }
    )
    caption = f"Points: median of timed calls with {int(cost['context'])} cached tokens; dotted: the cost model."
    title = f"A call on gamma + 1 tokens of each sequence, over a plain step\n{about.title}"
    figure = _call_figure(calls, found.batches, title=title, caption=caption)
    name = "t(B), and calls on more tokens per sequence over it: measured (cost model of single calls)"
    return Section("What a call costs in a batch", tuple(sentences), ((name, table),), (("batching_calls", figure),))


def _ratio_cell(calls: pd.DataFrame, batch: int, tokens: int) -> str:
    line = calls[(calls["batch"] == batch) & (calls["tokens"] == tokens)].iloc[0]
    model = "" if np.isnan(line["model_ratio"]) else f" ({line['model_ratio']:.2f})"
    return f"{line['ratio']:.2f}{model}"


# Figures --------------------------------------------------------------------------------------------


def _batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(batches), [str(batch) for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())


@style.in_style
def _speedup_figure(found: BatchNumbers, title: str, caption: str) -> Figure:
    rows = len(found.drafters)
    figure, panels = style.new_panels(title, caption, 1.2 + 2.7 * rows, rows, sharex=True)
    for axes, drafter in zip(panels[:, 0], found.drafters, strict=True):
        for place, gamma in enumerate(found.gammas_of(drafter)):
            look = style.look(place)
            values = [found.interval(column) for column in found.speedups(drafter, gamma).T]
            pictures.line(axes, found.batches, values, look, f"gamma {gamma}")
            predicted = found.predictions("model", drafter, gamma)[0]
            axes.plot(found.batches, predicted, color=look.colour, linewidth=1.3, linestyle=style.DOTTED)
        pictures.level(axes, 1.0)
        _batch_axis(axes, found.batches)
        axes.set_ylabel(f"speedup, {drafter}")
    style.legend_above(panels[0, 0], 4)
    panels[-1, 0].set_xlabel("sequences in the batch")
    return figure


@style.in_style
def _cost_figure(found: BatchNumbers, chosen: Mapping[str, int], title: str, caption: str) -> Figure:
    rows = len(chosen)
    figure, panels = style.new_panels(title, caption, 1.2 + 2.4 * rows, rows, sharex=True)
    at = np.arange(len(found.batches))
    for axes, (drafter, gamma) in zip(panels[:, 0], chosen.items(), strict=True):
        costs, below = found.costs(drafter, gamma), np.zeros(len(at))
        for name, label in _COSTS.items():
            colour, hatch = _HATCHES[name]
            height = costs[name][0]
            axes.bar(at, height, 0.7, below, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
            below = below + height
        tokens = [found.interval(column) for column in costs["tokens"].T]
        black = style.look(0)._replace(colour=style.BLACK)
        pictures.line(axes, [float(place) for place in at], tokens, black, "tokens per round")
        axes.set_xticks(at, [str(batch) for batch in found.batches])
        axes.set_ylabel(f"{drafter}, gamma {gamma}")
    style.legend_above(panels[0, 0], 4)
    panels[-1, 0].set_xlabel("sequences in the batch")
    return figure


@style.in_style
def _throughput_figure(found: BatchNumbers, plain: np.ndarray, title: str, caption: str) -> Figure:
    figure, axes = style.new_figure(title, caption)
    lines = {"plain decoding": (plain, style.Look(style.BLACK, "s", ":"))}
    own = found.chosen.ratio("tokens", "seconds")
    for place, drafter in enumerate(found.drafters):
        lines[drafter] = (own[:, found.places(drafter)], style.look(place))
    for label, (rates, look) in lines.items():
        pictures.line(axes, found.batches, [found.interval(column) for column in rates.T], look, label)
    _batch_axis(axes, found.batches)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("sequences in the batch")
    axes.set_ylabel("tokens per second, all sequences")
    style.legend_above(axes, 2)
    return figure


@style.in_style
def _call_figure(calls: pd.DataFrame, batches: Sequence[int], title: str, caption: str) -> Figure:
    figure, axes = style.new_figure(title, caption)
    for place, (tokens, part) in enumerate(calls[calls["tokens"] > 1].groupby("tokens")):
        look = style.look(place)
        axes.plot(part["batch"], part["ratio"], color=look.colour, marker=look.marker, linestyle=look.dash,
                  label=f"{tokens} tokens per sequence")  # fmt: skip
        axes.plot(part["batch"], part["model_ratio"], color=look.colour, linewidth=1.3, linestyle=style.DOTTED)
    _batch_axis(axes, batches)
    axes.set_xlabel("sequences in the batch")
    axes.set_ylabel("t(B (gamma + 1)) / t(B)")
    style.legend_above(axes, 2)
    return figure
