"""Study `phase_transition`: up to how many tokens verification is nearly free, where a call turns from reading to
arithmetic, and what context and evaluation change.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.optimize import isotonic_regression

from ..comparisons import finite
from ..figures import pictures, style
from ..intervals import plus_minus
from ..sections import About, Findings, Section, Tables, counted, register

Shape = tuple[int, int]  # k rows of w draft tokens each

UNIT: Shape = (1, 1)  # its call is the unit of a slow-down, as in N-Grammys (2411.03786), whose usual shape is 10 x 10
PLAIN, USUAL = (1, 0), (10, 10)
_SHOWN = ((1, 0), (1, 1), (1, 4), (1, 10), (2, 2), (5, 5), (10, 1), (10, 4), USUAL, (25, 14), (32, 15))
_ZOOM = 64  # tokens: where single tiles can be told apart
_FLAT = 1.1  # slow-down over all sizes below which nothing can be said about where it begins to grow
_LEVELS = (1.1, 1.5, 2, 4, 8, 16, 32)  # of the lines of equal slow-down
_CACHES = {
    "packed": "packed into one sequence over one cache: 1 + k w of them",
    "rows": "in a batch of k rows, each with a root and a copy of the cache: k (w + 1) of them",
}
_SHORT = {"packed": "packed", "rows": "in rows"}
_NO_WIDTH = {"packed": "at w = 0, whatever k, a call is a plain step", "rows": "at w = 0 a call evaluates k roots"}


@register("phase_transition")
def findings(tables: Tables, about: About) -> Findings:
    """Read `block_times` and `intensity`. Single figures are those of the first evaluation that was timed."""
    ways = {str(name): times for name, times in tables["block_times"].groupby("evaluation", sort=False)}
    cells = {name: slowdowns(times) for name, times in ways.items()}
    first = next(iter(ways))
    times, mine = ways[first], cells[first]
    intensity = tables["intensity"]
    intensity = intensity[intensity["evaluation"] == first]
    contexts = sorted(int(context) for context in mine["context"].unique())
    middle = contexts[len(contexts) // 2]  # at which single figures are given
    grown = {
        name: {context: Growth(each, context) for context in sorted(set(cells[name]["context"]))}
        for name, each in ways.items()
    }
    sections = (
        _slowdown_section(tables["block_times"], cells, grown[first][middle], middle, about),
        _bound_section(times, grown, intensity, middle, about),
        _context_section(times, cells, contexts),
    )
    ridge = roofline_ridge(intensity, middle)
    metrics, curves = {"ridge.roofline": np.nan if ridge is None else ridge}, {}
    ratios = rows_over_packed(cells)
    for context in contexts:
        metrics[f"rows_over_packed.10x10.{context}"] = _cell(ratios, USUAL, context, "ratio")
    for name, by_context in grown.items():  # what names no context is that of the middle one
        stem, at = "" if name == first else f"{name}.", by_context[middle]
        metrics |= {f"{stem}ridge": at.knee() or np.nan, f"{stem}context": middle}
        for end, each in [("", at), *((f".{context}", each) for context, each in by_context.items())]:
            metrics[f"{stem}tokens_within_10pct{end}"] = each.within(1.1)
            metrics[f"{stem}tokens_within_50pct{end}"] = each.within(1.5)
        for context, each in by_context.items():
            usual = _cell(cells[name], USUAL, context)
            metrics[f"{stem}t11_ms.{context}"] = 1e3 * _cell(cells[name], UNIT, context, "seconds")
            metrics[f"{stem}slowdown.10x10.{context}"] = usual
            metrics[f"{stem}over_step.10x10.{context}"] = usual / _cell(cells[name], PLAIN, context)
            points = dict(zip(each.tokens.tolist(), each.slowdown.tolist(), strict=True))
            curves[f"curve/slowdown/{stem}{context}"] = points
    return Findings(sections, {f"transition/{key}": value for key, value in finite(metrics).items()}, curves)


def slowdowns(times: pd.DataFrame) -> pd.DataFrame:
    """Return t(k, w, context) / t(1, 1, context) by cell: k, w, context, rows_evaluated (tokens), calls, seconds (mean
    of the calls), slowdown, spread (standard deviation of the calls over their mean; NaN for a single call).

    Cells that were not timed, and contexts without t(1, 1), are left out. `times` are the study's `block_times`.
    """
    timed = times.dropna(subset="seconds")
    groups = timed.groupby(["context", "k", "w", "rows_evaluated"])["seconds"]
    cells = groups.agg(calls="size", seconds="mean", deviation="std").reset_index()
    units = _of_shape(cells, UNIT).set_index("context")["seconds"]
    cells = cells[cells["context"].isin(units.index)].reset_index(drop=True)
    cells = cells.assign(slowdown=cells["seconds"] / cells["context"].map(units))
    return cells.assign(spread=cells.pop("deviation") / cells["seconds"])


class Growth:
    """The growth of the slow-down with the tokens evaluated, of any shape, at a context where t(1, 1) was timed.

    Attributes:
        tokens: sizes, ascending.
        slowdown: median over all calls of each size, over that of t(1, 1): one disturbed call does not move it.
        low, high: quartiles of the calls of each size, over the same.
        shapes: number of shapes of each size.
        fitted: the values closest to the medians that never fall from a size to the next.
    """

    def __init__(self, times: pd.DataFrame, context: int) -> None:
        timed = times.dropna(subset="seconds")
        timed = timed[timed["context"] == context]
        by_size, unit = timed.groupby("rows_evaluated"), _of_shape(timed, UNIT)["seconds"].median()
        quartiles = by_size["seconds"].quantile([0.25, 0.5, 0.75]).unstack() / unit
        self.tokens = quartiles.index.to_numpy()
        self.low, self.slowdown, self.high = quartiles.to_numpy().T
        self.shapes = (by_size["k"].size() / by_size["call"].nunique()).to_numpy()
        self.fitted = isotonic_regression(self.slowdown, weights=self.shapes).x

    def within(self, limit: float) -> int:
        """Return the largest size up to which no call costs more than `limit` times t(1, 1)."""
        below = self.tokens[self.fitted <= limit]
        return int(below[-1]) if len(below) else 0

    def steps(self, largest: int, least: float = 0.08) -> list[tuple[int, int, float]]:
        """Return rises between neighbouring numbers of tokens up to `largest`, as (from, to, relative size): those by
        more than `least`, and by more than the middle halves of their calls scatter. A further tile shows so.
        """
        rises = self.fitted[1:] / self.fitted[:-1] - 1
        clear = (rises > least) & (self.low[1:] > self.high[:-1]) & (np.diff(self.tokens) == 1)
        places = np.flatnonzero(clear & (self.tokens[1:] <= largest))
        return [(int(self.tokens[at]), int(self.tokens[at + 1]), float(rises[at])) for at in places]

    def knee(self) -> float | None:
        """Return the measured end of the memory-bound region: the n of the model that is flat up to n and then a
        straight line (least squares of relative residuals). The smallest size where there is no flat part; None where
        the slow-down never grows.
        """
        if self.fitted[-1] < _FLAT * self.fitted[0] or len(self.tokens) < 3:
            return None
        weights = np.sqrt(self.shapes) / self.slowdown
        target = self.slowdown * weights

        def misfit(knee: float) -> float:
            bent = np.maximum(0.0, self.tokens - knee)
            design = np.stack([np.ones(len(self.tokens)), bent], axis=1) * weights[:, None]
            found, *_ = np.linalg.lstsq(design, target, rcond=None)
            return float(np.sum((design @ found - target) ** 2))

        candidates = np.unique(np.concatenate([self.tokens[:-1], np.geomspace(self.tokens[0], self.tokens[-2], 400)]))
        return float(min(candidates, key=misfit))


def shape_effect(times: pd.DataFrame, context: int) -> tuple[float, int] | None:
    """Compare shapes of equally many tokens: return the median over sizes of t with most rows over t with fewest, and
    how many sizes have shapes whose numbers of rows differ by a factor of 2 or more; None where none has.
    """
    timed = times.dropna(subset="seconds")
    timed = timed[(timed["context"] == context) & (timed["w"] > 0)]
    cells = timed.groupby(["rows_evaluated", "k"])["seconds"].median().reset_index()
    ends = [(same.iloc[0], same.iloc[-1]) for _, same in cells.groupby("rows_evaluated")]  # fewest rows, most rows
    ratios = [most["seconds"] / fewest["seconds"] for fewest, most in ends if most["k"] >= 2 * fewest["k"]]
    return (float(np.median(ratios)), len(ratios)) if ratios else None


def roofline_ridge(intensity: pd.DataFrame, context: int) -> float | None:
    """Return n* = (W + KV) F / (2 P BW) of one cache (theory.md 7.1), the tokens at which a call without any overhead
    would leave the memory-bound region; None without a table of products.
    """
    step = _of_shape(intensity[intensity["context"] == context], PLAIN)
    if step.empty:
        return None
    return float(step["threshold"].iloc[0] * step["bytes"].sum() / step["flops"].sum())


def product_lines(intensity: pd.DataFrame, context: int) -> dict[str, pd.DataFrame]:
    """Return operations per byte at `context` by product, or the names of those that move and compute alike: size (of
    the first), rows_evaluated (ascending), low and high (over shapes of that many tokens), threshold.
    """
    groups: dict[tuple[float, ...], tuple[list[str], pd.DataFrame]] = {}
    at = intensity[intensity["context"] == context]
    for (name, inputs, outputs), part in at.groupby(["product", "inputs", "outputs"], sort=False):
        lines = part.groupby("rows_evaluated").agg(
            low=("operations_per_byte", "min"), high=("operations_per_byte", "max"), threshold=("threshold", "first")
        )
        lines["size"] = f"{inputs or 'cache'} x {outputs or 'cache'}"
        # A matrix and its transpose are alike too.
        names, _ = groups.setdefault(tuple(lines["low"].round(9)), ([], lines.reset_index()))
        names.append(str(name))
    return {", ".join(names): lines for names, lines in groups.values()}


def rows_over_packed(cells: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the seconds of calls evaluated in rows over those of the same shapes packed, where both were timed: k, w,
    context, ratio. Empty where one of the two evaluations was not timed.
    """
    if not {"rows", "packed"} <= set(cells):
        return pd.DataFrame(columns=["k", "w", "context", "ratio"])
    keys = ["k", "w", "context"]
    both = cells["rows"].merge(cells["packed"], on=keys, suffixes=("", "_packed"))
    return both[keys].assign(ratio=both["seconds"] / both["seconds_packed"])


