"""Study `grid`: which shape, k rows of w tokens, is fastest, what it gains over the usual one, and whether live runs
agree with what was predicted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import StrategyComparison, compare, curves_of, finite, interval, printed
from ..cost.block_seconds import repeats_of, stream_seconds
from ..figures import pictures, style
from ..findings import About, Findings, Section, Tables, counted, register
from ..intervals import Interval

Shape = tuple[int, int]
"""k rows of w tokens each."""

USUAL: Shape = (10, 10)
"""The shape of N-Grammys (2411.03786)."""
_LEAST = 5  # prompts of a category that is looked at alone
_EXACT = ("float32", "float64")


@register("grid", overlay="ngrammys_grid")
def findings(tables: Tables, about: About) -> Findings:
    """Read `replay`, `block_times`, `host_times`, `live`, `whole` and `skipped`."""
    replay, live, whole = tables["replay"], tables["live"], tables["whole"]
    found = grid(replay, tables["block_times"], tables["host_times"], about.replicates, about.seed)
    check = live_check(found.texts, live)
    sections = [_tokens(found, tables["skipped"], about), _speed(found, tables["block_times"], about)]
    if len(whole):
        sections.append(_whole(whole, found.best("speedup"), about))
    if len(check):
        sections.append(_live(check, live, about))
    quantities = {"tokens_per_call": "tokens", "speedup": "speedup"}
    curves = curves_of(found.shapes, "curve/grid/{what}.k{k}", ["k"], "w", quantities)
    metrics = _metrics(found, check, whole_runs(whole, about.replicates, about.seed) if len(whole) else None)
    return Findings(tuple(sections), metrics, curves)


# Numbers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridNumbers:
    """Tokens per call and speedup of all shapes.

    Attributes:
        texts: the replay, a line for each shape and stream, with predicted `seconds` and `plain_s`, means of the
            repeats.
        by_repeat: predicted speedup of each shape by repeat, [repeats, C].
        compared: sums over prompts by shape.
    """

    texts: pd.DataFrame
    by_repeat: np.ndarray
    compared: StrategyComparison

    @cached_property
    def statistics(self) -> Mapping[str, np.ndarray]:
        """Tokens per call and speedup, [1 + B, C] each; the speedup of a shape that could not be timed is NaN."""
        ratio = self.compared.ratio
        return {"tokens": ratio("tokens", "rounds"), "speedup": ratio("plain_s", "seconds")}

    @cached_property
    def shapes(self) -> pd.DataFrame:
        """A line for each shape: k, w, tokens and speedup, both with _low and _high, deviation (standard deviation of
        the speedup over repeats; NaN for one repeat), nodes (mean of a draft).
        """
        return self.compared.table(self.statistics).assign(
            deviation=np.std(self.by_repeat, axis=0, ddof=1) if len(self.by_repeat) > 1 else np.nan,
            nodes=self.compared.ratio("nodes", "rounds")[0],
        )

    def best(self, name: str) -> Shape:
        """Return the shape with most `tokens` or `speedup`; of equal ones the smallest."""
        line = self.shapes.loc[self.shapes[name].idxmax()]
        return int(line["k"]), int(line["w"])

    def has(self, shape: Shape) -> bool:
        """Return True if the shape is part of the grid."""
        return self.compared.place(*shape) is not None

    def value(self, name: str, shape: Shape) -> float:
        """Return a column of `shapes` for one shape."""
        return float(self.shapes.loc[self.compared.place(*shape), name])

    def interval(self, name: str, shape: Shape) -> Interval:
        """Return `tokens` or `speedup` of one shape."""
        return interval(self.shapes.loc[self.compared.place(*shape)], name)

    def lead(self, name: str, shape: Shape, other: Shape) -> Interval:
        """Return how much one shape has beyond another, in the same replicates."""
        values = self.statistics[name]
        return self.compared.interval(values[:, self.compared.place(*shape)] - values[:, self.compared.place(*other)])

    def steadiness(self, name: str, shape: Shape) -> float:
        """Return the share of replicates in which `shape` is the best, NaN from one prompt: low where many shapes are
        nearly as good.
        """
        values = self.statistics[name][1:]
        best = np.nanargmax(values[np.isfinite(values).any(axis=1)], axis=1)
        return float(np.mean(best == self.compared.place(*shape))) if len(best) else float("nan")


def grid(
    replay: pd.DataFrame, block_times: pd.DataFrame, host_times: pd.DataFrame, replicates: int, seed: int
) -> GridNumbers:
    """Compute the numbers from the study's tables."""
    seconds, plain = stream_seconds(replay, repeats_of(block_times, host_times))
    texts = replay.assign(seconds=seconds.mean(axis=0), plain_s=plain.mean(axis=0))
    untimed = texts["seconds"].isna().groupby([texts["k"], texts["w"]]).transform("any")
    texts.loc[untimed, "seconds"] = np.nan  # a speedup over some of the texts would not compare with the others
    compared = compare(texts, ["k", "w"], ["tokens", "rounds", "nodes", "seconds", "plain_s"], replicates, seed)
    by_repeat = []
    for mine, base in zip(seconds, plain, strict=True):
        totals = replay[["k", "w"]].assign(mine=mine, base=base).groupby(["k", "w"]).sum(skipna=False)
        by_repeat.append((totals["base"] / totals["mine"]).to_numpy())
    return GridNumbers(texts, np.stack(by_repeat), compared)


