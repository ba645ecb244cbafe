"""Studies `grid` of several prompt sets and models side by side: the main table of N-Grammys (2411.03786), model by
data set, the best (k*, w*) beside (10, 10); and the maps that the best was chosen from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import ReplayedSpeedups, interval
from ..figures import pictures, style
from ..intervals import Interval
from ..sections import Section, counted
from ..studies.grid import USUAL, Shape, WholeRuns, best, grid, plus_minus, whole_runs
from .labels import Labelled, caveats, settings

BEST = "(k*, w*)"


@dataclass(frozen=True)
class Judged(Labelled):
    """A study with its numbers and, where it decoded whole texts live, those of its whole runs."""

    @cached_property
    def numbers(self) -> ReplayedSpeedups:
        about, tables = self.study.about, self.study.tables
        return grid(tables["replay"], tables["block_times"], tables["host_times"], about.replicates, about.seed)

    @cached_property
    def whole(self) -> WholeRuns | None:
        about, table = self.study.about, self.study.tables["whole"]
        return whole_runs(table, about.replicates, about.seed) if len(table) else None

    @cached_property
    def fastest(self) -> Shape:
        """The shape with the largest predicted speedup, which is the one that is decoded whole."""
        return best(self.numbers, "speedup")

    @property
    def shapes(self) -> dict[str, Shape]:
        """The fastest shape, and the usual one where the grid has it, by what they are called."""
        return {BEST: self.fastest} | ({f"{USUAL}": USUAL} if self.numbers.compared.place(*USUAL) is not None else {})

    def speedup(self, shape: Shape) -> tuple[float, float, str]:
        """Return mean and standard deviation of the speedup, and what they are the mean of: whole runs, or repeats of
        the timing that a prediction rests on.
        """
        for line in [] if self.whole is None else self.whole.shapes.to_dict("records"):
            if (line["k"], line["w"]) == shape:
                return line["speedup"], line["deviation"], counted(line["runs"], "whole run")
        how = "simulated" if self.study.about.simulated else "predicted"
        line = self.numbers.line(*shape)
        return line["speedup"], line["deviation"], how

    def said(self, shape: Shape) -> str:
        """Return the speedup with its deviation as text."""
        return plus_minus(*self.speedup(shape)[:2])


def grid_sets(studies: Sequence[Labelled]) -> list[Section]:
    """Return two sections: the paper's table, and the maps of tokens per call."""
    found = [Judged(each.label, each.study) for each in studies]
    return [_main_table(found), _maps(found)]


def _main_table(found: Sequence[Judged]) -> Section:
    answer = "; ".join(f"{each.label} {each.fastest} {each.said(each.fastest)}" for each in found)
    text = [f"The best shape of each, {BEST}, with its speedup over plain decoding: {answer}."]
    leads = [
        f"{each.label} {each.whole.lead:+.2f}"
        for each in found
        if each.whole is not None and each.whole.lead is not None and each.fastest != USUAL
    ]
    if leads:
        text.append(f"The best shape's speedup less that of {USUAL}, paired by text: {'; '.join(leads)}.")
    same = [each.label for each in found if each.fastest == USUAL]
    if same:
        text.append(f"The best shape is {USUAL} itself: {'; '.join(same)}.")
    by_model: dict[tuple[str, str], dict[str, str]] = {}
    lines, sources = [], []
    for each in found:
        about, numbers = each.study.about, each.numbers
        for kind in (BEST, f"{USUAL}"):
            shape, shown = each.shapes.get(kind), "–"
            if shape is not None:
                named = f"{shape}: " if kind == BEST else ""
                shown = f"{named}{each.said(shape)} ({numbers.line(*shape)['tokens']:.2f} tokens)"
            cells = by_model.setdefault((about.title, kind), {})
            cells[f"{about.prompts} (again)" if about.prompts in cells else about.prompts] = shown
        for shape in dict.fromkeys(each.shapes.values()):
            sources.append(each.speedup(shape)[2])
            lines.append(
                {
                    "prompt set": each.label,
                    "prompts": numbers.compared.prompts,
                    "shape": f"{shape}" + (f" = {BEST}" if shape == each.fastest else ""),
                    "tokens per call": f"{interval(numbers.line(*shape), 'tokens'):.2f}",
                    "speedup": each.said(shape),
                    "mean of": sources[-1],
                    "predicted speedup": f"{interval(numbers.line(*shape), 'speedup'):.2f}",
                }
            )
    text.append(
        f"Speedups are mean ± standard deviation of {', '.join(dict.fromkeys(sources))}; tokens per call have 95% "
        f"prompt-bootstrap intervals. {BEST} is chosen by predicted speedup on the texts that it is judged on, which "
        "favours it a little."
    )
    models = [{"model": model, "shape": kind, **cells} for (model, kind), cells in by_model.items()]
    tables = (
        ("Model by prompt set: the best shape and (10, 10)", pd.DataFrame(models).fillna("–")),
        ("The same, a line for each shape", pd.DataFrame(lines)),
    )
    return Section(
        f"The best {BEST} and (10, 10), model by prompt set",
        (*text, *caveats(found)),
        tables,
        (("sets", _bars(found)),),
    )


