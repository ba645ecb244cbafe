"""Studies of one kind side by side, of several prompt sets and models: `topk`, `ablation` and `grid`, whose table model
by data set is the main one of N-Grammys (2411.03786); and the chapters of a report of studies.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .comparisons import interval, listed, printed, tokens_per_call
from .figures import pictures, style
from .intervals import Interval, plus_minus
from .pages.html import Chapter
from .sections import FinishedStudy, Section, counted
from .studies.ablation import contributions, distribution, share_groups, strategies
from .studies.grid import USUAL, Shape, best, grid, whole_runs
from .studies.topk import ENOUGH, best_of, draw, strategy_names

Labelled = Mapping[str, FinishedStudy]
"""Several studies by a name that tells each from the others: its prompt set, and the model where these differ."""


def labelled(studies: Sequence[FinishedStudy]) -> Labelled:
    """Return studies by their names; equal ones are numbered in the order of the studies."""
    titles = {study.about.title for study in studies}
    names = [
        study.about.prompts if len(titles) == 1 else f"{study.about.prompts}, {study.about.title}" for study in studies
    ]
    numbers = ["" if names.count(name) == 1 else f" ({names[: at + 1].count(name)})" for at, name in enumerate(names)]
    return {f"{name}{number}": study for name, number, study in zip(names, numbers, studies, strict=True)}


def settings(studies: Labelled) -> str:
    """Return the titles of the studies, each once, for figures."""
    return "; ".join(dict.fromkeys(study.about.title for study in studies.values()))


def caveats(studies: Labelled) -> list[str]:
    """Return what limits the conclusions; a sentence that holds for several studies names all of them."""
    said: dict[str, list[str]] = {}
    for label, study in studies.items():
        for text in study.about.caveats(study.tables["skipped"]):
            said.setdefault(text.replace(f"prompts of {study.about.prompts}", "prompts of {}"), []).append(label)
    lists = [(text, ", ".join(labels)) for text, labels in said.items()]
    return [text.replace("{}", names) if "{}" in text else f"{names}: {text}" for text, names in lists]


@style.in_style
def panels(
    title: str,
    caption: str,
    draw: Mapping[str, Callable[[Axes], None]],
    height: float,
    legend: tuple[int, int],
    axis_labels: tuple[str, str],
) -> Figure:
    """Return a figure with a panel for each of several studies, in lines of two, whose axes are equal.

    draw: by label, what draws a panel; height: inches of a line of panels; legend: lines and columns of the one legend
    of all panels, which stands above them; axis_labels: below and beside.
    """
    lines, above = -(-len(draw) // 2), 0.26 * legend[0]
    figure, axes = style.new_panels(
        title, caption, 1.6 + above + height * lines, lines + 1, 2, sharex=True, sharey=True,
        height_ratios=[above, *[height] * lines],
    )  # fmt: skip
    for each in axes[0]:
        each.remove()  # it would share its scale, and so its few ticks, with the panels
    top = figure.add_subplot(axes[1, 0].get_gridspec()[0, :])
    for each in (top, *axes[1:].flat[len(draw) :]):
        each.set_axis_off()
    used = list(axes[1:].flat[: len(draw)])
    for panel in used[-2:]:
        panel.tick_params(labelbottom=True)
        panel.set_xlabel(axis_labels[0])
    for panel in used[::2]:
        panel.set_ylabel(axis_labels[1])
    handles: dict[str, Artist] = {}
    for panel, (label, drawn) in zip(used, draw.items(), strict=True):
        drawn(panel)
        panel.set_title(style.wrapped(label, 36), fontsize=11)
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    shown = top.legend(
        handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(-0.06, 0.0), ncols=legend[1], fontsize=10
    )
    shown.set_in_layout(False)  # the panels keep their width
    return figure


def topk_sets(studies: Labelled) -> list[Section]:
    """Return one section: which strategy yields most on each set, and how many rows that takes."""
    answer, chances, tables, drawn = [], [], [], {}
    for label, study in studies.items():
        about = study.about
        cells = tokens_per_call(study.tables["topk"], ["drafter", "k", "w"], about.replicates, about.seed)
        best = best_of(cells)
        names = strategy_names(best)
        answer.append(f"{label}: {names[best['tokens'].round(3).idxmax()]}")
        ones = []
        for (name, w), part in cells.groupby(["drafter", "w"]):
            first, last = part.iloc[0], part.iloc[-1]
            ones.append(f"{interval(first, 'tokens'):.3f}" if first["k"] == 1 else "–")
            # At w = 1, tokens per call less one are the chance that a row begins with the target's next token.
            if w == 1 and len(part) > 1 and first["k"] == 1:
                chances.append(
                    f"{label}, {name} {first['tokens'] - 1:.0%} and {last['tokens'] - 1:.0%} (k = {last['k']})"
                )
        shown = {
            "prompt set": label,
            "strategy": names,
            "best k": best["k"],
            "tokens per call": printed(best, "tokens", ".3f"),
            "k = 1": ones,
            f"{ENOUGH:.0%} by k": ["–" if pd.isna(k) else f"{k:.0f}" for k in best["enough"]],
        }
        tables.append(pd.DataFrame(shown))
        drawn[label] = partial(draw, cells=cells)
    text = [f"The strategy with most tokens per call at its best k, by prompt set: {'; '.join(answer)}."]
    if chances:
        text.append(
            "Rounds in which the target's next token is among the first k choices, with k = 1 and with the largest k "
            f"(tokens per call less one, at w = 1): {'; '.join(chances)}."
        )
    figure = panels(
        f"Tokens per call against top-k, by prompt set\n{settings(studies)}",
        "Greedy texts replayed; bands: 95% prompt-bootstrap intervals. A colour for each strategy, a dash for each w, "
        "tokens of a row; dotted: plain decoding.",
        drawn,
        2.5,
        legend=(-(-max(map(len, tables)) // 2), 2),
        axis_labels=("k, rows", "tokens per call"),
    )
    caption = f"Best k of each strategy, and the k by which {ENOUGH:.0%} of the gain of the largest k is there"
    table = pd.concat(tables, ignore_index=True)
    title = "Tokens per call against top-k, by prompt set"
    return [Section(title, (*text, *caveats(studies)), ((caption, table),), (("topk_sets", figure),))]


_SHARES = {"of_rows": "rows", "of_wins": "accepted\nrows", "tokens": "accepted\ntokens"}
_CONTRIBUTION = {"prompt set": "label", "tokens per call": "call", "strategy": "strategy",
                 "share of rows": "of_rows:.0%", "rounds won": "wins:.0%", "share of accepted tokens": "tokens:.0%",
                 "accepted length when it wins": "length:.2f"}  # fmt: skip


def ablation_sets(studies: Labelled) -> list[Section]:
    """Return one section: each strategy's share of rows, accepted rows and accepted tokens on each set, and the lengths
    that it has accepted.
    """
    rows, shared = [], []
    shares: dict[str, dict[str, list[Interval]]] = {}
    lengths: dict[str, dict[str, pd.DataFrame]] = {}
    for label, study in studies.items():
        about, replay, histograms = study.about, study.tables["replay"], study.tables["histograms"]
        names = strategies(histograms)
        tokens = tokens_per_call(replay, ["k", "w"], about.replicates, about.seed).iloc[0]
        parts = contributions(histograms, replay, names, about) if names else pd.DataFrame()
        lines = parts.to_dict("records")
        ordered = sorted(lines, key=lambda line: -line["tokens"] if line["tokens"] > 0 else 0.0)
        said = ", ".join(f"{line['strategy']} {max(0.0, line['tokens']):.0%}" for line in ordered)
        shared.append(f"{label}: {said or 'nothing was proposed'}")
        shares[label] = {line["strategy"]: [interval(line, key) for key in _SHARES] for line in lines}
        lengths[label] = {name: distribution(histograms, replay, "accepted", name, about) for name in names}
        if names:
            called = parts.assign(label=label, call=f"{interval(tokens, 'tokens'):.2f}")
            rows.append(listed(called, _CONTRIBUTION))
    strategies_of_all = list(dict.fromkeys(name for each in shares.values() for name in each))
    none = [Interval(0.0)] * len(_SHARES)
    offered = {label: {name: each.get(name, none) for name in strategies_of_all} for label, each in shares.items()}
    longest = max((int(table["value"].max()) for each in lengths.values() for table in each.values() if len(table)),
                  default=0)  # fmt: skip
    values, empty = range(1, longest + 1), pd.DataFrame({"value": [], "share": []})
    reached = {
        label: share_groups({name: each.get(name, empty) for name in strategies_of_all}, values)
        for label, each in lengths.items()
    }
    titles, lengths_said = f", by prompt set\n{settings(studies)}", list(map(str, values))
    who = _share_bars(offered, f"Who has the rows, and whose are accepted{titles}", list(_SHARES.values()), "")
    far = _share_bars(reached, f"Accepted length by strategy{titles}", lengths_said, "accepted tokens")
    figures = (("contribution_sets", who), ("length_sets", far))
    text = (f"Share of the accepted draft tokens, by prompt set: {'; '.join(shared)}.", *caveats(studies))
    caption = "Contribution by prompt set and strategy, with 95% prompt-bootstrap intervals"
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
    return [Section("Contribution of strategies, by prompt set", text, ((caption, table),), figures)]


def _share_bars(groups: dict[str, dict[str, list[Interval]]], title: str, ticks: list[str], below: str) -> Figure:
    step = -(-len(ticks) // 8)

    def draw(panel: Axes, values: dict[str, list[Interval]]) -> None:
        pictures.bars(panel, values)
        pictures.percent_axis(panel)
        panel.set_xticks(range(0, len(ticks), step), ticks[::step], fontsize=9.5)

    caption = "Greedy texts replayed; whiskers: 95% prompt-bootstrap intervals."
    drawn = {label: partial(draw, values=values) for label, values in groups.items()}
    return panels(title, caption, drawn, 2.4, legend=(1, 3), axis_labels=(below, "share"))


BEST = "(k*, w*)"


class Judged:
    """A study `grid` with its numbers and, where it decoded whole texts live, those of its whole runs.

    Attributes:
        fastest: the shape with the largest predicted speedup, which is the one that is decoded whole.
        shapes: the fastest shape, and the usual one where the grid has it, by what they are called.
    """

    def __init__(self, label: str, study: FinishedStudy) -> None:
        about, tables = study.about, study.tables
        self.label, self.about = label, about
        self.numbers = grid(tables["replay"], tables["block_times"], tables["host_times"], about.replicates, about.seed)
        whole = tables["whole"]
        self.whole, self.lead = whole_runs(whole, about.replicates, about.seed) if len(whole) else (whole, None)
        self.fastest = best(self.numbers, "speedup")
        self.shapes = {BEST: self.fastest}
        if self.numbers.compared.place(*USUAL) is not None:
            self.shapes[f"{USUAL}"] = USUAL

    def speedup(self, shape: Shape) -> tuple[float, float, str]:
        """Return mean and standard deviation of the speedup, and what they are the mean of: whole runs, or repeats of
        the timing that a prediction rests on.
        """
        for line in self.whole.to_dict("records"):
            if (line["k"], line["w"]) == shape:
                return line["speedup"], line["deviation"], counted(line["runs"], "whole run")
        line = self.numbers.line(*shape)
        return line["speedup"], line["deviation"], "simulated" if self.about.simulated else "predicted"

    def said(self, shape: Shape) -> str:
        return plus_minus(*self.speedup(shape)[:2])


def grid_sets(studies: Labelled) -> list[Section]:
    """Return two sections: the paper's table, and the maps of tokens per call."""
    found = [Judged(label, study) for label, study in studies.items()]
    answer = "; ".join(f"{each.label} {each.fastest} {each.said(each.fastest)}" for each in found)
    text = [f"The best shape of each, {BEST}, with its speedup over plain decoding: {answer}."]
    leads = [f"{each.label} {each.lead:+.2f}" for each in found if each.lead is not None and each.fastest != USUAL]
    if leads:
        text.append(f"The best shape's speedup less that of {USUAL}, paired by text: {'; '.join(leads)}.")
    same = [each.label for each in found if each.fastest == USUAL]
    if same:
        text.append(f"The best shape is {USUAL} itself: {'; '.join(same)}.")
    by_model: dict[tuple[str, str], dict[str, str]] = {}
    lines, sources = [], []
    for each in found:
        about, numbers = each.about, each.numbers
        for kind in (BEST, f"{USUAL}"):
            shape, shown = each.shapes.get(kind), "–"
            if shape is not None:
                named = f"{shape}: " if kind == BEST else ""
                shown = f"{named}{each.said(shape)} ({numbers.line(*shape)['tokens']:.2f} tokens)"
            cells = by_model.setdefault((about.title, kind), {})
            cells[f"{about.prompts} (again)" if about.prompts in cells else about.prompts] = shown
        for shape in dict.fromkeys(each.shapes.values()):
            sources.append(each.speedup(shape)[2])
            line = {"prompt set": each.label, "prompts": numbers.compared.prompts}
            line["shape"] = f"{shape}" + (f" = {BEST}" if shape == each.fastest else "")
            line["tokens per call"] = f"{interval(numbers.line(*shape), 'tokens'):.2f}"
            line |= {"speedup": each.said(shape), "mean of": sources[-1]}
            lines.append(line | {"predicted speedup": f"{interval(numbers.line(*shape), 'speedup'):.2f}"})
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
    drawn = _speedup_bars(found, settings(studies)), _maps(found, settings(studies))
    title = f"The best {BEST} and (10, 10), model by prompt set"
    main = Section(title, (*text, *caveats(studies)), tables, (("sets", drawn[0]),))
    longest = [(each, best(each.numbers, "tokens")) for each in found]
    most = [f"{each.label} {shape} with {interval(each.numbers.line(*shape), 'tokens'):.2f}" for each, shape in longest]
    words = f"The shape with most tokens per call, whatever it costs: {'; '.join(most)}."
    return [main, Section("The grids, by prompt set", (words,), figures=(("grid_sets", drawn[1]),))]