def _live_shapes(live: pd.DataFrame) -> pd.DataFrame:
    """Return, by k and w of live runs beside plain decoding (w = 0): runs, tokens (per call), together (speedup of all
    runs together), speedup and deviation (mean and standard deviation of the runs' speedups; NaN for one run) and
    identical (share of texts that are the replayed ones).
    """
    plain, drafted = live[live["w"] == 0].groupby("repeat")["seconds"].sum(), live[live["w"] > 0]
    sums = drafted.groupby(["k", "w"])[["tokens", "rounds", "seconds"]].sum()
    by_run = drafted.groupby(["k", "w", "repeat"])["seconds"].sum().rdiv(plain, level="repeat")
    shapes = by_run.groupby(["k", "w"]).agg(runs="size", speedup="mean", deviation="std")
    return shapes.assign(
        tokens=sums["tokens"] / sums["rounds"],
        together=plain.sum() / sums["seconds"],
        identical=drafted.groupby(["k", "w"])["identical"].mean(),
    )


def live_check(texts: pd.DataFrame, live: pd.DataFrame) -> pd.DataFrame:
    """Set live runs beside the prediction for the same texts, a line for each shape: k, w, streams, tokens_predicted,
    tokens_measured (per call), same_rounds (streams whose every live run took the rounds of the replay), identical
    (share of runs that wrote the replayed text), speedup_predicted, speedup_measured, deviation (standard deviation
    over repeats; NaN for one), error (predicted over measured, less 1).

    Args:
        texts: the texts of `GridNumbers`.
        live: the study's table.
    """
    if live.empty:
        return pd.DataFrame()
    found = _live_shapes(live).rename(columns={"tokens": "tokens_measured", "together": "speedup_measured"})
    keys = ["k", "w", "stream"]
    runs = live.merge(texts[[*keys, "rounds"]], on=keys, suffixes=("", "_replayed"))
    same = (runs["rounds"] == runs["rounds_replayed"]).groupby([runs[key] for key in keys]).all()
    mine = texts.merge(same.index.to_frame(index=False), on=keys).groupby(["k", "w"])
    sums = mine[["tokens", "rounds", "plain_s", "seconds"]].sum(skipna=False)
    found = found.assign(
        streams=mine.size(),
        same_rounds=same.groupby(["k", "w"]).sum(),
        tokens_predicted=sums["tokens"] / sums["rounds"],
        speedup_predicted=sums["plain_s"] / sums["seconds"],
    )
    return found.assign(error=found["speedup_predicted"] / found["speedup_measured"] - 1).reset_index()


@dataclass(frozen=True)
class WholeRuns:
    """Whole live runs of all prompts in a few shapes, beside plain decoding in the same runs.

    Attributes:
        shapes: a line for each shape, in the order of the table: k, w, runs, tokens (per call), speedup and deviation
            (mean and standard deviation of the runs' speedups; NaN for one run), low and high (95% prompt-bootstrap
            interval of the speedup of all runs together), identical (share of texts that are the replayed ones).
        lead: how much larger the first shape's speedup is than the second's, paired; None of one shape.
    """

    shapes: pd.DataFrame
    lead: Interval | None


