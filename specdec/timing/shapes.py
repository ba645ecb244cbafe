"""Times verification calls on k rows of width w behind a number of cached tokens: t(k, w, context)."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from specdec.errors import UsageError, is_out_of_memory
from specdec.progress import progress_bar
from specdec.records import Draft, TextStart, Tree, chain_tree
from specdec.structures.rows import Rows
from specdec.targets.base import Target
from specdec.timing.timer import Timer

logger = logging.getLogger(__name__)

Shape = tuple[int, int]
"""k, w: a draft of k rows of width w. A width of 0 is a call on the root alone, a plain step, whatever k."""


def tokens_evaluated(k: int, w: int, evaluation: str) -> int:
    """Return the tokens of a call: packed, the root and k w nodes; in rows, each of the k rows has a root."""
    if w == 0:
        return 1
    return k * (w + 1) if evaluation == "rows" else 1 + k * w


@torch.inference_mode()
def time_shapes(
    target: Target, tokens: Sequence[int], shapes: Sequence[Shape], contexts: Sequence[int], timer: Timer
) -> pd.DataFrame:
    """Time calls on random tokens: in each pass every shape behind every context, in random order, each after a call on
    the same shape that is not counted. What the target compiles is compiled before, for all sizes.

    Args:
        tokens: text for the cache, repeated to the length needed.
        shapes: all shapes of width 0 are one, (1, 0).
        contexts: tokens in the cache; one that is too long for the target beside the widest shape is cut.
    Returns:
        One line for each call asked for: k, w, context, evaluation, rows_evaluated (`tokens_evaluated`), call (from 0),
        seconds, missing. A call that was not made has no seconds (NaN), and `missing` says why: "context" (the
        context or the shape is too long for the target), "memory" or "time"; otherwise it is "".
    Raises:
        UsageError: the target takes no rows, or a single cache of the longest context does not fit into memory.
    """
    if "rows" not in target.capabilities.structures:
        raise UsageError("Bad value target: it evaluates no rows, so that k rows of width w cannot be timed.")
    asked = sorted({(k if w else 1, w) for k, w in shapes})
    fitting = [(k, w) for k, w in asked if w + 1 <= max(1, target.context_length // 2)]
    longest = target.context_length - 1 - max((w for _, w in fitting), default=0)
    cut = sorted({context for context in contexts if context > longest})
    if cut:
        logger.warning(
            "Contexts of %s tokens do not fit the target's %d beside the widest shape: cut to %d.",
            ", ".join(map(str, cut)),
            target.context_length,
            longest,
        )
    depths = sorted({min(context, longest) for context in contexts})
    calls = _Calls(target, tokens, fitting, depths, timer)
    with progress_bar() as progress:
        bar = progress.add_task("timing calls", total=timer.calls * len(depths) * len(fitting))
        for _ in timer.passes():
            for context in depths:
                calls.visit(context)
                progress.advance(bar, len(fitting))
                timer.heartbeat()
    lines: list[dict[str, Any]] = []
    for context in sorted({*contexts, *depths}):
        for shape in asked:
            possible = context in depths and shape in fitting
            missing = "context" if not possible else "memory" if (shape, context) in calls.lacking else "time"
            about = _about(*shape, context, target.evaluation)
            times = timer.seconds((shape, context))
            for call in range(timer.calls):
                made = call < len(times)
                seconds = times[call] if made else float("nan")
                lines.append({**about, "call": call, "seconds": seconds, "missing": "" if made else missing})
    return pd.DataFrame(lines)


def _about(k: int, w: int, context: int, evaluation: str) -> dict[str, Any]:
    evaluated = tokens_evaluated(k, w, evaluation)
    return {"k": k, "w": w, "context": context, "evaluation": evaluation, "rows_evaluated": evaluated}


class _Calls:
    """The drafts that are verified, and which of them behind which context there is no memory for."""

    def __init__(
        self, target: Target, tokens: Sequence[int], shapes: Sequence[Shape], contexts: Sequence[int], timer: Timer
    ) -> None:
        self._target, self._timer = target, timer
        trees = {shape: _tree(*shape) for shape in shapes}
        largest = max((len(tree) for tree in trees.values()), default=0)
        drawn = torch.randint(target.vocab_size, (largest,), generator=timer.generator).to(target.device)
        self._drafts = {shape: Draft(drawn[: len(tree)], tree) for shape, tree in trees.items()}
        # Rows of a batch each have a cache of their own, which holds one row of the draft and not all of it.
        rows = target.evaluation == "rows"
        self._room = 1 + (max((tree.depth for tree in trees.values()), default=0) if rows else largest)
        self._text = [tokens[index % len(tokens)] for index in range(max(contexts) + 1)]
        self.lacking: set[tuple[Shape, int]] = set()
        longest = max(contexts)
        copies = max((k for k, _ in self._affordable(longest)), default=1)
        sizes = {len(tree) + 1 for tree in trees.values() if tree.is_chain or not rows}
        target.prepare(sizes, longest + 1 + self._room, copies)

    def visit(self, context: int) -> None:
        """Make one timed call on every shape behind `context` tokens."""
        possible = self._prefill(context)
        if not possible:
            return
        self._call(possible[0])  # the processor's caches are as the prefill left them
        for shape in self._timer.shuffled(possible):
            try:
                self._call(shape)
                self._timer.time((shape, context), partial(self._target.verify, self._drafts[shape]))
                self._target.discard()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._target.discard()
                self.lacking.add((shape, context))

    def _prefill(self, context: int) -> list[Shape]:
        """Fill the cache, with as many copies as there is memory for; return the shapes that it serves."""
        while possible := self._affordable(context):
            copies = max(k for k, _ in possible)
            try:
                self._target.start(TextStart(self._text[: context + 1], context + 1 + self._room, copies))
                break
            except (RuntimeError, MemoryError) as error:
                if copies == 1 or not is_out_of_memory(error):
                    raise
                self._leave_out(copies, context)
        return possible

    def _affordable(self, context: int) -> list[Shape]:
        """Return the shapes whose copies of the cache there is memory for."""
        while possible := [shape for shape in self._drafts if (shape, context) not in self.lacking]:
            copies = max(k for k, _ in possible)
            try:
                self._target.check_memory(context + 1, context + 1 + self._room, copies)
                break
            except UsageError:
                if copies == 1:
                    raise
                self._leave_out(copies, context)
        return possible

    def _leave_out(self, k: int, context: int) -> None:
        self.lacking |= {(shape, context) for shape in self._drafts if shape[0] == k}

    def _call(self, shape: Shape) -> None:
        self._target.verify(self._drafts[shape])
        self._target.discard()


def _tree(k: int, w: int) -> Tree:
    return Rows(k, w).tree if w else chain_tree(0)
