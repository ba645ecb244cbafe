"""What the ablations of heads say: grounded against independent heads, each variant, and how many heads pay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specdec.errors import UsageError

from ..figures.plots import counted
from ..intervals import Interval
from ..runs.leaderboard import shown
from ..sections import Section
from . import heads_plots
from .heads_ablation import (
    CHAIN,
    COMMAND,
    GROUNDED,
    INDEPENDENT,
    RESULT,
    TREE,
    Row,
    deepest,
    difference,
    load_ablation,
    steepness,
    tokens_per_round,
)

PUBLISHED_GAIN = 0.43
PUBLISHED = f'+{PUBLISHED_GAIN} ("Not So Speculative Decoding", Vicuna-7B)'
WORDS = {  # of a variant
    "medusa": "independent heads",
    "layers_2": "two blocks",
    "layers_4": "four blocks",
    "width_quarter": "a quarter of the width",
    "width_four_times": "four times the width",
    "offset_1": "states 1 layer below the last",
    "offset_2": "states 2 layers below the last",
    "offset_4": "states 4 layers below the last",
    "offset_6": "states 6 layers below the last",
    "embeddings": "embeddings for states",
    "gru": "a GRU",
    "prefix": "attention over the prefix",
    "output_own": "own output layers",
    "output_tied": "the target's output layer",
}


def ablation_sections(path: Path | str = RESULT, replicates: int = 10_000, seed: int = 0) -> tuple[Section, ...]:
    """All of them; where there is no result yet, a section that says what makes it."""
    try:
        rows = load_ablation(path)
    except UsageError as error:
        return (Section("Ablations", (str(error),)),)
    return (
        grounding_section(rows, replicates, seed),
        variants_section(rows, replicates, seed),
        count_section(rows, replicates, seed),
    )


def missing(title: str, *variants: str) -> Section:
    """What a section is that lacks rows."""
    return Section(title, (f"The ablations lack {' and '.join(variants)}: `{COMMAND}` measures them.",))


# Grounded against independent heads -------------------------------------------------------------------


def grounding_section(rows: Sequence[Row], replicates: int = 10_000, seed: int = 0) -> Section:
    """Tokens per round of grounded heads beyond independent ones, how accuracy falls with position, and why."""
    title = "Grounded against independent heads"
    grounded, independent = (deepest(rows, variant, TREE) for variant in (GROUNDED, INDEPENDENT))
    if grounded is None or independent is None:
        return missing(title, *(name for name, row in ((GROUNDED, grounded), (INDEPENDENT, independent)) if not row))
    gain = difference(grounded, independent, replicates, seed)
    falls = steepness(grounded, independent, replicates, seed)
    lines = {"grounded": list(falls.heads["first"]), "independent": list(falls.heads["second"])}
    figure = heads_plots.by_head(
        lines,
        title=f"Top-1 accuracy by head, along the target's own text\n{_setting(grounded)}",
        caption=f"{counted(gain.prompts, 'prompt')}, given the true tokens before; bars: 95% prompt-bootstrap "
        f"intervals. {_budget(grounded)}.",
    )
    text = [
        f"On the same tree of {grounded['nodes']} nodes and {counted(gain.prompts, 'prompt')} grounded heads yield "
        f"{shown(tokens_per_round(grounded, replicates, seed))} tokens per round and independent ones "
        f"{shown(tokens_per_round(independent, replicates, seed))}: {signed(gain)}. {_gain_in_words(gain)}",
        _fall_in_words(falls.first, falls.second, falls.difference),
        *_without_repetition(grounded, independent, replicates, seed),
        *_chain_in_words(rows, replicates, seed),
        *_why(rows, gain, replicates, seed),
        f"{_setting(grounded)}; {_budget(grounded)}; intervals are 95% prompt-bootstrap intervals, paired by prompt.",
    ]
    return Section(
        title,
        tuple(text),
        tables=(
            ("Top-1 accuracy by head along the target's own text, given the true tokens before", _heads(falls.heads)),
        ),
        figures=(("heads_by_position", figure),),
    )


def _gain_in_words(gain: Interval) -> str:
    if gain.low > 0:
        verdict = "Grounded heads are better"
    elif gain.high < 0:
        verdict = "Grounded heads are worse"
    else:
        return f"Whether grounded heads are better cannot be told from these prompts; the paper found {PUBLISHED}."
    if gain.low <= PUBLISHED_GAIN <= gain.high:
        return f"{verdict}, by what the paper found within the interval: {PUBLISHED}."
    return f"{verdict}, by {'more' if gain.low > PUBLISHED_GAIN else 'less'} than the paper found, {PUBLISHED}."


def _fall_in_words(grounded: Interval, independent: Interval, beyond: Interval) -> str:
    kept = (
        f"the last of grounded heads keeps {_percent(grounded)} of the accuracy of the first, the last of independent "
        f"ones {_percent(independent)}"
    )
    if beyond.low > 0:
        return f"Accuracy falls less steeply with position for grounded heads: {kept}."
    if beyond.high < 0:
        return f"Accuracy falls more steeply with position for grounded heads: {kept}."
    return f"Whether accuracy falls less steeply for grounded heads cannot be told from these prompts: {kept}."


def _percent(interval: Interval) -> str:
    bounds = f" ({interval.low:.0%} to {interval.high:.0%})" if np.isfinite(interval.low) else ""
    return f"{interval.estimate:.0%}{bounds}"


def _without_repetition(grounded: Row, independent: Row, replicates: int, seed: int) -> list[str]:
    """The gain on the prompts whose text does not fall into a loop, where some does."""
    counts = grounded["by_prompt"]
    kept = [name for name, flagged in zip(counts["prompts"], counts["repetitive"], strict=True) if not flagged]
    if not kept or len(kept) == len(counts["prompts"]):
        return []
    gain = difference(grounded, independent, replicates, seed, prompts=kept)
    return [f"On the {counted(gain.prompts, 'prompt')} whose text does not fall into repetition: {signed(gain)}."]


def _chain_in_words(rows: Sequence[Row], replicates: int, seed: int) -> list[str]:
    grounded, independent = (deepest(rows, variant, CHAIN) for variant in (GROUNDED, INDEPENDENT))
    if grounded is None or independent is None:
        return []
    gain = difference(grounded, independent, replicates, seed)
    return [
        f"In a chain of {grounded['depth']}, where first choices alone count, grounded heads yield "
        f"{shown(tokens_per_round(grounded, replicates, seed))} tokens per round, {signed(gain)} beyond independent "
        "ones."
    ]


def _why(rows: Sequence[Row], gain: Interval, replicates: int, seed: int) -> list[str]:
    """What the variant without states says about where the gain comes from."""
    blind, grounded, independent = (deepest(rows, variant, TREE) for variant in ("embeddings", GROUNDED, INDEPENDENT))
    if blind is None or grounded is None or independent is None:
        return []
    without = tokens_per_round(blind, replicates, seed).estimate - 1
    whole = tokens_per_round(grounded, replicates, seed).estimate - 1
    alone = difference(blind, independent, replicates, seed)
    if alone.low > 0:
        lesson = "which is more than independent heads have: "
        lesson += "at this scale the tokens themselves say more about what follows than the target's state does"
    elif alone.high < 0:
        lesson = "which is less than independent heads have: at this scale too the target's state says more about what "
        lesson += "follows than the tokens themselves do"
    else:
        lesson = "which cannot be told from what independent heads have: at this scale the tokens themselves say about "
        lesson += "as much as the target's state does"
    return [
        "A likely reason for the difference to the paper: a state of the pocket target, of 8 layers and 320 "
        "dimensions, holds less about the tokens behind the next one than a state of a 7B model, so that reading them "
        f"helps more, and its text is less predictable. Given embeddings in place of states, grounded heads keep "
        f"{without / whole:.0%} of their tokens beyond the first of each round, {lesson} ({signed(alone)})."
    ]


def _heads(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "head": table["head"],
            "grounded": [_percent(each) for each in table["first"]],
            "independent": [_percent(each) for each in table["second"]],
            "difference": [signed(each, 3) for each in table["difference"]],
        }
    )


# Variants -----------------------------------------------------------------------------------------


def variants_section(rows: Sequence[Row], replicates: int = 10_000, seed: int = 0) -> Section:
    """Each variant against the plain grounded heads: tokens per round, and what a draft costs."""
    title = "What matters in grounded heads"
    plain = deepest(rows, GROUNDED, TREE)
    names = [name for name in WORDS if name != INDEPENDENT and deepest(rows, name, TREE)]
    if plain is None or not names:
        return missing(title, GROUNDED, "its variants")
    found: dict[str, tuple[Row, Interval]] = {}
    for name in names:
        row = deepest(rows, name, TREE)
        assert row is not None
        found[name] = (row, difference(row, plain, replicates, seed))
    better = [_named(name, each) for name, (_, each) in found.items() if each.low > 0]
    worse = [_named(name, each) for name, (_, each) in found.items() if each.high < 0]
    level = [WORDS[name] for name, (_, each) in found.items() if each.low <= 0 <= each.high]
    parts = [
        f"{label}: {'; '.join(part)}."
        for label, part in (("More tokens per round than plain grounded heads", better), ("Fewer", worse))
        if part
    ]
    parts += [f"Not told apart: {', '.join(level)}."] if level else []
    order = sorted(names, key=lambda name: -found[name][1].estimate)
    figure = heads_plots.differences(
        [WORDS[name] for name in order],
        [found[name][1] for name in order],
        title=f"Variants of grounded heads, on one tree\n{_setting(plain)}",
        caption=f"{counted(found[order[0]][1].prompts, 'prompt')}; 95% prompt-bootstrap intervals, paired. Filled: "
        f"apart from 0. {_budget(plain)}.",
    )
    lines = [("plain", plain, Interval(0.0, 0.0, 0.0, 0.95, 0)), *((WORDS[name], *found[name]) for name in order)]
    return Section(
        title,
        (
            " ".join(parts),
            f"{len(names)} variants are set against one: of 95% intervals about one in twenty leaves out 0 by chance. "
            "All were trained alike and briefly, so that a variant that needs more text is at a disadvantage.",
        ),
        tables=(
            (
                "Variants: held-out accuracy of the first head and of the last, tokens per round, and draft time over "
                f"t(1) ({_times(rows)})",
                pd.DataFrame([_line(name, row, beyond, replicates, seed) for name, row, beyond in lines]),
            ),
        ),
        figures=(("heads_variants", figure),),
    )


def _named(name: str, interval: Interval) -> str:
    return f"{WORDS[name]}, {signed(interval)}"


def _line(name: str, row: Row, beyond: Interval, replicates: int, seed: int) -> dict[str, Any]:
    accuracies = row["heldout"]["top1"]
    return {
        "variant": name,
        "parameters": int(row["training"]["parameters"]),
        "trained, s": round(float(row["training"]["seconds"])),
        "head 1": accuracies[0],
        f"head {len(accuracies)}": accuracies[-1],
        "tokens per round": shown(tokens_per_round(row, replicates, seed)),
        "beyond plain": "" if beyond.prompts == 0 else signed(beyond),
        "draft over t(1)": row["cost"]["cost.g"],
    }


def _times(rows: Sequence[Row]) -> str:
    """Where times were measured."""
    places = {f"{row['decoding']['cpu']}, {row['decoding']['threads']} threads" for row in rows}
    return f"on {'; '.join(sorted(places))}, in separate runs"


# The number of heads ------------------------------------------------------------------------------


def count_section(rows: Sequence[Row], replicates: int = 10_000, seed: int = 0) -> Section:
    """Tokens per round over the number of heads in use."""
    title = "How many heads"
    used = sorted(
        (row for row in rows if row["variant"] == GROUNDED and row["structure"] == TREE), key=lambda row: row["depth"]
    )
    if len(used) < 2:
        return missing(title, f"fewer heads than {used[0]['depth'] if used else 'all'}")
    rates = [tokens_per_round(row, replicates, seed) for row in used]
    steps = [difference(later, row, replicates, seed) for row, later in zip(used, used[1:], strict=False)]
    adds = [str(row["depth"]) for row, step in zip(used[1:], steps, strict=True) if step.low > 0]
    answer = (
        f"Of the heads after the first, {', '.join(adds)} {'adds' if len(adds) == 1 else 'add'} tokens"
        if adds
        else "No head after the first adds tokens that can be told from none"
    )
    steps_in_words = ", ".join(f"head {row['depth']} {signed(step)}" for row, step in zip(used[1:], steps, strict=True))
    figure = heads_plots.over_count(
        [int(row["depth"]) for row in used],
        rates,
        title=f"Tokens per round over the heads in use\n{_setting(used[-1])}",
        caption=f"Grounded heads, the best tree of at most {max(row['nodes'] for row in used)} nodes for each depth; "
        f"{counted(rates[0].prompts, 'prompt')}; bars: 95% prompt-bootstrap intervals. {_budget(used[-1])}.",
    )
    table = pd.DataFrame(
        {
            "heads in use": [row["depth"] for row in used],
            "nodes": [row["nodes"] for row in used],
            "tokens per round": [shown(rate) for rate in rates],
            "beyond one head fewer": ["", *map(signed, steps)],
            "draft over t(1)": [row["cost"]["cost.g"] for row in used],
        }
    )
    return Section(
        title,
        (f"{answer}: {steps_in_words}.", "A head that a tree has no level for is not computed."),
        tables=(("Of five heads trained together, the first 1 to 5 in use", table),),
        figures=(("heads_count", figure),),
    )


# Words --------------------------------------------------------------------------------------------


def signed(interval: Interval, digits: int = 2) -> str:
    """Such as "+0.21 (+0.15 to +0.28)"."""
    bounds = ""
    if np.isfinite(interval.low):
        bounds = f" ({interval.low:+.{digits}f} to {interval.high:+.{digits}f})"
    return f"{interval.estimate:+.{digits}f}{bounds}"


def _setting(row: Row) -> str:
    decoding = row["decoding"]
    return f"{decoding['model']} ({decoding['dtype']}), {decoding['prompts']}, {decoding['cpu']}"


def _budget(row: Row) -> str:
    return f"{row['heads']['count']} heads, {row['training']['tokens']:,} tokens of training"