def whole_runs(whole: pd.DataFrame, replicates: int, seed: int) -> WholeRuns:
    """Compute the numbers from the study's table, which is not empty."""
    compared = compare(whole, ["k", "w"], ["seconds"], replicates, seed)
    seconds = compared.values["seconds"]
    with np.errstate(divide="ignore", invalid="ignore"):
        speedups = compared.beside(seconds, k=1, w=0) / seconds
    drafted = whole[whole["w"] > 0]
    # The fastest stands first, whatever the order of the runs was; the usual shape last.
    order = sorted(dict.fromkeys(zip(drafted["k"], drafted["w"], strict=True)), key=lambda shape: shape == USUAL)
    columns = [speedups[:, compared.place(*shape)] for shape in order]
    bounds = [compared.interval(column) for column in columns]
    shapes = _live_shapes(whole).loc[order].reset_index()
    shapes = shapes.assign(low=[each.low for each in bounds], high=[each.high for each in bounds])
    return WholeRuns(shapes, compared.interval(columns[0] - columns[1]) if len(order) > 1 else None)


def _by_category(found: GridNumbers) -> pd.DataFrame:
    """Return the fastest shape and the one with most tokens per call for every category of enough prompts; empty where
    there are not two such categories.
    """
    lines = []
    for category, part in found.texts.groupby("category"):
        if part["prompt"].nunique() < _LEAST:
            continue
        totals = part.groupby(["k", "w"])[["tokens", "rounds", "seconds", "plain_s"]].sum()
        tokens, speed = totals["tokens"] / totals["rounds"], totals["plain_s"] / totals["seconds"].replace(0.0, np.nan)
        fastest = speed.idxmax()
        lines.append(
            {
                "category": category,
                "prompts": part["prompt"].nunique(),
                "fastest shape": str(fastest),
                "speedup": f"{speed.max():.2f}",
                "its tokens per call": f"{tokens[fastest]:.2f}",
                "most tokens per call": f"{tokens.max():.2f} at {tokens.idxmax()}",
            }
        )
    return pd.DataFrame(lines) if len(lines) > 1 else pd.DataFrame()


def _metrics(found: GridNumbers, check: pd.DataFrame, whole: WholeRuns | None) -> dict[str, float]:
    """Return `grid/*`: best_k and best_w are those of the fastest shape, `whole.*` those of whole runs of the fastest
    (best) and the usual one (10x10).
    """
    fastest, longest = found.best("speedup"), found.best("tokens")
    metrics: dict[str, float] = {
        "grid/best_k": fastest[0],
        "grid/best_w": fastest[1],
        **found.interval("speedup", fastest).as_metrics("grid/speedup.best"),
        "grid/speedup.best.tokens_per_call": found.value("tokens", fastest),
        "grid/best_tokens_per_call": found.value("tokens", longest),
        "grid/best_tokens_per_call.k": longest[0],
        "grid/best_tokens_per_call.w": longest[1],
    }
    if found.has(USUAL):
        metrics |= {
            "grid/speedup.10x10": found.value("speedup", USUAL),
            "grid/tokens_per_call.10x10": found.value("tokens", USUAL),
            **found.lead("speedup", fastest, USUAL).as_metrics("grid/speedup.lead"),
        }
    if len(check):
        metrics["grid/live.same_rounds"] = check["same_rounds"].sum() / check["streams"].sum()
        metrics["grid/live.worst_error"] = check["error"].abs().max()
    for at, line in enumerate([] if whole is None else whole.shapes.to_dict("records")):
        usual = (line["k"], line["w"]) == USUAL
        for name in [*(["best"] if at == 0 else []), *(["10x10"] if usual else [])]:
            metrics |= Interval(line["speedup"], line["low"], line["high"]).as_metrics(f"grid/whole.{name}.speedup")
            metrics[f"grid/whole.{name}.deviation"] = line["deviation"]
            metrics[f"grid/whole.{name}.tokens_per_call"] = line["tokens"]
    if whole is not None and whole.lead is not None:
        metrics |= whole.lead.as_metrics("grid/whole.lead")
    return finite(metrics)


# Tokens per call ------------------------------------------------------------------------------------


