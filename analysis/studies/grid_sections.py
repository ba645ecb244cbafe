"""What study `grid` says: which block is fastest, what it gains over the usual one, and whether live runs agree."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..figures.plots import counted
from ..findings import About, Findings
from ..sections import Section
from .grid import Block, Grid, Lead, best_by_category, grid, live_check
from .grid_plots import maps, predicted_and_live
from .replayed import bracket, origin

USUAL: Block = (10, 10)
"""Of N-Grammys (2411.03786)."""
_LEAST = 5  # prompts of a category that is looked at alone
_EXACT = ("float32", "float64")


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From `replay`, `block_times`, `host_times`, `live` and `skipped`."""
    replay, live = tables["replay"], tables["live"]
    found = grid(replay, tables["block_times"], tables["host_times"], about.replicates, about.seed)
    check = live_check(found.rows, live)
    sections = [_tokens(found, tables["skipped"], about), _speed(found, tables["block_times"], about)]
    if len(check):
        sections.append(_live(check, live, about))
    return Findings(tuple(sections), _metrics(found, check), _curves(found))


def _metrics(found: Grid, check: pd.DataFrame) -> dict[str, float]:
    """`grid.*`: best_k and best_w are those of the fastest block."""
    fastest, longest = found.best("speedup"), found.best("tokens")
    metrics = {
        "grid.best_k": float(fastest[0]),
        "grid.best_w": float(fastest[1]),
        "grid.speedup.best": found.value("speedup", fastest),
        "grid.speedup.best.ci_low": found.value("speedup_low", fastest),
        "grid.speedup.best.ci_high": found.value("speedup_high", fastest),
        "grid.speedup.best.tokens_per_call": found.value("tokens", fastest),
        "grid.best_tokens_per_call": found.value("tokens", longest),
        "grid.best_tokens_per_call.k": float(longest[0]),
        "grid.best_tokens_per_call.w": float(longest[1]),
    }
    if found.has(USUAL):
        lead = found.lead("speedup", fastest, USUAL)
        metrics |= {
            "grid.speedup.10x10": found.value("speedup", USUAL),
            "grid.tokens_per_call.10x10": found.value("tokens", USUAL),
            "grid.speedup.lead": lead.value,
            "grid.speedup.lead.ci_low": lead.low,
            "grid.speedup.lead.ci_high": lead.high,
        }
    if len(check):
        metrics["grid.live.same_rounds"] = float(check["same_rounds"].sum() / check["streams"].sum())
        metrics["grid.live.worst_error"] = float(check["error"].abs().max())
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _curves(found: Grid) -> dict[str, dict[int, float]]:
    """Over w, for every k."""
    curves: dict[str, dict[int, float]] = {}
    for k, part in found.blocks.groupby("k"):
        for name, column in (("tokens_per_call", "tokens"), ("speedup", "speedup")):
            points = part.dropna(subset=column)
            if len(points):
                curves[f"curve.grid.{name}.k{k}"] = dict(
                    zip(points["w"].tolist(), points[column].tolist(), strict=True)
                )
    return curves


def _panel(found: Grid, name: str) -> pd.Series:
    return found.blocks.set_index(["k", "w"])[name]


def _frames(best: str) -> str:
    return f"Frame: {best}; dashed: the usual {USUAL}."


# Tokens per call ------------------------------------------------------------------------------------