@style.in_style
def _speedup_bars(found: Sequence[Judged], titles: str) -> Figure:
    """Draw the speedup of the best and of the usual shape, with the deviation of the runs, by prompt set."""
    figure, axes = style.new_figure(
        f"Speedup of the best shape and of {USUAL}, by prompt set\n{titles}",
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
def _maps(found: Sequence[Judged], titles: str) -> Figure:
    """Draw tokens per call and speedup over k and w, a line of two maps for each study, each kind in one scale."""
    caption = (
        f"Left: tokens per call, by replay; right: predicted speedup. One scale for each. Frame: the best of the map; "
        f"dashed: the usual {USUAL}."
    )
    title = f"Tokens per call and speedup, by prompt set\n{titles}"
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


def side_by_side(studies: Sequence[FinishedStudy]) -> list[Section]:
    """Return what the studies of each kind say together, where there are several of a kind that can be compared."""
    sections: list[Section] = []
    for kind, compare in (("topk", topk_sets), ("ablation", ablation_sets), ("grid", grid_sets)):
        same = [study for study in studies if study.kind == kind]
        if len(same) > 1:
            sections += compare(labelled(same))
    return sections


def study_chapters(studies: Sequence[FinishedStudy]) -> list[Chapter]:
    """Make one chapter for each study, after one that sets those of a kind side by side. UsageError: see
    `FinishedStudy.findings`.
    """
    chapters = [
        Chapter(f"Study {each.kind}: {each.about.title}, {each.about.prompts}", each.findings().sections)
        for each in studies
    ]
    together = side_by_side(studies)
    return [Chapter("Studies side by side", tuple(together)), *chapters] if together else chapters