def _tokens(found: GridNumbers, skipped: pd.DataFrame, about: About) -> Section:
    longest, prompts = found.best("tokens"), counted(found.compared.prompts, "prompt")
    shapes, gain = found.shapes, found.value("tokens", longest) - 1
    near = shapes[shapes["tokens"] - 1 >= 0.9 * gain].sort_values("nodes").iloc[0]
    enough = (
        f"Nine tenths of its gain over plain decoding come with ({int(near['k'])}, {int(near['w'])}): "
        f"{near['tokens']:.2f} tokens per call from {near['nodes']:.0f} nodes a round, where the best has "
        f"{found.value('nodes', longest):.0f}."
    )
    text = (
        f"Most tokens per call: {found.interval('tokens', longest):.2f} with the shape {longest}"
        f"{_compared(found, 'tokens', longest, ', ')}.",
        enough if gain > 0 else "No shape gains anything over plain decoding.",
        *about.origin(found.texts, skipped),
    )
    figure = _maps(
        {"Tokens per call of the target, its own token included": (found.shapes, "tokens", longest)},
        title=f"Tokens per call over k rows of width w\n{about.title}",
        caption=f"{prompts} of {about.prompts}; greedy texts replayed, which is exact. {_frames('the most')}",
    )
    caption = f"Tokens per call with 95% intervals over {prompts}"
    return Section("Tokens per call", text, ((caption, _table(found, "tokens")),), (("tokens_per_call", figure),))


def _compared(found: GridNumbers, name: str, best: Shape, joint: str) -> str:
    """Set the best shape against the usual one; empty where it is that one, or that one was not part of the grid."""
    if best == USUAL or not found.has(USUAL):
        return ""
    lead = found.lead(name, best, USUAL)
    verdict = ": the best is better beyond chance" if lead.low > 0 else ": no difference beyond chance"
    return (
        f"{joint}{USUAL} has {found.interval(name, USUAL):.2f}, the difference being {lead:.2f} (paired)"
        f"{verdict if lead.known else ''}"
    )


def _table(found: GridNumbers, name: str) -> pd.DataFrame:
    """Return values with their intervals: w down, k across."""
    shown = found.shapes.assign(text=printed(found.shapes, name, ".2f"))
    return shown.pivot(index="w", columns="k", values="text").rename(columns="k = {}".format).reset_index()


# Speedup --------------------------------------------------------------------------------------------


def _speed(found: GridNumbers, times: pd.DataFrame, about: About) -> Section:
    fastest, repeats = found.best("speedup"), len(found.by_repeat)
    prompts = counted(found.compared.prompts, "prompt")
    kind = "simulated speedup" if about.simulated else "speedup"
    steady = found.steadiness("speedup", fastest)
    text = [
        f"Fastest: the shape {fastest} with a {kind} of {found.interval('speedup', fastest):.2f} over plain decoding"
        f"{_compared(found, 'speedup', fastest, '; ')}.",
        "It is chosen and judged on the same texts, which favours it a little"
        + ("" if np.isnan(steady) else f"; it is the best in {steady:.0%} of the resampled sets of prompts")
        + ".",
        _how(times, about, repeats),
    ]
    mean = kind.capitalize()
    panels: dict[str, tuple[pd.DataFrame, str, Shape | None]] = {mean: (found.shapes, "speedup", fastest)}
    if repeats > 1:
        text.append(
            "The intervals say how far other prompts would move a speedup, the standard deviation over repeats "
            f"({found.value('deviation', fastest):.2f} for the fastest shape) how far timing again would."
        )
        panels = {
            f"{mean}, mean of {counted(repeats, 'repeat')}": (found.shapes, "speedup", fastest),
            "Standard deviation over the repeats of the timing": (found.shapes, "deviation", None),
        }
    missing = int(found.shapes["speedup"].isna().sum())
    if missing:
        text.append(f"{counted(missing, 'shape')} could not be timed and have no speedup (grey).")
    figure = _maps(
        panels,
        title=f"{mean} over k rows of width w\n{about.title}",
        caption=f"{prompts} of {about.prompts}. Rounds by replay, seconds {about.source}; over plain decoding. "
        f"{_frames('the fastest')}",
    )
    tables = [(f"{mean} with 95% intervals over {prompts}", _table(found, "speedup"))]
    categories = _by_category(found)
    if len(categories):
        tables.append((f"Best shapes by category of at least {_LEAST} prompts, without intervals", categories))
    return Section(mean, tuple(text), tuple(tables), (("speedup", figure),))