def _cell(cells: pd.DataFrame, shape: Shape, context: int, column: str = "slowdown") -> float:
    """Return a value of one cell, NaN where it was not timed."""
    found = _of_shape(cells[cells["context"] == context], shape)
    return float(found[column].iloc[0]) if len(found) else float("nan")


def _of_shape(table: pd.DataFrame, shape: Shape) -> pd.DataFrame:
    return table[(table["k"] == shape[0]) & (table["w"] == shape[1])]


def _slowdown_section(
    times: pd.DataFrame, cells: Mapping[str, pd.DataFrame], each: Growth, middle: int, about: About
) -> Section:
    """Write the first section; `each` is the growth of the first evaluation."""
    first, mine = next(iter(cells.items()))
    unit, usual, plain = _cell(mine, UNIT, middle, "seconds"), _cell(mine, USUAL, middle), _cell(mine, PLAIN, middle)
    largest, sizes = int(each.tokens[-1]), [each.within(limit) for limit in (1.1, 1.5)]
    tenth, half = (f"{'at all sizes measured, ' if size == largest else ''}up to {size} tokens" for size in sizes)
    answer = (
        f"With {middle:,} tokens in the cache a call costs at most 10% more than t(1, 1) = {1e3 * unit:.3g} ms "
        f"{tenth}, and at most 50% more {half}"
        + ("." if np.isnan(usual) else f"; the shape (10, 10) takes {usual:.2f} times as long.")
    )
    meaning = (
        "A shape is k rows of w draft tokens after the root, the last committed token; its tokens are evaluated "
        f"{_CACHES[first]}. The slow-down is t(k, w) over t(1, 1), as in N-Grammys (2411.03786)."
    )
    if not np.isnan(plain):
        meaning += f" A plain step of decoding, the call on a single token (1, 0), takes {plain:.2f} of t(1, 1)"
        meaning += "." if np.isnan(usual) else f"; (10, 10) takes {usual / plain:.2f} times as long as that."
    everything = pd.concat(cells.values())
    spread = everything["spread"].dropna()
    scatter = (
        f"; standard deviation over mean {spread.median():.1%} in the median cell, {spread.max():.0%} in the worst"
    )
    evaluated = "; ".join(f"{_CACHES[name]}, and {_NO_WIDTH[name]}" for name in cells)
    figure = _heat_maps(
        cells,
        title=f"Slow-down of a call on k rows of w draft tokens\n{about.title}",
        caption=f"Mean of {_calls(everything)} for each cell{scatter if len(spread) else ''}. w counts draft tokens, "
        f"without the root. Tokens are evaluated {evaluated}. White lines: equal slow-down.",
    )
    tables = []
    for name, part in cells.items():  # of a few shapes that tell most, those that were measured
        shapes = list(part[["k", "w"]].itertuples(index=False, name=None))
        most, said = max(shapes), []
        shown = part[[shape in _SHOWN or shape == most for shape in shapes]]
        for line in shown.itertuples():
            seconds = f" ({1e3 * line.seconds:.3g} ms)" if (line.k, line.w) == UNIT else ""
            said.append(plus_minus(line.slowdown, line.slowdown * line.spread) + seconds)
        wide = shown.assign(said=said).pivot(index=["k", "w", "rows_evaluated"], columns="context", values="said")
        wide = wide.fillna("–").rename(columns="{:,} cached".format).rename_axis(columns=None).reset_index()
        caption = (
            f"t(k, w) / t(1, 1), evaluated {_SHORT[name]}: mean of {_calls(part)} ± their standard deviation; t(1, 1) "
            "in ms"
        )
        tables.append((caption, wide.rename(columns={"rows_evaluated": "tokens"})))
    # Calls that were asked for and not timed are named with the reason.
    reasons = {"context": ("exceed", "what the target can hold"), "memory": ("need", "more memory than there is")}
    asked = times.groupby(["evaluation", "k", "w", "context"])["missing"].first()
    notes = [
        f"{counted(number, 'cell')} of {len(asked):,} {verb}{'s' * (number == 1)} {what}"
        for reason, (verb, what) in reasons.items()
        if (number := int((asked == reason).sum()))
    ]
    late = int((times["missing"] == "time").sum())
    if late:
        notes.append(f"{late:,} of {len(times):,} calls were not made because time (`study.seconds`) ran out")
    text = (answer, meaning, *([f"Left out: {'; '.join(notes)}."] if notes else []))
    return Section("How much longer a call takes", text, tuple(tables), (("slowdown", figure),))


