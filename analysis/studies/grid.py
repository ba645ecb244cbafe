"""Study `grid`: which shape, k rows of w tokens, is fastest, what it gains over the usual one, and whether live runs
agree with what was predicted.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import ReplayedSpeedups, compare, curves_of, finite, interval, listed, metrics_of, printed
from ..cost.round_seconds import repeats_of, stream_seconds
from ..figures import pictures, style
from ..intervals import ANY, FEWEST, Interval, plus_minus
from ..sections import About, Findings, Section, Tables, counted, register

Shape = tuple[int, int]  # k rows of w tokens each

USUAL: Shape = (10, 10)  # The shape of N-Grammys (2411.03786)


@register("grid", overlay="ngrammys_grid")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables. Metrics best_k, best_w: the fastest shape; `whole.*`: whole runs of it (best) and 10x10."""
    live, whole = tables["live"], tables["whole"]
    found = grid(tables["replay"], tables["block_times"], tables["host_times"], about.replicates, about.seed)
    fastest, longest = best(found, "speedup"), best(found, "tokens")
    most, prompts = found.line(*longest), counted(found.compared.prompts, "prompt")
    enough = "No shape gains anything over plain decoding."
    if most["tokens"] > 1:
        near = found.cells[found.cells["tokens"] - 1 >= 0.9 * (most["tokens"] - 1)].sort_values("nodes").iloc[0]
        enough = (
            f"Nine tenths of its gain over plain decoding come with ({int(near['k'])}, {int(near['w'])}): "
            f"{near['tokens']:.2f} tokens per call from {near['nodes']:.0f} nodes a round, where the best has "
            f"{most['nodes']:.0f}."
        )
    text = (
        f"Most tokens per call: {interval(most, 'tokens'):.2f} with the shape {longest}"
        f"{_compared(found, 'tokens', longest, ', ')}.",
        enough,
        *about.origin(found.texts, tables["skipped"]),
    )
    figure = _maps(
        {"Tokens per call of the target, its own token included": (found.cells, "tokens", longest)},
        title=f"Tokens per call over k rows of width w\n{about.title}",
        caption=f"{prompts} of {about.prompts}; greedy texts replayed, which is exact. Frame: the most;",
    )
    caption = f"Tokens per call with 95% intervals over {prompts}"
    shown = ((caption, _table(found, "tokens")),)
    per_call = Section("Tokens per call", text, shown, (("tokens_per_call", figure),))
    sections = [per_call, _speed(found, fastest, tables["block_times"], about)]
    metrics: dict[str, float] = {
        "grid/best_k": fastest[0],
        "grid/best_w": fastest[1],
        "grid/speedup.best.tokens_per_call": found.line(*fastest)["tokens"],
        "grid/best_tokens_per_call": found.line(*longest)["tokens"],
        "grid/best_tokens_per_call.k": longest[0],
        "grid/best_tokens_per_call.w": longest[1],
        **interval(found.line(*fastest), "speedup").as_metrics("grid/speedup.best"),
    }
    if found.compared.place(*USUAL) is not None:
        usual = found.line(*USUAL)
        metrics |= {"grid/speedup.10x10": usual["speedup"], "grid/tokens_per_call.10x10": usual["tokens"]}
        metrics |= found.lead("speedup", fastest, USUAL).as_metrics("grid/speedup.lead")
    if len(whole):
        shapes, lead = whole_runs(whole, about.replicates, about.seed)
        sections.append(_whole(shapes, lead, int(whole["stream"].nunique()), fastest, about))
        usual_runs = shapes[(shapes["k"] == USUAL[0]) & (shapes["w"] == USUAL[1])]
        for name, lines in (("best", shapes.iloc[:1]), ("10x10", usual_runs)):
            metrics |= metrics_of(lines, f"grid/whole.{name}.speedup", {"": "speedup"})
            plain = {"deviation": "deviation", "tokens_per_call": "tokens"}
            metrics |= metrics_of(lines, f"grid/whole.{name}.{{what}}", plain, bounds=False)
        if lead is not None:
            metrics |= lead.as_metrics("grid/whole.lead")
    check = live_check(found.texts, live)
    if len(check):
        sections.append(_live(check, live, about))
        metrics["grid/live.same_rounds"] = check["same_rounds"].sum() / check["streams"].sum()
        metrics["grid/live.worst_error"] = check["error"].abs().max()
    quantities = {"tokens_per_call": "tokens", "speedup": "speedup"}
    curves = curves_of(found.cells, "curve/grid/{what}.k{k}", ["k"], "w", quantities)
    return Findings(tuple(sections), finite(metrics), curves)