def _how(times: pd.DataFrame, about: About, repeats: int) -> str:
    if about.simulated:
        return (
            "All seconds, of calls, drafts and commits alike, come from a cost model: nothing was timed, and no live "
            "run exists to check them."
        )
    contexts = ", ".join(f"{context:,}" for context in sorted(times["context"].unique()))
    calls = int(times.groupby(["k", "w", "context"])["call"].nunique().max())
    note = (
        f"Seconds of a round: the call from t(k, w, context) of every shape behind {contexts} cached tokens "
        f"({counted(calls, 'call')} each). Between these, time is on straight lines in tokens evaluated and in "
        "context, since drafts whose rows begin alike are smaller than their shape. The time of drafting, accepting "
        "and committing comes from short live runs in five shapes, on straight lines in draft nodes."
    )
    late = times["missing"] == "time"
    if late.any():
        note += f" {late.sum():,} of {len(times):,} calls were not made because study.seconds ran out."
    return note + (f" {counted(repeats, 'repeat')} of all timing." if repeats > 1 else "")


# Whole runs -----------------------------------------------------------------------------------------


def plus_minus(mean: float, deviation: float) -> str:
    """Print a mean with the standard deviation of what it is the mean of, which is left out where it is not known."""
    return f"{mean:.2f}" + ("" if np.isnan(deviation) else f" ± {deviation:.2f}")


def _whole(whole: pd.DataFrame, fastest: Shape, about: About) -> Section:
    found = whole_runs(whole, about.replicates, about.seed)
    runs, streams = int(found.shapes["runs"].max()), int(whole["stream"].nunique())
    lines = found.shapes.to_dict("records")
    speedups = [plus_minus(line["speedup"], line["deviation"]) for line in lines]
    said = [
        f"({line['k']}, {line['w']}) {shown} at {line['tokens']:.2f} tokens per call"
        for line, shown in zip(lines, speedups, strict=True)
    ]
    answer = f"Speedup of {counted(runs, 'whole run')} of {counted(streams, 'text')}: {'; '.join(said)}"
    answer += "." if runs == 1 else ", mean ± standard deviation of the runs."
    text = [answer]
    if found.lead is not None:
        verdict = ""
        if found.lead.known:
            better = "is faster beyond chance" if found.lead.low > 0 else "is slower beyond chance"
            none = "does not differ beyond chance" if found.lead.low <= 0 <= found.lead.high else better
            verdict = f": the shape chosen {none} on other prompts"
        text.append(f"The first leads by {found.lead:.2f} (paired by text){verdict}.")
    text.append(
        f"The shape {fastest} was chosen by its predicted speedup on the same texts. Each text is decoded in all "
        "shapes and plainly in turn; seconds are those of decoding, prefill apart."
    )
    shown = pd.DataFrame(
        {
            "shape": _names(found.shapes),
            "tokens per call": found.shapes["tokens"].map("{:.3f}".format),
            "speedup, mean ± deviation of the runs": speedups,
            "95% interval over prompts": [
                "–" if np.isnan(line["low"]) else f"{line['low']:.2f} to {line['high']:.2f}" for line in lines
            ],
            "texts as replayed": found.shapes["identical"].map("{:.0%}".format),
        }
    )
    caption = f"{counted(runs, 'whole run')} of {counted(streams, 'text')} of {about.prompts}"
    return Section("Whole runs", tuple(text), ((caption, shown),))


# Live runs ------------------------------------------------------------------------------------------