def _calls(cells: pd.DataFrame) -> str:
    least, most = int(cells["calls"].min()), int(cells["calls"].max())
    return counted(most, "call") if least == most else f"{least} to {most} calls"


def _bound_section(
    times: pd.DataFrame, grown: Mapping[str, Mapping[int, Growth]], intensity: pd.DataFrame, middle: int, about: About
) -> Section:
    """Write the second section, on the calls of the first evaluation. Tiles are looked for in packed calls: in rows,
    neighbouring sizes are other shapes, whose copies of the cache make steps of their own.
    """
    mine, tiles = next(iter(grown.values())), grown.get("packed", {}).get(middle)
    products, ridge = product_lines(intensity, middle), roofline_ridge(intensity, middle)
    start, knee = f"With {middle:,} tokens in the cache", mine[middle].knee()
    if knee is None:
        answer = f"{start} the time does not grow with the tokens evaluated, as far as measured."
    elif knee <= mine[middle].tokens[0]:
        answer = f"{start} there is no flat part: every token adds to the time."
    else:
        answer = f"{start} the time is flat up to about {knee:.0f} tokens; from there on every token adds to it."
    sentences = [answer]
    crossed: dict[str, float | None] = {}
    if ridge is not None:
        bound = float(intensity["threshold"].iloc[0])
        sentences[0] += (
            f" At its best this machine does {bound:.3g} operations in the time of reading a byte, so that a call "
            f"without any overhead would leave the memory-bound region at n* = {ridge:.3g} tokens."
        )
        for names, lines in products.items():  # where the bound is reached, between two sizes on a straight line
            above = np.flatnonzero(lines["high"] >= bound)
            ends = lines.iloc[max(0, above[0] - 1) : above[0] + 1] if len(above) else None
            crossed[names] = None if ends is None else float(np.interp(bound, ends["high"], ends["rows_evaluated"]))
        reached = sorted((value, names) for names, value in crossed.items() if value is not None)
        listed = "; ".join(f"{names} from {value:.0f} tokens" for value, names in reached)
        said = [f"Products become bound by arithmetic one by one: {listed}."] if reached else []
        never = [names for names, value in crossed.items() if value is None]
        if never:
            most = int(max(lines["rows_evaluated"].iloc[-1] for lines in products.values()))
            said.append(f"{'; '.join(never)}: bound by memory at all sizes measured, up to {most} tokens.")
        sentences.append(" ".join(said))
    steps = [] if tiles is None else tiles.steps(_ZOOM)
    if steps:
        largest = sorted(sorted(steps, key=lambda step: -step[2])[:4])
        listed = ", ".join(f"{a} to {b} ({rise:+.0%})" for a, b, rise in largest)
        sentences.append(
            f"The time of packed calls climbs in steps where one more token needs a further tile of a kernel; the "
            f"largest up to {_ZOOM} tokens: from {listed}."
        )
    caption = (
        f"Points: median over all calls on so many tokens, {int(times['k'].nunique())} x {int(times['w'].nunique())} "
        "shapes; lines: the closest that never fall. Unit: t(1, 1) at the same context; no intervals."
    )
    if products:
        caption += (
            f" Below: operations per byte of the model's matrix products with {middle:,} cached tokens; above the "
            "dotted line this machine computes a product more slowly than it reads it."
        )
    title = f"Slow-down by tokens evaluated\n{about.title}"
    end = int(max(each.tokens[-1] for each in mine.values()))
    figures = [("slowdown_by_tokens", _by_tokens(mine, products, end, title=title, caption=caption))]
    if mine[middle].tokens[-1] > 2 * _ZOOM:
        zoomed = _by_tokens(mine, products, _ZOOM, title=f"{title}, up to {_ZOOM} tokens", caption=caption)
        figures.append(("slowdown_steps", zoomed))
    shown = []
    for names, lines in products.items():
        line, value = {"product": names, "size": lines["size"].iloc[0]}, crossed.get(names)
        for end, unit in ((lines.iloc[0], "token"), (lines.iloc[-1], "tokens")):
            line[f"{end['rows_evaluated']} {unit}"] = f"{end['high']:.3g}"
        shown.append(line | {"bound by arithmetic from": "–" if value is None else f"{value:.0f} tokens"})
    caption = f"Operations per byte by product, {middle:,} cached tokens"
    tables = ((caption, pd.DataFrame(shown)),) if shown else ()
    return Section("Where a call turns compute-bound", tuple(sentences), tables, tuple(figures))


