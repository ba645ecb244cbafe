"""What study `phase_transition` says: up to how many tokens verification is nearly free, where it turns to arithmetic,
what context and evaluation change. Sections for reports and notebooks.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..figures.plots import counted
from ..findings import About, Findings
from ..sections import Section
from .transition import PLAIN, UNIT, Growth, crossing, growth, product_lines, roofline_ridge, shape_effect, slowdowns
from .transition_plots import heat_maps, transition

BLOCK = (10, 10)  # the paper's
_SELECTED = ((1, 0), (1, 1), (1, 4), (1, 10), (2, 2), (5, 5), (10, 1), (10, 4), BLOCK, (25, 14), (32, 15))
_ZOOM = 64  # tokens: where single tiles can be told apart
_CACHES = {
    "packed": "packed into one row over one cache: 1 + k w of them",
    "rows": "in k rows, each with a root and a copy of the cache: k (w + 1) of them",
}


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From `block_times` and `intensity`."""
    times, intensity = tables["block_times"], tables["intensity"]
    cells = slowdowns(times)
    contexts = sorted(int(context) for context in cells["context"].unique())
    middle = contexts[len(contexts) // 2]  # at which single figures are given
    grown = {context: growth(times, context) for context in contexts}
    ridge = roofline_ridge(intensity, middle)
    sections = (
        _blocks(times, cells, grown, middle, about),
        _bound(times, grown, intensity, middle, ridge, about),
        _context_and_shape(times, cells, contexts),
    )
    return Findings(sections, _metrics(cells, grown, middle, ridge), _curves(grown))


def _metrics(cells: pd.DataFrame, grown: Mapping[int, Growth], middle: int, ridge: float | None) -> dict[str, float]:
    """`transition.*`; single figures are those of the middle context, the others end in theirs."""
    knee = grown[middle].knee()
    values: dict[str, float | None] = {
        "transition.tokens_within_10pct": float(grown[middle].within(1.1)),
        "transition.tokens_within_50pct": float(grown[middle].within(1.5)),
        "transition.ridge": knee,
        "transition.ridge.roofline": ridge,
        "transition.context": float(middle),
    }
    for context, each in grown.items():
        values[f"transition.tokens_within_10pct.{context}"] = float(each.within(1.1))
        values[f"transition.tokens_within_50pct.{context}"] = float(each.within(1.5))
        values[f"transition.t11_ms.{context}"] = 1e3 * _cell(cells, UNIT, context, "seconds")
        block = _cell(cells, BLOCK, context)
        values[f"transition.slowdown.{BLOCK[0]}x{BLOCK[1]}.{context}"] = None if np.isnan(block) else block
    return {name: value for name, value in values.items() if value is not None}


def _curves(grown: Mapping[int, Growth]) -> dict[str, dict[int, float]]:
    return {
        f"curve.slowdown.{context}": dict(zip(each.tokens.tolist(), each.slowdown.tolist(), strict=True))
        for context, each in grown.items()
    }


def _cell(cells: pd.DataFrame, block: tuple[int, int], context: int, column: str = "slowdown") -> float:
    """NaN where the block was not timed."""
    found = cells[(cells["k"] == block[0]) & (cells["w"] == block[1]) & (cells["context"] == context)]
    return float(found[column].iloc[0]) if len(found) else float("nan")


# How much longer a call takes -----------------------------------------------------------------------


def _blocks(
    times: pd.DataFrame, cells: pd.DataFrame, grown: Mapping[int, Growth], middle: int, about: About
) -> Section:
    evaluation = str(times["evaluation"].iloc[0])
    unit = _cell(cells, UNIT, middle, "seconds")
    block, plain = _cell(cells, BLOCK, middle), _cell(cells, PLAIN, middle)
    answer = (
        f"With {middle:,} tokens in the cache a call costs at most 10% more than t(1, 1) = {1e3 * unit:.3g} ms "
        f"{_up_to(grown[middle], 1.1)}, and at most 50% more {_up_to(grown[middle], 1.5)}"
        + ("." if np.isnan(block) else f"; the block (10, 10) takes {block:.2f} times as long.")
    )
    meaning = (
        "A block is k rows of w draft tokens after the root, the last committed token; its tokens are evaluated "
        f"{_CACHES[evaluation]}. The slow-down is t(k, w) over t(1, 1), as in N-Grammys (2411.03786); (1, 0) is a "
        f"plain step of decoding" + ("." if np.isnan(plain) else f" and takes {plain:.2f} of t(1, 1).")
    )
    spread = cells["spread"].dropna()
    caption = (
        f"Mean of {_calls(cells)} for each cell"
        + (
            f"; standard deviation over mean {spread.median():.1%} in the median cell, {spread.max():.0%} in the worst"
            if len(spread)
            else ""
        )
        + f". w counts draft tokens, without the root; at w = 0, whatever k, a call is a plain step. Tokens are "
        f"evaluated {_CACHES[evaluation]}. White lines: equal slow-down."
    )
    figure = heat_maps(cells, title=f"Slow-down of a call on k rows of w draft tokens\n{about.title}", caption=caption)
    return Section(
        "How much longer a call takes",
        tuple(text for text in (answer, meaning, _missing(times)) if text),
        tables=(
            (f"t(k, w) / t(1, 1): mean of {_calls(cells)} ± their standard deviation; t(1, 1) in ms", _table(cells)),
        ),
        figures=(("slowdown", figure),),
    )


def _up_to(each: Growth, limit: float) -> str:
    tokens = each.within(limit)
    return f"at all sizes measured, up to {tokens} tokens" if tokens == each.largest else f"up to {tokens} tokens"


def _calls(cells: pd.DataFrame) -> str:
    least, most = int(cells["calls"].min()), int(cells["calls"].max())
    return counted(most, "call") if least == most else f"{least} to {most} calls"


def _missing(times: pd.DataFrame) -> str:
    """What was asked for and not timed, and why."""
    reasons = {
        "context": "exceed what the target can hold",
        "memory": "need more memory than there is",
    }
    cells = times.groupby(["k", "w", "context"])["missing"].agg(["first", "last"])
    notes = [
        f"{counted(number, 'cell')} of {len(cells):,} {text if number != 1 else _singular(text)}"
        for reason, text in reasons.items()
        if (number := int((cells["first"] == reason).sum()))
    ]
    late = int((times["missing"] == "time").sum())
    if late:
        notes.append(f"{late:,} of {len(times):,} calls were not made because time (`study.seconds`) ran out")
    return f"Left out: {'; '.join(notes)}." if notes else ""


def _singular(text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{verb}s {rest}"


def _table(cells: pd.DataFrame) -> pd.DataFrame:
    """Selected blocks by context: those measured of a few that tell the shape."""
    measured = set(cells[["k", "w"]].itertuples(index=False, name=None))
    last = max(measured)
    contexts = sorted(cells["context"].unique())
    rows = []
    for block in sorted({*(block for block in _SELECTED if block in measured), last}):
        tokens = int(cells.loc[(cells["k"] == block[0]) & (cells["w"] == block[1]), "rows_evaluated"].iloc[0])
        row: dict[str, object] = {"k": block[0], "w": block[1], "tokens": tokens}
        for context in contexts:
            value, spread = _cell(cells, block, context), _cell(cells, block, context, "spread")
            text = "–" if np.isnan(value) else f"{value:.2f}" + ("" if np.isnan(spread) else f" ± {value * spread:.2f}")
            if block == UNIT:
                text += f" ({1e3 * _cell(cells, UNIT, context, 'seconds'):.3g} ms)"
            row[f"{context:,} cached"] = text
        rows.append(row)
    return pd.DataFrame(rows)


# Where it turns to arithmetic -----------------------------------------------------------------------


def _bound(
    times: pd.DataFrame,
    grown: Mapping[int, Growth],
    intensity: pd.DataFrame,
    middle: int,
    ridge: float | None,
    about: About,
) -> Section:
    each, lines = grown[middle], product_lines(intensity, middle)
    knee = each.knee()
    if knee is None:
        answer = (
            f"With {middle:,} tokens in the cache the time does not grow with the tokens evaluated, as far as measured."
        )
    elif knee <= each.tokens[0]:
        answer = f"With {middle:,} tokens in the cache there is no flat part: every token adds to the time."
    else:
        answer = (
            f"With {middle:,} tokens in the cache the time is flat up to about {knee:.0f} tokens; from there on every "
            "token adds to it."
        )
    sentences = [answer]
    if ridge is not None:
        bound = float(lines["threshold"].iloc[0])
        sentences.append(
            f"At its best this machine does {bound:.3g} operations in the time of reading a byte, so that a call "
            f"without any overhead would leave the memory-bound region at n* = {ridge:.3g} tokens."
        )
        sentences.append(_crossings(lines))
    steps = each.steps(_ZOOM)
    # In rows, neighbouring sizes are blocks of other shapes, whose copies of the cache make steps of their own.
    if steps and (times["evaluation"] == "packed").all():
        largest = sorted(steps, key=lambda step: -step[2])[:4]
        listed = ", ".join(f"{a} to {b} ({rise:+.0%})" for a, b, rise in sorted(largest))
        sentences.append(
            f"The time climbs in steps where one more token needs a further tile of a kernel; the largest up to "
            f"{_ZOOM} tokens: from {listed}."
        )
    caption = (
        f"Points: median over all calls on so many tokens, {int(times['k'].nunique())} x {int(times['w'].nunique())} "
        f"blocks; lines: the closest that never fall. Unit: t(1, 1) at the same context; no intervals."
        + (
            f" Below: operations per byte of the model's matrix products with {middle:,} cached tokens; above the "
            f"dotted line this machine computes a product more slowly than it reads it."
            if len(lines)
            else ""
        )
    )
    title = f"Slow-down by tokens evaluated\n{about.title}"
    figures: list[tuple[str, Figure]] = [("slowdown_by_tokens", transition(grown, lines, title=title, caption=caption))]
    if each.largest > 2 * _ZOOM:
        zoomed = transition(grown, lines, title=f"{title}, up to {_ZOOM} tokens", caption=caption, largest=_ZOOM)
        figures.append(("slowdown_steps", zoomed))
    tables = ((f"Operations per byte by product, {middle:,} cached tokens", _products(lines)),) if len(lines) else ()
    return Section(
        "Where a call turns compute-bound", (" ".join(sentences[:2]), *sentences[2:]), tables, tuple(figures)
    )


def _crossed(lines: pd.DataFrame) -> float | None:
    return crossing(lines["rows_evaluated"].to_numpy(), lines["high"].to_numpy(), float(lines["threshold"].iloc[0]))


def _crossings(lines: pd.DataFrame) -> str:
    end = int(lines["rows_evaluated"].max())
    at = {str(names): _crossed(part) for names, part in lines.groupby("products", sort=False)}
    reached = sorted((value, names) for names, value in at.items() if value is not None)
    never = [names for names, value in at.items() if value is None]
    sentences = []
    if reached:
        listed = "; ".join(f"{names} from {value:.0f} tokens" for value, names in reached)
        sentences.append(f"Products become bound by arithmetic one by one: {listed}.")
    if never:
        sentences.append(f"{'; '.join(never)}: bound by memory at all sizes measured, up to {end} tokens.")
    return " ".join(sentences)


def _products(lines: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for names, part in lines.groupby("products", sort=False):
        part = part.sort_values("rows_evaluated")
        value, last = _crossed(part), part.iloc[-1]
        rows.append(
            {
                "product": names,
                "size": part["size"].iloc[0],
                f"{part['rows_evaluated'].iloc[0]} token": f"{part['high'].iloc[0]:.3g}",
                f"{last['rows_evaluated']} tokens": f"{last['high']:.3g}",
                "bound by arithmetic from": "–" if value is None else f"{value:.0f} tokens",
            }
        )
    return pd.DataFrame(rows)


# Context and evaluation -----------------------------------------------------------------------------


def _context_and_shape(times: pd.DataFrame, cells: pd.DataFrame, contexts: list[int]) -> Section:
    short, long = contexts[0], contexts[-1]
    sentences = []
    if short == long:
        sentences.append(f"One context was measured, {short:,} tokens: nothing can be said about its effect.")
    else:
        block = (
            BLOCK
            if not np.isnan(_cell(cells, BLOCK, short))
            else max(set(cells[["k", "w"]].itertuples(index=False, name=None)))
        )
        low, high = _cell(cells, block, short), _cell(cells, block, long)
        units = [1e3 * _cell(cells, UNIT, context, "seconds") for context in (short, long)]
        more = "steeper" if high > 1.05 * low else "flatter" if high < 0.95 * low else "the same"
        sentences.append(
            f"From {short:,} to {long:,} cached tokens t(1, 1) goes from {units[0]:.3g} to {units[1]:.3g} ms, and the "
            f"slow-down of {block} from {low:.2f} to {high:.2f}: the transition is {more} behind a longer context."
        )
    evaluation = str(times["evaluation"].iloc[0])
    effect = shape_effect(times, long)
    if effect is not None:
        ratio, sizes = effect
        why = "all nodes share one cache" if evaluation == "packed" else "every further row reads a copy of the cache"
        sentences.append(
            f"Evaluated {'packed' if evaluation == 'packed' else 'in rows'}, of blocks with equal tokens the one with "
            f"most rows takes {ratio:.2f} times as long as the one with fewest (median over {counted(sizes, 'size')}, "
            f"{long:,} cached): {why}."
        )
    return Section("What context and evaluation change", tuple(sentences))