def grid(
    replay: pd.DataFrame, block_times: pd.DataFrame, host_times: pd.DataFrame, replicates: int, seed: int
) -> ReplayedSpeedups:
    """Compute tokens per call and speedup by k and w from the study's tables; seconds are means of the repeats, and
    cells have `deviation`, the standard deviation of the speedup over repeats; NaN for one repeat.
    """
    seconds, plain = stream_seconds(replay, repeats_of(block_times, host_times))
    texts = replay.assign(seconds=seconds.mean(axis=0), plain_s=plain.mean(axis=0))
    shapes = [texts["k"], texts["w"]]
    untimed = texts["seconds"].isna().groupby(shapes).transform("any")
    texts.loc[untimed, "seconds"] = np.nan  # a speedup over some of the texts would not compare with the others
    found = ReplayedSpeedups(texts, ["k", "w"], "w", replicates, seed)
    lines = (pd.DataFrame(each.T, texts.index) for each in (seconds, plain))  # a column for each repeat
    mine, base = (each.groupby(shapes).sum(skipna=False) for each in lines)
    found.cells["deviation"] = (base / mine).std(axis=1, skipna=False).to_numpy()
    return found


def best(found: ReplayedSpeedups, name: str) -> Shape:
    """Return the shape with most `tokens` or `speedup`; of equal ones the smallest."""
    line = found.cells.loc[found.cells[name].idxmax()]
    return int(line["k"]), int(line["w"])


def steadiness(found: ReplayedSpeedups, name: str, shape: Shape) -> float:
    """Return the share of replicates in which `shape` is best: low where many are as good; NaN from few prompts."""
    values = found.statistics[name][1:]
    places = np.nanargmax(values[np.isfinite(values).any(axis=1)], axis=1)
    return float(np.mean(places == found.place(*shape))) if len(places) else float("nan")


