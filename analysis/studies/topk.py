"""Study `topk`: tokens per call of strategies that see the last token only, with more rows and with longer ones."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..comparisons import curve, interval, printed, tokens_per_call
from ..figures import pictures, style
from ..findings import About, Findings, Section, Tables, counted, register

ENOUGH = 0.9  # share of what the largest k gains

Lines = Mapping[tuple[str, int], pd.DataFrame]
"""(drafter, w) -> tokens per call over k."""


@register("topk", overlay="ngrammys_topk")
def findings(tables: Tables, about: About) -> Findings:
    """Read `topk` and `skipped`."""
    table = tables["topk"]
    lines = lines_of(table, about)
    cells = pd.concat(lines.values())
    text = (_answer(cells), *_widths(lines), *_saturation(lines), *about.origin(table, tables["skipped"]))
    section = Section(
        "Tokens per call against top-k",
        text,
        tables=(("Tokens per call of the target, its own token included", _table(lines)),),
        figures=(("topk", _figure(lines, about)),),
    )
    curves = {f"curve/topk/{name}.w{w}": curve(part, "k", "tokens") for (name, w), part in lines.items()}
    metrics: dict[str, float] = {}
    for (name, w), part in lines.items():
        best = part.loc[part["tokens"].idxmax()]
        metrics[f"topk/{name}.w{w}.best"] = float(best["tokens"])
        metrics[f"topk/{name}.w{w}.best_k"] = float(best["k"])
    return Findings((section,), metrics, curves)


def lines_of(table: pd.DataFrame, about: About) -> Lines:
    """Return tokens per call over k, with intervals, of the study's table."""
    cells = tokens_per_call(table, ["drafter", "k", "w"], about.replicates, about.seed)
    return {(str(name), int(w)): part.sort_values("k") for (name, w), part in cells.groupby(["drafter", "w"])}


def enough(part: pd.DataFrame) -> int | None:
    """Return the smallest k with `ENOUGH` of what its largest k gains over plain decoding; None without a gain."""
    gained = part["tokens"] - 1
    if len(part) < 2 or gained.iloc[-1] <= 0:
        return None
    return int(part.loc[gained >= ENOUGH * gained.iloc[-1], "k"].iloc[0])


def _answer(cells: pd.DataFrame) -> str:
    best = cells.loc[cells.groupby("drafter")["tokens"].idxmax()].sort_values("tokens", ascending=False)
    listed = [
        f"{line['drafter']} {interval(line, 'tokens'):.2f} at k = {line['k']}, w = {line['w']}"
        for line in best.to_dict("records")
    ]
    return f"Most tokens per call: {'; '.join(listed)}. Plain decoding has 1."


def _widths(lines: Lines) -> list[str]:
    """Say what longer rows add at the largest k."""
    sentences = []
    for name in dict.fromkeys(name for name, _ in lines):
        widths = sorted(w for other, w in lines if other == name)
        if len(widths) > 1:
            short, long = (lines[name, w].iloc[-1] for w in (widths[0], widths[-1]))
            sentences.append(
                f"{name}: at k = {int(short['k'])}, rows of {widths[-1]} instead of {widths[0]} change tokens per "
                f"call from {short['tokens']:.2f} to {long['tokens']:.2f}."
            )
    return sentences


def _saturation(lines: Lines) -> list[str]:
    """Say from which k on most of the gain is there."""
    listed = []
    for name in dict.fromkeys(name for name, _ in lines):
        w = min(width for other, width in lines if other == name)
        k = enough(lines[name, w])
        if k is not None:
            listed.append(f"{name} by k = {k} (w = {w})")
    said = f"{ENOUGH:.0%} of what the largest k gains over plain decoding is there: {', '.join(listed)}."
    return [said] if listed else []


def _table(lines: Lines) -> pd.DataFrame:
    """Return tokens per call: k down, drafter and w across."""
    columns = {
        f"{name}, w = {w}": pd.Series(printed(part, "tokens", ".3f"), index=part["k"])
        for (name, w), part in lines.items()
    }
    return pd.DataFrame(columns).rename_axis("k").reset_index()


@style.in_style
def _figure(lines: Lines, about: About) -> Figure:
    """Draw tokens per call over k: a colour for each drafter, a dash for each w, intervals as bands."""
    cells = pd.concat(lines.values())
    bands = "bands: 95% prompt-bootstrap intervals" if np.isfinite(cells["tokens_low"]).any() else "no intervals"
    prompts = counted(int(cells["prompts"].iloc[0]), "prompt")
    caption = f"{prompts} of {about.prompts}, greedy texts replayed; {bands}. w: tokens of each row."
    figure, axes = style.new_figure(f"Tokens per call against top-k\n{about.title}", caption)
    draw(axes, lines)
    pictures.level(axes, 1, "plain decoding")
    axes.set(xlabel="k, rows: the first tokens of the ranking", ylabel="tokens per call", xlim=(0, None))
    style.legend_above(axes, 2)
    return figure


def draw(axes: Axes, lines: Lines) -> None:
    """Draw tokens per call over k: a colour for each drafter, a dash for each w, intervals as bands."""
    names, widths = ({key: at for at, key in enumerate(sorted(set(keys)))} for keys in zip(*lines, strict=True))
    for (name, w), part in lines.items():
        colour, marker, *_ = style.look(names[name])
        axes.fill_between(part["k"], part["tokens_low"], part["tokens_high"], color=colour, alpha=0.12, linewidth=0)
        axes.plot(part["k"], part["tokens"], color=colour, linestyle=style.look(widths[w]).dash, marker=marker,
                  markersize=5, label=f"{name}, w = {w}")  # fmt: skip
