"""What study `topk` says: what strategies that see the last token only earn with more rows, and with longer ones."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..figures import style
from ..findings import About, Findings
from ..sections import Section
from .replayed import bracket, origin, tokens_per_call

_ENOUGH = 0.9  # share of what the largest k gains
_LOOKS = ((style.BLUE, "o"), (style.ORANGE, "D"), (style.GREEN, "^"), (style.PURPLE, "v"), (style.GREY, "s"))
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From `topk` and `skipped`."""
    table = tables["topk"]
    cells = tokens_per_call(table, ["drafter", "k", "w"], about.replicates, about.seed)
    lines = {(str(name), int(w)): part.sort_values("k") for (name, w), part in cells.groupby(["drafter", "w"])}
    text = (_answer(cells), *_widths(lines), _saturation(lines), *_origin(table, tables["skipped"], about))
    section = Section(
        "Tokens per call against top-k",
        tuple(sentence for sentence in text if sentence),
        tables=(("Tokens per call of the target, its own token included", _table(cells)),),
        figures=(("topk", figure(cells, about)),),
    )
    curves = {
        f"curve.topk.{name}.w{w}": dict(zip(part["k"].tolist(), part["value"].tolist(), strict=True))
        for (name, w), part in lines.items()
    }
    metrics: dict[str, float] = {}
    for (name, w), part in lines.items():
        best = part.loc[part["value"].idxmax()]
        metrics[f"topk.{name}.w{w}.best"] = float(best["value"])
        metrics[f"topk.{name}.w{w}.best_k"] = float(best["k"])
    return Findings((section,), metrics, curves)


def _origin(table: pd.DataFrame, skipped: pd.DataFrame, about: About) -> tuple[str, ...]:
    return origin(table, skipped, about.title, about.prompts)


def _answer(cells: pd.DataFrame) -> str:
    """The best cell of each drafter."""
    best = cells.loc[cells.groupby("drafter")["value"].idxmax()].sort_values("value", ascending=False)
    listed = [
        f"{row.drafter} {row.value:.2f}{bracket(row.low, row.high)} at k = {row.k}, w = {row.w}"
        for row in best.itertuples()
    ]
    return f"Most tokens per call: {'; '.join(listed)}. Plain decoding has 1."


def _widths(lines: Mapping[tuple[str, int], pd.DataFrame]) -> list[str]:
    """What longer rows add at the largest k."""
    sentences = []
    for name in dict.fromkeys(name for name, _ in lines):
        widths = sorted(w for other, w in lines if other == name)
        if len(widths) > 1:
            ends = [lines[name, w].iloc[-1] for w in (widths[0], widths[-1])]
            sentences.append(
                f"{name}: at k = {int(ends[0]['k'])}, rows of {widths[-1]} instead of {widths[0]} change tokens per "
                f"call from {ends[0]['value']:.2f} to {ends[1]['value']:.2f}."
            )
    return sentences


def _saturation(lines: Mapping[tuple[str, int], pd.DataFrame]) -> str:
    """From which k on most is gained."""
    listed = []
    for name in dict.fromkeys(name for name, _ in lines):
        w = min(width for other, width in lines if other == name)
        part = lines[name, w]
        gained = part["value"] - 1
        if len(part) > 1 and gained.iloc[-1] > 0:
            k = int(part.loc[gained >= _ENOUGH * gained.iloc[-1], "k"].iloc[0])
            listed.append(f"{name} by k = {k} (w = {w})")
    if not listed:
        return ""
    return f"{_ENOUGH:.0%} of what the largest k gains over plain decoding is there: {', '.join(listed)}."


def _table(cells: pd.DataFrame) -> pd.DataFrame:
    """k down, drafter and w across."""
    shown = cells.assign(
        column=[f"{row.drafter}, w = {row.w}" for row in cells.itertuples()],
        text=[f"{row.value:.3f}{bracket(row.low, row.high, 3)}" for row in cells.itertuples()],
    )
    columns = list(dict.fromkeys(shown.sort_values(["drafter", "w"])["column"]))
    return shown.pivot(index="k", columns="column", values="text")[columns].rename_axis(columns=None).reset_index()


@style.in_style
def figure(cells: pd.DataFrame, about: About) -> Figure:
    """Tokens per call over k: a colour for each drafter, a dash for each w, with the interval as a band."""
    prompts = int(cells["prompts"].iloc[0])
    bands = "bands: 95% prompt-bootstrap intervals" if np.isfinite(cells["low"]).any() else "no intervals"
    caption = f"{prompts:,} prompts of {about.prompts}, greedy texts replayed; {bands}. w: tokens of each row."
    title = about.title
    figure, axes = style.new_figure(f"Tokens per call against top-k\n{title}", caption)
    names, widths = sorted(set(cells["drafter"])), sorted(set(cells["w"]))
    for index, name in enumerate(names):
        colour, marker = _LOOKS[index % len(_LOOKS)]
        for place, w in enumerate(widths):
            part = cells[(cells["drafter"] == name) & (cells["w"] == w)].sort_values("k")
            dash = _DASHES[place % len(_DASHES)]
            axes.fill_between(part["k"], part["low"], part["high"], color=colour, alpha=0.12, linewidth=0)
            label = f"{name}, w = {w}"
            axes.plot(part["k"], part["value"], color=colour, linestyle=dash, marker=marker, markersize=5, label=label)
    axes.axhline(1, color=style.BLACK, linewidth=1.6, linestyle=(0, (1, 1.5)))
    axes.annotate("plain decoding", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 4),
                  textcoords="offset points", ha="right")  # fmt: skip
    axes.set(xlabel="k, rows: the first tokens of the ranking", ylabel="tokens per call", xlim=(0, None))
    style.legend_above(axes, 2)
    return figure