def _tokens(found: Grid, skipped: pd.DataFrame, about: About) -> Section:
    longest = found.best("tokens")
    text = [
        f"Most tokens per call: {_value(found, 'tokens', longest)} with the block {longest}"
        + (f", {_compared(found, 'tokens', longest)}." if found.has(USUAL) and longest != USUAL else ".")
    ]
    text.append(_enough(found, longest))
    text += origin(found.rows, skipped, about.title, about.prompts)
    caption = (
        f"{counted(found.sums.prompts, 'prompt')} of {about.prompts}; greedy texts replayed, which is exact. "
        f"{_frames('the most')}"
    )
    name = "Tokens per call of the target, its own token included"
    figure = maps(
        {name: _panel(found, "tokens")},
        {name: longest},
        USUAL,
        title=f"Tokens per call over k rows of width w\n{about.title}",
        caption=caption,
    )
    return Section(
        "Tokens per call",
        tuple(text),
        tables=(
            (
                f"Tokens per call with 95% intervals over {counted(found.sums.prompts, 'prompt')}",
                _table(found, "tokens"),
            ),
        ),  # fmt: skip
        figures=(("tokens_per_call", figure),),
    )


def _enough(found: Grid, longest: Block) -> str:
    """The smallest block with most of what the best gains."""
    blocks, gain = found.blocks, found.value("tokens", longest) - 1
    if gain <= 0:
        return "No block gains anything over plain decoding."
    near = blocks[blocks["tokens"] - 1 >= 0.9 * gain].sort_values("nodes").iloc[0]
    return (
        f"Nine tenths of its gain over plain decoding come with ({int(near['k'])}, {int(near['w'])}): "
        f"{near['tokens']:.2f} tokens per call from {near['nodes']:.0f} nodes a round, where the best has "
        f"{found.value('nodes', longest):.0f}."
    )


def _value(found: Grid, name: str, block: Block) -> str:
    interval = bracket(found.value(f"{name}_low", block), found.value(f"{name}_high", block))
    return f"{found.value(name, block):.2f}{interval}"


def _compared(found: Grid, name: str, best: Block) -> str:
    lead = found.lead(name, best, USUAL)
    return f"{USUAL} has {_value(found, name, USUAL)}, {_lead(lead)}"


def _lead(lead: Lead) -> str:
    interval = bracket(lead.low, lead.high)
    verdict = ""
    if interval:
        verdict = ": the best is better beyond chance" if lead.low > 0 else ": no difference beyond chance"
    return f"the difference being {lead.value:.2f}{interval} (paired){verdict}"


def _table(found: Grid, name: str) -> pd.DataFrame:
    """w down, k across."""
    shown = found.blocks.assign(
        text=[
            "–" if np.isnan(value) else f"{value:.2f}{bracket(low, high)}"
            for value, low, high in zip(
                found.blocks[name], found.blocks[f"{name}_low"], found.blocks[f"{name}_high"], strict=True
            )
        ]
    )
    wide = shown.pivot(index="w", columns="k", values="text")
    wide.columns = pd.Index([f"k = {k}" for k in wide.columns])
    return wide.reset_index()


# Speedup --------------------------------------------------------------------------------------------


def _speed(found: Grid, times: pd.DataFrame, about: About) -> Section:
    fastest = found.best("speedup")
    kind = "simulated speedup" if about.simulated else "speedup"
    repeats = len(found.by_repeat)
    chosen = found.steadiness("speedup", fastest)
    text = [
        f"Fastest: the block {fastest} with a {kind} of {_value(found, 'speedup', fastest)} over plain decoding"
        + (f"; {_compared(found, 'speedup', fastest)}." if found.has(USUAL) and fastest != USUAL else "."),
        "It is chosen and judged on the same texts, which favours it a little"
        + ("" if np.isnan(chosen) else f"; it is the best in {chosen:.0%} of the resampled sets of prompts")
        + ".",
        _how(times, about, repeats),
    ]
    if repeats > 1:
        text.append(
            "The intervals say how far other prompts would move a speedup, the standard deviation over repeats "
            f"({found.value('deviation', fastest):.2f} for the fastest block) how far timing again would."
        )
    missing = found.blocks["speedup"].isna().sum()
    if missing:
        text.append(f"{counted(int(missing), 'block')} could not be timed and have no speedup (grey).")
    mean = f"{kind.capitalize()}" + (f", mean of {counted(repeats, 'repeat')}" if repeats > 1 else "")
    panels = {mean: _panel(found, "speedup")}
    if repeats > 1:
        panels["Standard deviation over the repeats of the timing"] = _panel(found, "deviation")
    caption = (
        f"{counted(found.sums.prompts, 'prompt')} of {about.prompts}. Rounds by replay, seconds "
        + ("simulated by a cost model" if about.simulated else "from measured calls, drafts and commits")
        + f"; over plain decoding. {_frames('the fastest')}"
    )
    figure = maps(
        panels,
        {mean: fastest},
        USUAL,
        title=f"{kind.capitalize()} over k rows of width w\n{about.title}",
        caption=caption,
    )
    tables = [
        (
            f"{kind.capitalize()} with 95% intervals over {counted(found.sums.prompts, 'prompt')}",
            _table(found, "speedup"),
        )
    ]
    categories = best_by_category(found, _LEAST)
    if len(categories):
        tables.append((f"By category of at least {_LEAST} prompts, without intervals", categories))
    return Section(kind.capitalize(), tuple(text), tuple(tables), (("speedup", figure),))