def _context_section(times: pd.DataFrame, ways: Mapping[str, pd.DataFrame], contexts: list[int]) -> Section:
    short, long = contexts[0], contexts[-1]
    cells, sentences = next(iter(ways.values())), []
    if short == long:
        sentences.append(f"One context was measured, {short:,} tokens: nothing can be said about its effect.")
    else:
        largest = max(cells[["k", "w"]].itertuples(index=False, name=None))
        shape = largest if np.isnan(_cell(cells, USUAL, short)) else USUAL
        low, high = _cell(cells, shape, short), _cell(cells, shape, long)
        units = [1e3 * _cell(cells, UNIT, context, "seconds") for context in (short, long)]
        more = "steeper" if high > 1.05 * low else "flatter" if high < 0.95 * low else "the same"
        sentences.append(
            f"From {short:,} to {long:,} cached tokens t(1, 1) goes from {units[0]:.3g} to {units[1]:.3g} ms, and the "
            f"slow-down of {shape} from {low:.2f} to {high:.2f}: the transition is {more} behind a longer context."
        )
    effect = shape_effect(times, long)
    if effect is not None:
        (ratio, sizes), packed = effect, str(times["evaluation"].iloc[0]) == "packed"
        longer = ratio > 1.05  # as for contexts above
        why = "although all nodes share one cache" if longer else "all nodes share one cache"
        if not packed:
            why = "every further row reads a copy of the cache" if longer else "copies of the cache take no time here"
        sentences.append(
            f"Evaluated {'packed' if packed else 'in rows'}, of shapes with equally many tokens the one with most rows "
            f"takes {ratio:.2f} times as long as the one with fewest (median over {counted(sizes, 'size')}, {long:,} "
            f"cached): {why}."
        )
    ratios = rows_over_packed(ways)
    wide = ratios[(ratios["k"] > 1) & (ratios["w"] > 0)]
    if len(wide):
        shapes = [each for each in ((10, 1), USUAL, (25, 14)) if len(_of_shape(ratios, each))]
        shapes = shapes or [max(wide[["k", "w"]].itertuples(index=False, name=None))]
        listed = "; ".join(
            f"{shape} " + ", ".join(f"{_cell(ratios, shape, context, 'ratio'):.2f}" for context in contexts)
            for shape in shapes
        )
        sentences.append(
            "A call in rows takes so many times as long as one on the same rows packed, behind "
            f"{', '.join(f'{context:,}' for context in contexts)} cached tokens: {listed}. Rows are the cheaper way in "
            f"{(wide['ratio'] < 1).mean():.0%} of the {len(wide)} shapes and contexts with more than one row: each row "
            "reads a cache of its own, but attends to no token of another."
        )
    return Section("What context and evaluation change", tuple(sentences))


