"""Times verification calls on k rows of width w behind a number of cached tokens: t(k, w, context), evaluated packed,
in rows, or in turn both ways; and drafts by their structure, in turn with the target's calls, as in decoding.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from specdec.drafters.base import Drafter
from specdec.errors import UsageError, is_out_of_memory
from specdec.progress import stage
from specdec.records import Draft, TextStart, chain_tree
from specdec.structures.base import Structure
from specdec.structures.rows import Rows
from specdec.targets.base import Target
from specdec.targets.base.contract import Evaluation
from specdec.timing.timer import Timer

logger = logging.getLogger(__name__)

Shape = tuple[int, int]
"""k, w: a draft of k rows of width w. At a width of 0 a call evaluates the root alone: in rows a batch of k roots,
packed a plain step, whatever k."""


def tokens_evaluated(k: int, w: int, evaluation: str) -> int:
    """Return the tokens of a call: packed, the root and k w nodes; in rows, each of the k rows has a root."""
    return k * (w + 1) if evaluation == "rows" else 1 + k * w


@torch.inference_mode()
def time_shapes(
    target: Target,
    tokens: Sequence[int],
    shapes: Sequence[Shape],
    contexts: Sequence[int],
    timer: Timer,
    evaluations: Sequence[Evaluation] = (),
) -> pd.DataFrame:
    """Time calls on random tokens: in each pass every shape behind every context, in random order, each after a call on
    the same shape that is not counted. What the target compiles is compiled before, for all sizes.

    Args:
        tokens: text for the cache, repeated to the length needed.
        shapes: packed, all shapes of width 0 are one, (1, 0).
        contexts: tokens in the cache; one that is too long for the target beside the widest shape is cut.
        evaluations: ways of evaluating a draft that branches; behind each context all shapes are timed in one and then
            in the next. Empty: the target's own.
    Returns:
        One line for each call asked for: k, w, context, evaluation, rows_evaluated (`tokens_evaluated`), call (from 0),
        seconds, missing. A call that was not made has no seconds (NaN), and `missing` says why: "context" (the
        context or the shape is too long for the target), "memory" or "time"; otherwise it is "".
    Raises:
        UsageError: the target takes no rows, or a single cache of the longest context does not fit into memory.
    """
    if "rows" not in target.capabilities.structures:
        raise UsageError("Bad value target: it evaluates no rows, so that k rows of width w cannot be timed.")
    own = target.evaluation
    ways = list(dict.fromkeys(evaluations or [own]))
    fitting = [(k, w) for k, w in shapes if w + 1 <= max(1, target.context_length // 2)]
    # The contexts, cut to what the target can hold beside the widest shape.
    longest = target.context_length - 1 - max((w for _, w in fitting), default=0)
    depths = sorted({min(context, longest) for context in contexts})
    if cut := sorted({context for context in contexts if context > longest}):
        logger.warning(
            "Contexts of %s tokens do not fit the target's %d beside the widest shape: cut to %d.",
            ", ".join(map(str, cut)),
            target.context_length,
            longest,
        )
    calls = _Calls(target, tokens, {way: asked_shapes(fitting, way) for way in ways}, depths, timer)
    try:
        copies = 1
        for way in ways:
            target.evaluation = way
            copies = max(copies, calls.copies())
        # At once, because compiling for one way would give up what was compiled for another.
        target.evaluation = "rows" if "rows" in ways else own
        target.prepare(calls.sizes, max(depths) + 1 + calls.room, copies)
        count = sum(map(len, calls.shapes.values()))
        with stage("timing calls", total=timer.calls * len(depths) * count, told=False) as under_way:
            for _ in timer.passes():
                for context in depths:
                    for way in ways:
                        target.evaluation = way
                        calls.visit(context)
                        under_way.advance(len(calls.shapes[way]))
                        timer.heartbeat()
    finally:
        target.evaluation = own
    lines = [
        line
        for way in ways
        for context in sorted({*contexts, *depths})
        for shape in asked_shapes(shapes, way)
        for line in calls.lines(way, shape, context)
    ]
    return pd.DataFrame(lines)


def asked_shapes(shapes: Sequence[Shape], evaluation: str) -> list[Shape]:
    """Return the distinct calls on some shapes, sorted: packed, rows of width 0 are one plain step."""
    return sorted({(1 if w == 0 and evaluation == "packed" else k, w) for k, w in shapes})


class _Calls:
    """The calls on some `shapes`, by their way of evaluation, that of the target at the time, and which of them behind
    which context there is no memory for.
    """

    def __init__(
        self, target: Target, tokens: Sequence[int], shapes: Mapping[Evaluation, Sequence[Shape]],
        contexts: Sequence[int], timer: Timer,
    ) -> None:  # fmt: skip
        self._target, self._timer, self._contexts, self.shapes = target, timer, contexts, shapes
        asked = [(way, *shape) for way, several in shapes.items() for shape in several]
        # One cache serves all ways, so it has slots for the largest call of all. Rows of a batch each have a cache of
        # their own, which holds one row of the draft and not all of it.
        self.room = 1 + max((k * w if way == "packed" else w for way, k, w in asked), default=0)
        trees = {(k, w): Rows(k, w).tree if w else chain_tree(0) for _, k, w in asked}
        largest = max((len(tree) for tree in trees.values()), default=0)
        drawn = torch.randint(target.vocab_size, (largest,), generator=timer.generator).to(target.device)
        self._drafts = {shape: Draft(drawn[: len(tree)], tree) for shape, tree in trees.items()}
        self._text = [tokens[index % len(tokens)] for index in range(max(contexts) + 1)]
        self._lacking: set[tuple[Evaluation, Shape, int]] = set()  # shapes and contexts that there was no memory for
        # Numbers of tokens of calls on one sequence.
        self.sizes = {len(trees[k, w]) + 1 for way, k, w in asked if trees[k, w].is_chain or way == "packed"}

    def copies(self) -> int:
        """Return the most copies of the cache that there is memory for behind the longest context."""
        return max((k for k, _ in self._possible(max(self._contexts), fill=False)), default=1)

    def lines(self, way: Evaluation, shape: Shape, context: int) -> Iterator[dict[str, Any]]:
        """Yield a line of the table for each call that was asked for."""
        k, w = shape
        possible = context in self._contexts and shape in self.shapes[way]
        missing = "context" if not possible else "memory" if (way, shape, context) in self._lacking else "time"
        cell = {"k": k, "w": w, "context": context, "evaluation": way, "rows_evaluated": tokens_evaluated(k, w, way)}
        times = self._timer.seconds((way, shape, context))
        for call in range(self._timer.calls):
            made = call < len(times)
            seconds = times[call] if made else float("nan")
            yield {**cell, "call": call, "seconds": seconds, "missing": "" if made else missing}

    def visit(self, context: int) -> None:
        """Make one timed call on every shape behind `context` tokens."""
        way = self._target.evaluation
        if not (possible := self._possible(context)):
            return
        self._call(possible[0])  # the processor's caches are as the prefill left them
        for shape in self._timer.shuffled(possible):
            try:
                self._call(shape)
                self._timer.time((way, shape, context), partial(self._verify, shape))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._lacking.add((way, shape, context))
            self._target.discard()

    def _possible(self, context: int, fill: bool = True) -> list[Shape]:
        """Fill the cache with as many copies as fit, or only look for that; return the shapes that these serve."""
        way, capacity = self._target.evaluation, context + 1 + self.room
        while possible := [shape for shape in self.shapes[way] if (way, shape, context) not in self._lacking]:
            copies = max(k for k, _ in possible)
            try:
                self._target.check_memory(context + 1, capacity, copies)
                if fill:
                    self._target.start(TextStart(self._text[: context + 1], capacity, copies))
                break
            except (UsageError, RuntimeError, MemoryError) as error:
                if copies == 1 or not (isinstance(error, UsageError) or is_out_of_memory(error)):
                    raise
                self._lacking |= {(way, shape, context) for shape in possible if shape[0] == copies}
        return possible

    def _call(self, shape: Shape) -> None:
        self._verify(shape)
        self._target.discard()

    def _verify(self, shape: Shape) -> None:
        k, w = shape
        if w:
            self._target.verify(self._drafts[shape])
        else:
            self._target.verify_roots(k)


@torch.inference_mode()
def time_drafts(
    target: Target, drafter: Drafter, structures: Sequence[Structure], prompt: Sequence[int], timer: Timer
) -> pd.DataFrame:
    """Time drafts after `prompt`, all structures in random order in each pass; one more pass comes first and does not
    count. Each draft is verified and forgotten, so that the next one meets the processor's caches as after a call.
    Return one line for each structure and call: structure (its place), nodes and depth (asked for), call (from 0),
    drafted (nodes), seconds.
    """
    most = max(structure.nodes for structure in structures)
    capacity = len(prompt) + 1 + max(target.room(structure.tree) for structure in structures)
    target.start(TextStart(prompt, capacity, max(structure.branches for structure in structures)))
    drafts = TextStart(prompt, len(prompt) + most + 1, generator=timer.generator, reference=prompt, in_step=True)
    drafter.start(drafts, target.states)
    lines = []
    for done in timer.passes(warm_up=1, name="timing drafts"):
        for place in timer.shuffled(range(len(structures))):
            structure = structures[place]
            draft = timer.time(place, partial(drafter.draft, structure))
            target.verify(draft)
            if drafter.capabilities.reads_logits:  # as in decoding, so that its later drafts are as large as there
                assert target.logits is not None
                drafter.observe(draft, target.logits)
            target.discard()
            if done:
                size = {"nodes": structure.nodes, "depth": structure.gamma}
                lines.append({"structure": place, **size, "call": done - 1, "drafted": len(draft)})
        timer.heartbeat()
    seconds = {place: timer.seconds(place) for place in range(len(structures))}
    return pd.DataFrame([{**line, "seconds": seconds[line["structure"]][line["call"]]} for line in lines])
