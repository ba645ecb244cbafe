"""What a verification call on a block of k rows of width w costs behind a number of cached tokens: t(k, w, context)."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pandas as pd
import torch

from specdec.clock import Clock
from specdec.errors import UsageError, is_out_of_memory
from specdec.progress import progress_bar
from specdec.records import Draft, TextStart, Tree, chain_tree
from specdec.structures.rows import Rows
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

Block = tuple[int, int]
"""k, w. A width of 0 is a call on the root alone, a plain step, whatever k."""


def tokens_evaluated(k: int, w: int, evaluation: str) -> int:
    """Tokens of a call on a block: packed, the root and k w nodes; in rows, each of the k rows has a root."""
    if w == 0:
        return 1
    return k * (w + 1) if evaluation == "rows" else 1 + k * w


@torch.inference_mode()
def time_blocks(
    target: Target,
    tokens: Sequence[int],
    blocks: Sequence[Block],
    contexts: Sequence[int],
    calls: int,
    clock: Clock,
    generator: torch.Generator,
    heartbeat: Callable[[], None] = lambda: None,
    seconds: float = inf,
) -> pd.DataFrame:
    """Time calls on random tokens, in as many passes over all blocks and contexts; the blocks of a context in random
    order, each after a call on the same block that is not counted.

    What the target compiles is compiled before, for all sizes.

    Args:
        tokens: text for the cache, repeated to the length needed.
        blocks: all blocks of width 0 are one, (1, 0).
        contexts: tokens in the cache; one that is too long for the target beside the widest block is cut.
        calls: of each cell.
        heartbeat: called once for each context of a pass.
        seconds: no new pass begins after this; the first one is always made.
    Returns:
        One row for each call asked for: k, w, context, evaluation, rows_evaluated (`tokens_evaluated`), call (from 0),
        seconds, missing. A call that was not made has no seconds (NaN), and `missing` says why: "context" (the
        context or the block is too long for the target), "memory" or "time"; otherwise it is "".
    Raises:
        UsageError: the target takes no rows, or a single cache of the longest context does not fit into memory.
    """
    if "rows" not in target.capabilities.structures:
        raise UsageError("Bad value target: it evaluates no rows, so that blocks of k rows cannot be timed.")
    asked = sorted({(k if w else 1, w) for k, w in blocks})
    fitting = [(k, w) for k, w in asked if w + 1 <= max(1, target.context_length // 2)]
    longest = target.context_length - 1 - max((w for _, w in fitting), default=0)
    cut = sorted({context for context in contexts if context > longest})
    if cut:
        logger.warning(
            "Contexts of %s tokens do not fit the target's %d beside the widest block: cut to %d.",
            ", ".join(map(str, cut)),
            target.context_length,
            longest,
        )
    depths = sorted({min(context, longest) for context in contexts})
    timing = _Timing(target, tokens, fitting, depths, clock, generator)
    begin = time.perf_counter()
    with progress_bar() as progress:
        bar = progress.add_task("timing blocks", total=calls * len(depths) * len(fitting))
        for call in range(calls):
            if call and time.perf_counter() - begin >= seconds:
                break
            for context in depths:
                timing.visit(context)
                progress.advance(bar, len(fitting))
                heartbeat()
    return _table(asked, fitting, contexts, depths, calls, timing, target.evaluation)


class _Timing:
    """The calls made so far, and the cells that there is no memory for."""

    def __init__(
        self,
        target: Target,
        tokens: Sequence[int],
        blocks: Sequence[Block],
        contexts: Sequence[int],
        clock: Clock,
        generator: torch.Generator,
    ) -> None:
        self._target, self._clock = target, clock
        self._dice = random.Random(generator.initial_seed())
        trees = {block: _tree(*block) for block in blocks}
        largest = max((len(tree) for tree in trees.values()), default=0)
        drawn = torch.randint(target.vocab_size, (largest,), generator=generator).to(target.device)
        self._drafts = {block: Draft(drawn[: len(tree)], tree) for block, tree in trees.items()}
        # Rows of a batch each have a cache of their own, which holds one row of the block and not all of it.
        rows = target.evaluation == "rows"
        self._room = 1 + (max((tree.depth for tree in trees.values()), default=0) if rows else largest)
        self._text = [tokens[index % len(tokens)] for index in range(max(contexts) + 1)]
        self.seconds: dict[tuple[Block, int], list[float]] = {
            (block, context): [] for context in contexts for block in blocks
        }
        self.lacking: set[tuple[Block, int]] = set()
        longest = max(contexts)
        copies = max((k for k, _ in self._affordable(longest)), default=1)
        sizes = {len(tree) + 1 for tree in trees.values() if tree.is_chain or not rows}
        target.prepare(sizes, longest + 1 + self._room, copies)

    def visit(self, context: int) -> None:
        """One timed call on every block behind `context` tokens."""
        possible = self._prefill(context)
        if not possible:
            return
        self._call(possible[0])  # the processor's caches are as the prefill left them
        marks: dict[Block, tuple[object, object]] = {}
        for block in self._dice.sample(possible, len(possible)):
            try:
                self._call(block)
                marks[block] = self._call(block)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._target.discard()
                self.lacking.add((block, context))
        self._clock.synchronize()
        for block, pair in marks.items():
            self.seconds[block, context].append(self._clock.seconds(*pair))

    def _prefill(self, context: int) -> list[Block]:
        """Fill the cache, with as many copies as there is memory for; returns the blocks that it serves."""
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

    def _affordable(self, context: int) -> list[Block]:
        """The blocks whose copies of the cache there is memory for."""
        while possible := [block for block in self._drafts if (block, context) not in self.lacking]:
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
        self.lacking |= {(block, context) for block in self._drafts if block[0] == k}

    def _call(self, block: Block) -> tuple[object, object]:
        start = self._clock.mark()
        self._target.verify(self._drafts[block])
        end = self._clock.mark()
        self._target.discard()
        return start, end


def _tree(k: int, w: int) -> Tree:
    return Rows(k, w).tree if w else chain_tree(0)


def _table(
    asked: Sequence[Block],
    fitting: Sequence[Block],
    contexts: Sequence[int],
    depths: Sequence[int],
    calls: int,
    timing: _Timing,
    evaluation: str,
) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for context in sorted({*contexts, *depths}):
        for k, w in asked:
            times = timing.seconds.get(((k, w), context), [])
            for call in range(calls):
                made = call < len(times)
                if context not in depths or (k, w) not in fitting:
                    missing = "context"
                else:
                    missing = "memory" if ((k, w), context) in timing.lacking else "time"
                rows.append(
                    {
                        "k": k,
                        "w": w,
                        "context": context,
                        "evaluation": evaluation,
                        "rows_evaluated": tokens_evaluated(k, w, evaluation),
                        "call": call,
                        "seconds": times[call] if made else float("nan"),
                        "missing": "" if made else missing,
                    }
                )
    return pd.DataFrame(rows)