def _live(check: pd.DataFrame, live: pd.DataFrame, about: About) -> Section:
    dtype, streams = str(live["dtype"].iloc[0]), int(check["streams"].max())
    repeats = int(live["repeat"].nunique())
    same, of = int(check["same_rounds"].sum()), int(check["streams"].sum())
    worst = check.loc[check["error"].abs().idxmax()]
    rounds = (
        f"In {same} of {of} cases (a text in a corner shape) live decoding took exactly as many rounds as the replay"
    )
    if same == of:
        rounds += ": tokens per call are the same."
    elif dtype in _EXACT:
        rounds += f"; in {dtype} it should have in all, and did not: a fault."
    else:
        rounds += f"; in {dtype} rounding can change a token where two are nearly as likely, in float32 it does not."
    spread = check["deviation"].max()
    text = (
        rounds,
        f"Predicted speedups are off by {worst['error']:+.1%} at worst, at ({int(worst['k'])}, {int(worst['w'])}): "
        f"{worst['speedup_predicted']:.2f} predicted, {worst['speedup_measured']:.2f} live"
        + ("." if np.isnan(spread) else f"; the standard deviation over live repeats is at most {spread:.2f}."),
    )
    measured = zip(check["speedup_measured"], check["deviation"], strict=True)
    shown = pd.DataFrame(
        {
            "shape": _names(check),
            "tokens per call: replayed": check["tokens_predicted"].map("{:.3f}".format),
            "tokens per call: live": check["tokens_measured"].map("{:.3f}".format),
            "speedup: predicted": check["speedup_predicted"].map("{:.2f}".format),
            "speedup: live": [plus_minus(mean, deviation) for mean, deviation in measured],
            "error": check["error"].map("{:+.1%}".format),
        }
    )
    with style.styled():
        figure, axes = style.new_figure(
            f"Predicted and live speedup in the corner shapes\n{about.title}",
            f"{counted(streams, 'prompt')} of {about.prompts}, {counted(repeats, 'repeat')} interleaved with plain "
            "decoding; bars: standard deviation over repeats. Predictions are for the same texts.",
            height=4.2,
        )
        places = np.arange(len(check))
        pictures.level(axes, 1)
        axes.plot(places - 0.08, check["speedup_predicted"], linestyle="none", marker="o", markersize=9,
                  fillstyle="none", markeredgewidth=2, color=style.BLUE, label="predicted")  # fmt: skip
        axes.errorbar(places + 0.08, check["speedup_measured"], yerr=check["deviation"].fillna(0.0), linestyle="none",
                      marker="D", color=style.ORANGE, label="live")  # fmt: skip
        axes.set_xticks(places, _names(check))
        axes.set(xlabel="shape (k, w)", ylabel="speedup", xlim=(-0.6, len(check) - 0.4), ylim=(0, None))
        style.legend_above(axes, 2)
    caption = f"{counted(streams, 'text')} decoded live, {counted(repeats, 'repeat')}"
    return Section("Live runs in the corners", text, ((caption, shown),), (("live", figure),))


def _names(check: pd.DataFrame) -> list[str]:
    return [f"({k}, {w})" for k, w in zip(check["k"], check["w"], strict=True)]


# Pictures -------------------------------------------------------------------------------------------


def _frames(best: str) -> str:
    return f"Frame: {best}; dashed: the usual {USUAL}."


@style.in_style
def _maps(panels: Mapping[str, tuple[pd.DataFrame, str, Shape | None]], *, title: str, caption: str) -> Figure:
    """Draw one map below the other, with values in the cells; a shape without a value is grey.

    Args:
        panels: title of a panel -> the shapes, the column that it shows, and the shape with a frame. The usual shape
            has a dashed frame where it is part of the grid.
    """
    grids = {name: shapes.pivot(index="k", columns="w", values=column) for name, (shapes, column, _) in panels.items()}
    rows = [max(2, len(values)) for values in grids.values()]
    height = 1.5 + sum(0.75 + 0.42 * count for count in rows)
    figure, axes = style.new_panels(title, caption, height, rows=len(panels), height_ratios=rows)
    for each, (name, values) in zip(axes[:, 0], grids.items(), strict=True):
        scale = pictures.scale_of(values)
        pictures.heat_map(each, values, scale)
        for (row, column), value in np.ndenumerate(values.to_numpy(dtype=float)):
            if np.isfinite(value):
                text = f"{value:.2f}" if values.max(axis=None) >= 0.5 else f"{value:.3f}".removeprefix("0")
                each.text(column, row, text, ha="center", va="center", fontsize=9.5,
                          color=style.BLACK if scale(value) > 0.47 else "white")  # fmt: skip
        pictures.frame(each, values, panels[name][2])
        pictures.frame(each, values, USUAL, dashed=True)
        each.set_title(name, fontsize=11, loc="left")
        each.set_ylabel("k, rows")
    axes[-1, 0].set_xlabel("w, draft tokens in a row")
    return figure