@style.in_style
def _heat_maps(cells: Mapping[str, pd.DataFrame], *, title: str, caption: str) -> Figure:
    """Draw slow-down by w and k, a map for each context in one scale, with lines of equal slow-down."""
    maps = [(name, int(context)) for name, part in cells.items() for context in sorted(part["context"].unique())]
    beside = len(cells) > 1
    columns = len(cells) if beside else min(2, len(maps))
    lines = -(-len(maps) // columns)
    places = sorted(maps, key=lambda each: each[1]) if beside else maps
    figure, panels = style.new_panels(title, caption, 1.9 + 2.9 * lines, lines, columns, sharex=True, sharey=True)
    top = max(2.0, *(float(part["slowdown"].max()) for part in cells.values()))
    for panel, (name, context) in zip(panels.flat, places, strict=False):
        part = cells[name]
        grid = part[part["context"] == context].pivot(index="k", columns="w", values="slowdown")
        if 0 in grid and name == "packed":  # a plain step stands for width 0 at every k: the calls are the same
            grid[0] = grid[0].fillna(grid[0].iloc[0])
        # Only the plain step is below 1: the scale begins at the unit.
        image = pictures.heat_map(panel, grid, LogNorm(1, top), ticks=9)
        values = grid.to_numpy()
        levels = [level for level in _LEVELS if np.nanmin(values) < level < np.nanmax(values)]
        if min(values.shape) >= 3 and levels:
            equal = panel.contour(values, levels=levels, colors="white", linewidths=1.3)
            panel.clabel(equal, fmt="{:g}".format, fontsize=10)
        panel.set_title(f"{context:,} cached, {_SHORT[name]}" if beside else f"{context:,} tokens in the cache",
                        fontsize=11)  # fmt: skip
    for panel in panels.flat[len(maps) :]:
        panel.set_axis_off()
    for panel in panels[:, 0]:
        panel.set_ylabel("k, rows")
    for panel in panels[-1]:
        panel.set_xlabel("w, draft tokens in a row")
    ticks = [level for level in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if level <= top]
    bar = figure.colorbar(image, ax=panels, shrink=0.9, pad=0.02, ticks=ticks, format="{x:g}")
    bar.minorticks_off()
    bar.set_label("t(k, w) / t(1, 1)")
    return figure


@style.in_style
def _by_tokens(
    grown: Mapping[int, Growth], products: Mapping[str, pd.DataFrame], end: int, *, title: str, caption: str
) -> Figure:
    """Draw slow-down over tokens up to `end` by context, and below, where there are products, operations per byte."""
    if products:
        figure, panels = style.new_panels(title, caption, 8.2, rows=2, sharex=True, height_ratios=(1.15, 1))
        upper, bottom = panels[:, 0]
        _operations(bottom, {names: lines[lines["rows_evaluated"] <= end] for names, lines in products.items()})
    else:
        figure, upper = style.new_figure(title, caption)
        bottom = upper
    for index, (cached, each) in enumerate(grown.items()):
        colour, marker, *_ = style.look(index)
        shown = each.tokens <= end
        upper.plot(each.tokens[shown], each.slowdown[shown], color=colour, marker=marker, linestyle="none",
                   markersize=4 if shown.sum() <= 80 else 2.5, label=f"{cached:,} cached")  # fmt: skip
        upper.plot(each.tokens[shown], each.fitted[shown], color=colour, linewidth=1.2)
    pictures.level(upper, 1)
    upper.set(ylabel="t / t(1, 1)", ylim=(0, None))
    style.legend_above(upper, len(grown) if len(grown) <= 3 else 2)
    bottom.set(xlabel="tokens evaluated in the call, root included", xlim=(0, 1.02 * end))
    return figure


def _operations(axes: Axes, products: Mapping[str, pd.DataFrame]) -> None:
    for index, (names, lines) in enumerate(products.items()):
        colour, _, dash, _ = style.look(index)
        first, more, _ = names.partition(", ")
        label = f"{first}{', …' if more else ''} ({lines['size'].iloc[0]})"
        if (lines["high"] > 1.001 * lines["low"]).any():
            # Each copy of the cache serves the tokens of its own row, so that shapes of one size differ.
            ends = (lines["low"], lines["high"])
            axes.vlines(lines["rows_evaluated"], *ends, color=colour, linewidth=0.8)
            for end, name in zip(ends, (label, None), strict=True):
                axes.plot(lines["rows_evaluated"], end, ".", color=colour, markersize=5, label=name)
        else:
            axes.plot(lines["rows_evaluated"], lines["high"], color=colour, linestyle=dash, label=label)
    bound = float(next(iter(products.values()))["threshold"].iloc[0])
    axes.axhline(bound, color=style.BLACK, linewidth=1.6, linestyle=style.DOTTED, label=f"this machine's {bound:.3g}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("operations per byte")
    style.legend_above(axes, 2)