def _how(times: pd.DataFrame, about: About, repeats: int) -> str:
    contexts = ", ".join(f"{context:,}" for context in sorted(times["context"].unique()))
    if about.simulated:
        return (
            "All seconds are a cost model's, of calls, drafts and commits alike: nothing was timed, and no live run "
            "exists to check them."
        )
    calls = int(times.groupby(["k", "w", "context"])["call"].nunique().max())
    note = (
        "Seconds of a round: the call by t(k, w, context) of every block behind "
        f"{contexts} cached tokens ({counted(calls, 'call')} each), between these on straight lines in tokens "
        "evaluated and in context, since drafts whose rows begin alike are smaller than their block; drafting, "
        "accepting and committing from short live runs in five blocks, on straight lines in draft nodes."
    )
    late = times["missing"] == "time"
    if late.any():
        note += f" {late.sum():,} of {len(times):,} calls were not made because study.seconds ran out."
    return note + (f" {counted(repeats, 'repeat')} of all timing." if repeats > 1 else "")


# Live runs ------------------------------------------------------------------------------------------


def _live(check: pd.DataFrame, live: pd.DataFrame, about: About) -> Section:
    dtype, streams = str(live["dtype"].iloc[0]), int(check["streams"].max())
    repeats = int(live["repeat"].nunique())
    same, of = int(check["same_rounds"].sum()), int(check["streams"].sum())
    worst = check.loc[check["error"].abs().idxmax()]
    rounds = (
        f"In {same} of {of} cases (a text in a corner block) live decoding took exactly as many rounds as the replay"
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
    shown = pd.DataFrame(
        {
            "block": [f"({row.k}, {row.w})" for row in check.itertuples()],
            "tokens per call: replayed": check["tokens_predicted"].map("{:.3f}".format),
            "tokens per call: live": check["tokens_measured"].map("{:.3f}".format),
            "speedup: predicted": check["speedup_predicted"].map("{:.2f}".format),
            "speedup: live": [
                f"{row.speedup_measured:.2f}" + ("" if np.isnan(row.deviation) else f" ± {row.deviation:.2f}")
                for row in check.itertuples()
            ],
            "error": check["error"].map("{:+.1%}".format),
        }
    )
    figure: Figure = predicted_and_live(
        check,
        title=f"Predicted and live speedup in the corner blocks\n{about.title}",
        caption=(
            f"{counted(streams, 'prompt')} of {about.prompts}, {counted(repeats, 'repeat')} interleaved with plain "
            "decoding; bars: standard deviation over repeats. Predictions are for the same texts."
        ),
    )
    return Section(
        "Live runs in the corners",
        text,
        tables=((f"{counted(streams, 'text')} decoded live, {counted(repeats, 'repeat')}", shown),),
        figures=(("live", figure),),
    )
