"""Studies `grid` of several prompt sets and models side by side: the main table of N-Grammys (2411.03786), model by
data set, the best (k*, w*) beside (10, 10); and the maps that the best was chosen from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..figures import pictures, style
from ..findings import Section, counted
from ..intervals import Interval
from ..studies.grid import USUAL, GridNumbers, Shape, WholeRuns, grid, plus_minus, whole_runs
from .labels import Labelled, caveats


@dataclass(frozen=True)
class Judged:
    """A study's numbers and, where it decoded whole texts live, those of its whole runs."""

    each: Labelled
    numbers: GridNumbers
    whole: WholeRuns | None

    @property
    def fastest(self) -> Shape:
        """The shape with the largest predicted speedup, which is the one that is decoded whole."""
        return self.numbers.best("speedup")

    @property
    def shapes(self) -> list[Shape]:
        """The fastest shape, and the usual one where the grid has it."""
        return [shape for shape in dict.fromkeys([self.fastest, USUAL]) if self.numbers.has(shape)]

    def speedup(self, shape: Shape) -> tuple[float, float, str]:
        """Return mean and standard deviation of the speedup, and what they are the mean of: whole runs, or repeats of
        the timing that a prediction rests on.
        """
        if self.whole is not None:
            lines = self.whole.shapes
            line = lines[(lines["k"] == shape[0]) & (lines["w"] == shape[1])]
            if len(line):
                runs = counted(int(line["runs"].iloc[0]), "whole run")
                return float(line["speedup"].iloc[0]), float(line["deviation"].iloc[0]), runs
        how = "simulated" if self.each.study.about.simulated else "predicted"
        return self.numbers.value("speedup", shape), self.numbers.value("deviation", shape), how

    @property
    def lead(self) -> Interval | None:
        """The fastest shape's speedup less that of the usual one, where both were decoded whole."""
        return None if self.whole is None else self.whole.lead


def grid_sets(studies: Sequence[Labelled]) -> list[Section]:
    """Return two sections: the paper's table, and the maps of tokens per call."""
    found = [_judged(each) for each in studies]
    return [_main_table(found), _maps(found)]


def _judged(each: Labelled) -> Judged:
    about, tables = each.study.about, each.study.tables
    numbers = grid(tables["replay"], tables["block_times"], tables["host_times"], about.replicates, about.seed)
    whole = tables["whole"]
    return Judged(each, numbers, whole_runs(whole, about.replicates, about.seed) if len(whole) else None)


def _main_table(found: Sequence[Judged]) -> Section:
    answer = "; ".join(
        f"{each.each.label} {each.fastest} {plus_minus(*each.speedup(each.fastest)[:2])}" for each in found
    )
    text = [f"The best shape of each, (k*, w*), with its speedup over plain decoding: {answer}."]
    leads = [f"{each.each.label} {each.lead:+.2f}" for each in found if each.lead is not None and each.fastest != USUAL]
    if leads:
        text.append(f"The best shape's speedup less that of {USUAL}, paired by text: {'; '.join(leads)}.")
    same = [each.each.label for each in found if each.fastest == USUAL]
    if same:
        text.append(f"The best shape is {USUAL} itself: {'; '.join(same)}.")
    sources = dict.fromkeys(each.speedup(shape)[2] for each in found for shape in each.shapes)
    text.append(
        f"Speedups are mean ± standard deviation of {', '.join(sources)}; tokens per call have 95% prompt-bootstrap "
        "intervals. (k*, w*) is chosen by predicted speedup on the texts that it is judged on, which favours it a "
        "little."
    )
    text += caveats([each.each for each in found])
    tables = (("Model by prompt set: the best shape and (10, 10)", _by_model(found)),
              ("The same, a line for each shape", _long(found)))  # fmt: skip
    return Section(
        "The best (k*, w*) and (10, 10), model by prompt set", tuple(text), tables, (("sets", _bars(found)),)
    )