def _live_shapes(live: pd.DataFrame) -> pd.DataFrame:
    """Return, by k and w: runs, tokens (per call), together (speedup of all runs), speedup and deviation (mean and
    standard deviation of the runs' speedups; NaN for one run), identical (share of texts as replayed).
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
    over repeats; NaN for one), error (predicted over measured, less 1). `texts` are those of `grid`.
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


def whole_runs(whole: pd.DataFrame, replicates: int, seed: int) -> tuple[pd.DataFrame, Interval | None]:
    """Return whole live runs of all prompts, a line for each shape, the usual one last: those of `_live_shapes`, k, w,
    speedup_low and speedup_high (95% prompt-bootstrap interval of the speedup of all runs together). And how much
    larger the first shape's speedup is than the second's, paired; None of one shape. `whole` is not empty.
    """
    compared = compare(whole, ["k", "w"], ["seconds"], replicates, seed)
    seconds = compared.values["seconds"]
    with np.errstate(divide="ignore", invalid="ignore"):
        speedups = compared.beside(seconds, k=1, w=0) / seconds
    drafted = whole[whole["w"] > 0]
    # The fastest stands first, whatever the order of the runs was.
    order = sorted(dict.fromkeys(zip(drafted["k"], drafted["w"], strict=True)), key=lambda shape: shape == USUAL)
    columns = [speedups[:, compared.place(*shape)] for shape in order]
    bounds = [compared.interval(column) for column in columns]
    ends = {"speedup_low": [each.low for each in bounds], "speedup_high": [each.high for each in bounds]}
    lead = compared.interval(columns[0] - columns[1], ANY) if len(order) > 1 else None
    return _live_shapes(whole).loc[order].reset_index().assign(**ends), lead


def _compared(found: ReplayedSpeedups, name: str, chosen: Shape, joint: str) -> str:
    """Set the best shape against the usual one; empty where it is that one, or that one was not part of the grid."""
    if chosen == USUAL or found.compared.place(*USUAL) is None:
        return ""
    lead = found.lead(name, chosen, USUAL)
    verdict = ": the best is better beyond chance" if lead.low > 0 else ": no difference beyond chance"
    if name == "speedup" and lead.low > 0:
        timing = np.hypot(*(found.line(*shape)["deviation"] for shape in (chosen, USUAL)))
        verdict += " of prompts, but repeats of the timing differ by more" * bool(timing > lead.estimate)
    return (
        f"{joint}{USUAL} has {interval(found.line(*USUAL), name):.2f}, the difference being {lead:.2f} (paired)"
        f"{verdict if lead.known else ''}"
    )


def _table(found: ReplayedSpeedups, name: str) -> pd.DataFrame:
    """Return values with their intervals: w down, k across."""
    shown = found.cells.assign(text=printed(found.cells, name, ".2f"))
    return shown.pivot(index="w", columns="k", values="text").rename(columns="k = {}".format).reset_index()


def _speed(found: ReplayedSpeedups, fastest: Shape, times: pd.DataFrame, about: About) -> Section:
    line, repeats = found.line(*fastest), int(times["repeat"].nunique())
    prompts, kind = counted(found.compared.prompts, "prompt"), "simulated speedup" if about.simulated else "speedup"
    mean, steady = kind.capitalize(), steadiness(found, "speedup", fastest)
    how = (
        "All seconds, of calls, drafts and commits alike, come from a cost model: nothing was timed, and no live run "
        "exists to check them."
    )
    if not about.simulated:
        contexts = ", ".join(f"{context:,}" for context in sorted(times["context"].unique()))
        calls, late = int(times.groupby(["k", "w", "context"])["call"].nunique().max()), times["missing"] == "time"
        how = (
            f"Seconds of a round: the call from t(k, w, context) of every shape behind {contexts} cached tokens "
            f"({counted(calls, 'call')} each). Between these, time is on straight lines in tokens evaluated and in "
            "context, since drafts whose rows begin alike are smaller than their shape. The time of drafting, "
            "accepting and committing comes from short live runs in five shapes, on straight lines in draft nodes."
        )
        if late.any():
            how += f" {late.sum():,} of {len(times):,} calls were not made because study.seconds ran out."
    text = [
        f"{'Fastest' if line['speedup'] > 1 else 'Least slow'}: the shape {fastest} with a {kind} of "
        f"{interval(line, 'speedup'):.2f} over plain decoding{_compared(found, 'speedup', fastest, '; ')}.",
        "It is chosen and judged on the same texts, which favours it a little"
        + ("" if np.isnan(steady) else f"; it is the best in {steady:.0%} of the resampled sets of prompts")
        + ".",
        how,
    ]
    panels: dict[str, tuple[pd.DataFrame, str, Shape | None]] = {mean: (found.cells, "speedup", fastest)}
    if repeats > 1:
        text.append(
            "The intervals say how far other prompts would move a speedup, the standard deviation over "
            f"{counted(repeats, 'repeat')} of all timing ({line['deviation']:.2f} for the fastest shape) how far "
            "timing again would."
        )
        panels["Standard deviation over the repeats of the timing"] = (found.cells, "deviation", None)
    missing = int(found.cells["speedup"].isna().sum())
    if missing:
        text.append(f"{counted(missing, 'shape')} could not be timed and have no speedup (grey).")
    figure = _maps(
        panels,
        title=f"{mean} over k rows of width w\n{about.title}",
        caption=f"{prompts} of {about.prompts}. Rounds by replay, seconds {about.source}; over plain decoding. "
        "Frame: the fastest;",
    )
    tables = [(f"{mean} with 95% intervals over {prompts}", _table(found, "speedup"))]
    # The best shapes of every category of enough prompts, where there are two such categories.
    categories = []
    for category, part in found.texts.groupby("category"):
        if part["prompt"].nunique() >= FEWEST:
            totals = part.groupby(["k", "w"])[["tokens", "rounds", "seconds", "plain_s"]].sum()
            tokens = totals["tokens"] / totals["rounds"]
            speed = totals["plain_s"] / totals["seconds"].replace(0.0, np.nan)
            line = {"category": category, "prompts": part["prompt"].nunique(), "fastest shape": str(speed.idxmax())}
            line |= {"speedup": f"{speed.max():.2f}", "its tokens per call": f"{tokens[speed.idxmax()]:.2f}"}
            categories.append(line | {"most tokens per call": f"{tokens.max():.2f} at {tokens.idxmax()}"})
    if len(categories) > 1:
        caption = f"Best shapes by category of at least {FEWEST} prompts, without intervals"
        tables.append((caption, pd.DataFrame(categories)))
    return Section(mean, tuple(text), tuple(tables), (("speedup", figure),))


def _whole(shapes: pd.DataFrame, lead: Interval | None, texts: int, fastest: Shape, about: About) -> Section:
    runs, names = int(shapes["runs"].max()), list(map(str, zip(shapes["k"], shapes["w"], strict=True)))
    speedups = [plus_minus(*pair) for pair in zip(shapes["speedup"], shapes["deviation"], strict=True)]
    lines = zip(names, speedups, shapes["tokens"], strict=True)
    said = "; ".join(f"{name} {speedup} at {tokens:.2f} tokens per call" for name, speedup, tokens in lines)
    answer = f"Speedup of {counted(runs, 'whole run')} of {counted(texts, 'text')}: {said}"
    text = [answer + ("." if runs == 1 else ", mean ± standard deviation of the runs.")]
    if lead is not None:
        verdict = ""
        if lead.known:
            side = {-1: "is slower", 0: "does not differ", 1: "is faster"}[lead.side]
            verdict = f": the shape chosen {side} beyond chance on other prompts"
        text.append(f"The first less the second: {lead.estimate:+.2f} (paired by text){verdict}.")
    text.append(
        f"The shape {fastest} was chosen by its predicted speedup on the same texts. Each text is decoded in all "
        "shapes and plainly in turn; seconds are those of decoding, prefill apart."
    )
    columns = {"shape": "shape", "tokens per call": "tokens:.3f", "speedup, mean ± deviation of the runs": "runs",
               "95% interval over prompts": "speedup:.2f", "texts as replayed": "identical:.0%"}  # fmt: skip
    caption = f"{counted(runs, 'whole run')} of {counted(texts, 'text')} of {about.prompts}"
    shown = listed(shapes.assign(shape=names, runs=speedups), columns)
    return Section("Whole runs", tuple(text), ((caption, shown),))


def _live(check: pd.DataFrame, live: pd.DataFrame, about: About) -> Section:
    dtype, streams = str(live["dtype"].iloc[0]), int(check["streams"].max())
    repeats, spread = int(live["repeat"].nunique()), check["deviation"].max()
    names = list(map(str, zip(check["k"], check["w"], strict=True)))
    same, of = int(check["same_rounds"].sum()), int(check["streams"].sum())
    worst = check.loc[check["error"].abs().idxmax()]
    end = f"; in {dtype} rounding can change a token where two are nearly as likely, in float32 it does not."
    if same == of:
        end = ": tokens per call are the same."
    elif dtype in ("float32", "float64"):
        end = f"; in {dtype} it should have in all, and did not: a fault."
    text = (
        f"In {same} of {of} cases (a text in a corner shape) live decoding took exactly as many rounds as the replay"
        f"{end}",
        f"Predicted speedups are off by {worst['error']:+.1%} at worst, at ({int(worst['k'])}, {int(worst['w'])}): "
        f"{worst['speedup_predicted']:.2f} predicted, {worst['speedup_measured']:.2f} live"
        + ("." if np.isnan(spread) else f"; the standard deviation over live repeats is at most {spread:.2f}."),
    )
    measured = [plus_minus(*pair) for pair in zip(check["speedup_measured"], check["deviation"], strict=True)]
    columns = {"shape": "shape", "tokens per call: replayed": "tokens_predicted:.3f",
               "tokens per call: live": "tokens_measured:.3f", "speedup: predicted": "speedup_predicted:.2f",
               "speedup: live": "live", "error": "error:+.1%"}  # fmt: skip
    places = check.assign(before=np.arange(len(check)) - 0.08, behind=np.arange(len(check)) + 0.08)
    places["speedup_measured_low"] = check["speedup_measured"] - check["deviation"]
    places["speedup_measured_high"] = check["speedup_measured"] + check["deviation"]
    lines = {
        "predicted": pictures.over(places, "before", "speedup_predicted", style.Look(style.BLUE, "o", "none")),
        "live": pictures.over(places, "behind", "speedup_measured", style.Look(style.ORANGE, "D", "none")),
    }
    figure = pictures.chart(
        pictures.Panel("speedup", lines, (1.0, ""), zero=True),
        title=f"Predicted and live speedup in the corner shapes\n{about.title}",
        caption=f"{counted(streams, 'prompt')} of {about.prompts}, {counted(repeats, 'repeat')} interleaved with plain "
        "decoding; bars: standard deviation over repeats. Predictions are for the same texts.",
        xlabel="shape (k, w)",
        height=4.2,
    )
    figure.axes[0].set_xticks(range(len(check)), names)
    caption = f"{counted(streams, 'text')} decoded live, {counted(repeats, 'repeat')}"
    shown = listed(check.assign(shape=names, live=measured), columns)
    return Section("Live runs in the corners", text, ((caption, shown),), (("live", figure),))


@style.in_style
def _maps(panels: Mapping[str, tuple[pd.DataFrame, str, Shape | None]], *, title: str, caption: str) -> Figure:
    """Draw one map below the other, with values in the cells; what has none is grey. panels: title -> shapes, the
    column shown, and the shape with a frame; the usual shape has a dashed one where it is part of the grid.
    """
    grids = {name: shapes.pivot(index="k", columns="w", values=column) for name, (shapes, column, _) in panels.items()}
    rows = [max(2, len(values)) for values in grids.values()]
    height = 1.5 + sum(0.75 + 0.42 * count for count in rows)
    caption = f"{caption} dashed: the usual {USUAL}."
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