@style.in_style
def _bars(found: Sequence[Judged]) -> Figure:
    """Draw the speedup of the best and of the usual shape, with the deviation of the runs, by prompt set."""
    figure, axes = style.new_figure(
        f"Speedup of the best shape and of {USUAL}, by prompt set\n{settings(found)}",
        "Bars: mean; whiskers: standard deviation of the runs. Over the bars: tokens per call. Dotted: plain decoding.",
    )
    groups: dict[str, list[Interval]] = {kind: [] for kind in (BEST, f"{USUAL}")}
    for index, kind in enumerate(groups):
        for at, each in enumerate(found):
            shape = each.shapes.get(kind)
            mean, deviation = (0.0, 0.0) if shape is None else each.speedup(shape)[:2]
            groups[kind].append(Interval(mean, mean - deviation, mean + deviation))
            if shape is not None:
                top = mean if pd.isna(deviation) else mean + deviation
                axes.annotate(f"{each.numbers.line(*shape)['tokens']:.2f}", (at + 0.4 * (index - 0.5), top),
                              xytext=(0, 4), textcoords="offset points", ha="center", fontsize=10)  # fmt: skip
    pictures.bars(axes, groups)
    pictures.level(axes, 1)
    axes.set_xticks(range(len(found)), [f"{style.wrapped(each.label, 24)}\n{each.fastest}" for each in found])
    axes.set(ylabel="speedup")
    axes.margins(y=0.12)
    style.legend_above(axes, 2)
    return figure


@style.in_style
def _maps_figure(found: Sequence[Judged]) -> Figure:
    """Draw tokens per call and speedup over k and w, a line of two maps for each study, each kind in one scale."""
    caption = (
        f"Left: tokens per call, by replay; right: predicted speedup. One scale for each. Frame: the best of the map; "
        f"dashed: the usual {USUAL}."
    )
    title = f"Tokens per call and speedup, by prompt set\n{settings(found)}"
    figure, axes = style.new_panels(title, caption, 1.7 + 2.3 * len(found), len(found), 2)
    for column, (name, what) in enumerate((("tokens", "tokens per call"), ("speedup", "speedup"))):
        grids = [each.numbers.cells.pivot(index="k", columns="w", values=name) for each in found]
        scale = pictures.scale_of(*grids)
        for panel, each, values in zip(axes[:, column], found, grids, strict=True):
            image = pictures.heat_map(panel, values, scale, ticks=8)
            pictures.frame(panel, values, best(each.numbers, name))
            pictures.frame(panel, values, USUAL, dashed=True)
            panel.set_title(style.wrapped(f"{each.label}: {what}", 36), fontsize=10.5)
        axes[-1, column].set_xlabel("w, draft tokens in a row")
        figure.colorbar(image, ax=axes[:, column], orientation="horizontal", location="top", shrink=0.9, aspect=30)
    for panel in axes[:, 0]:
        panel.set_ylabel("k, rows")
    return figure


def _maps(found: Sequence[Judged]) -> Section:
    listed = "; ".join(
        f"{each.label} {shape} with {interval(each.numbers.line(*shape), 'tokens'):.2f}"
        for each in found
        for shape in [best(each.numbers, "tokens")]
    )
    text = f"The shape with most tokens per call, whatever it costs: {listed}."
    return Section("The grids, by prompt set", (text,), figures=(("grid_sets", _maps_figure(found)),))
