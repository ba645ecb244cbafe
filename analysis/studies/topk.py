"""Study `topk`: tokens per call of strategies that see the last token only, with more rows and with longer ones."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..comparisons import curves_of, interval, metrics_of, printed, tokens_per_call
from ..figures import pictures, style
from ..sections import About, Findings, Section, Tables, counted, register

ENOUGH = 0.9  # share of what the largest k gains


@register("topk", overlay="ngrammys_topk")
def findings(tables: Tables, about: About) -> Findings:
    """Read `topk` and `skipped`."""
    table = tables["topk"]
    cells = tokens_per_call(table, ["drafter", "k", "w"], about.replicates, about.seed)
    best = best_of(cells)
    lines = best.sort_values("tokens", ascending=False, kind="stable").drop_duplicates("drafter").to_dict("records")
    listed = [f"{line['drafter']} {interval(line, 'tokens'):.2f} at k = {line['k']}, w = {line['w']}" for line in lines]
    text = [f"Most tokens per call: {'; '.join(listed)}. Plain decoding has 1."]
    for name, part in cells[cells["k"] == cells.groupby("drafter")["k"].transform("max")].groupby("drafter"):
        short, long = part.iloc[0], part.iloc[-1]
        if len(part) > 1:
            text.append(
                f"{name}: at k = {short['k']}, rows of {long['w']} instead of {short['w']} change tokens per call from "
                f"{short['tokens']:.2f} to {long['tokens']:.2f}."
            )
    saturated = [
        f"{line['drafter']} by k = {line['enough']:.0f} (w = {line['w']})"
        for line in best.drop_duplicates("drafter").dropna(subset="enough").to_dict("records")
    ]
    if saturated:
        text.append(f"{ENOUGH:.0%} of what the largest k gains over plain decoding is there: {', '.join(saturated)}.")
    with style.styled():
        bands = "bands: 95% prompt-bootstrap intervals" if np.isfinite(cells["tokens_low"]).any() else "no intervals"
        prompts = counted(int(cells["prompts"].iloc[0]), "prompt")
        caption = f"{prompts} of {about.prompts}, greedy texts replayed; {bands}. w: tokens of each row."
        figure, axes = style.new_figure(f"Tokens per call against top-k\n{about.title}", caption)
        draw(axes, cells, "plain decoding")
        axes.set(xlabel="k, rows: the first tokens of the ranking", ylabel="tokens per call", xlim=(0, None))
        style.legend_above(axes, 2)
    named = cells.assign(name=strategy_names(cells), shown=printed(cells, "tokens", ".3f"))
    wide = named.pivot(index="k", columns="name", values="shown")[strategy_names(best)]
    shown = ("Tokens per call of the target, its own token included", wide.rename_axis(columns=None).reset_index())
    origin = about.origin(table, tables["skipped"])
    section = Section("Tokens per call against top-k", (*text, *origin), (shown,), (("topk", figure),))
    metrics = metrics_of(best, "topk/{drafter}.w{w}.{what}", {"best": "tokens", "best_k": "k"}, bounds=False)
    curves = curves_of(cells, "curve/topk/{drafter}.w{w}", ["drafter", "w"], "k", {"": "tokens"})
    return Findings((section,), metrics, curves)


def strategy_names(cells: pd.DataFrame) -> list[str]:
    return [f"{name}, w = {w}" for name, w in zip(cells["drafter"], cells["w"], strict=True)]


def best_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the line with most tokens per call of each drafter and w; with enough, the smallest k with `ENOUGH` of
    what the largest gains over plain decoding, NaN without a gain.
    """
    best = []
    for _, part in cells.sort_values("k").groupby(["drafter", "w"]):
        gained = part["tokens"] - 1
        known = len(part) > 1 and gained.iloc[-1] > 0
        enough = part.loc[gained >= ENOUGH * gained.iloc[-1], "k"].iloc[0] if known else np.nan
        best.append(part.loc[[part["tokens"].idxmax()]].assign(enough=enough))
    return pd.concat(best, ignore_index=True)


def draw(axes: Axes, cells: pd.DataFrame, plain: str = "") -> None:
    """Draw tokens per call over k: a colour for each drafter, a dash for each w, intervals as bands; and the level of
    plain decoding, under a name.
    """
    names, widths = ({each: at for at, each in enumerate(sorted(set(cells[key])))} for key in ("drafter", "w"))
    for (name, w), part in cells.groupby(["drafter", "w"]):
        colour, marker, *_ = style.look(names[name])
        axes.fill_between(part["k"], part["tokens_low"], part["tokens_high"], color=colour, alpha=0.12, linewidth=0)
        axes.plot(part["k"], part["tokens"], color=colour, linestyle=style.look(widths[w]).dash, marker=marker,
                  markersize=5, label=f"{name}, w = {w}")  # fmt: skip
    pictures.level(axes, 1, plain)