def _by_model(found: Sequence[Judged]) -> pd.DataFrame:
    """Return a line for each model and kind of shape, a column for each prompt set."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for each in found:
        about = each.each.study.about
        for kind, shape in (("(k*, w*)", each.fastest), ("(10, 10)", USUAL)):
            text = "–"
            if each.numbers.has(shape):
                mean, deviation, _ = each.speedup(shape)
                named = f"{shape}: " if kind != "(10, 10)" else ""
                text = f"{named}{plus_minus(mean, deviation)} ({each.numbers.value('tokens', shape):.2f} tokens)"
            cells = lines.setdefault((about.title, kind), {})
            cells[f"{about.prompts} (again)" if about.prompts in cells else about.prompts] = text
    return pd.DataFrame([{"model": model, "shape": kind, **cells} for (model, kind), cells in lines.items()]).fillna(
        "–"
    )


def _long(found: Sequence[Judged]) -> pd.DataFrame:
    lines = []
    for each in found:
        for shape in each.shapes:
            mean, deviation, how = each.speedup(shape)
            lines.append(
                {
                    "prompt set": each.each.label,
                    "prompts": each.numbers.sums.prompts,
                    "shape": f"{shape}" + (" = (k*, w*)" if shape == each.fastest else ""),
                    "tokens per call": f"{each.numbers.interval('tokens', shape):.2f}",
                    "speedup": plus_minus(mean, deviation),
                    "mean of": how,
                    "predicted speedup": f"{each.numbers.interval('speedup', shape):.2f}",
                }
            )
    return pd.DataFrame(lines)


@style.in_style
def _bars(found: Sequence[Judged]) -> Figure:
    """Draw the speedup of the best and of the usual shape, with the deviation of the runs, by prompt set."""
    titles = "; ".join(dict.fromkeys(each.each.study.about.title for each in found))
    figure, axes = style.new_figure(
        f"Speedup of the best shape and of {USUAL}, by prompt set\n{titles}",
        "Bars: mean; whiskers: standard deviation of the runs. Over the bars: tokens per call. Dotted: plain decoding.",
    )
    kinds = {"(k*, w*)": [each.fastest for each in found], f"{USUAL}": [USUAL] * len(found)}
    for index, (kind, shapes) in enumerate(kinds.items()):
        colour, _, _, hatch = style.look(index)
        for at, (each, shape) in enumerate(zip(found, shapes, strict=True)):
            if not each.numbers.has(shape):
                continue
            mean, deviation, _ = each.speedup(shape)
            place = at + 0.4 * (index - 0.5)
            axes.bar(place, mean, 0.38, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                     label=kind if at == 0 else None)  # fmt: skip
            axes.errorbar(place, mean, yerr=np.nan_to_num(deviation), color=style.BLACK, capsize=3, linewidth=1)
            axes.annotate(f"{each.numbers.value('tokens', shape):.2f}", (place, mean + np.nan_to_num(deviation)),
                          xytext=(0, 4), textcoords="offset points", ha="center", fontsize=10)  # fmt: skip
    pictures.level(axes, 1)
    names = [f"{style.wrapped(each.each.label, 24)}\n{each.fastest}" for each in found]
    axes.set_xticks(range(len(found)), names)
    axes.set(ylabel="speedup")
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    style.legend_above(axes, 2)
    return figure


def _maps(found: Sequence[Judged]) -> Section:
    longest = [(each, each.numbers.best("tokens")) for each in found]
    listed = "; ".join(
        f"{each.each.label} {shape} with {each.numbers.interval('tokens', shape):.2f}" for each, shape in longest
    )
    text = f"The shape with most tokens per call, whatever it costs: {listed}."
    return Section("The grids, by prompt set", (text,), figures=(("grid_sets", _maps_figure(found)),))


@style.in_style
def _maps_figure(found: Sequence[Judged]) -> Figure:
    """Draw tokens per call and speedup over k and w, a line of two maps for each study, each kind in one scale."""
    titles = "; ".join(dict.fromkeys(each.each.study.about.title for each in found))
    caption = (
        f"Left: tokens per call, by replay; right: predicted speedup. One scale for each. Frame: the best of the map; "
        f"dashed: the usual {USUAL}."
    )
    figure, axes = style.new_panels(
        f"Tokens per call and speedup, by prompt set\n{titles}", caption, 1.7 + 2.3 * len(found), len(found), 2
    )
    for column, (name, what) in enumerate((("tokens", "tokens per call"), ("speedup", "speedup"))):
        known = np.concatenate([each.numbers.shapes[name].dropna().to_numpy() for each in found])
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        scale = Normalize(low, high if high > low else low + 1)
        for panel, each in zip(axes[:, column], found, strict=True):
            values = each.numbers.shapes.pivot(index="k", columns="w", values=name)
            image = pictures.heat_map(panel, values, scale, ticks=8)
            for shape, dash in ((each.numbers.best(name), "-"), (USUAL, (0, (2, 1.5)))):
                if shape[0] in values.index and shape[1] in values.columns:
                    corner = list(values.columns).index(shape[1]) - 0.46, list(values.index).index(shape[0]) - 0.46
                    panel.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=style.ORANGE, linewidth=2.2,
                                              linestyle=dash))  # fmt: skip
            panel.set_title(style.wrapped(f"{each.each.label}: {what}", 36), fontsize=10.5)
        axes[-1, column].set_xlabel("w, draft tokens in a row")
        figure.colorbar(image, ax=axes[:, column], orientation="horizontal", location="top", shrink=0.9, aspect=30)
    for panel in axes[:, 0]:
        panel.set_ylabel("k, rows")
    return figure
