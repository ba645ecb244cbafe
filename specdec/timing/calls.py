"""Times calls of the target, t(n) and t(k, w, context) of k rows of width w, and drafts, apart from decoding."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from math import nan
from statistics import median
from typing import Any

import pandas as pd
import torch

from specdec import ranks
from specdec.drafters.base import Drafter
from specdec.errors import UsageError, is_out_of_memory
from specdec.progress import stage
from specdec.records import Draft, TextStart, Tree, chain_tree
from specdec.structures.base import Structure
from specdec.structures.rows import Rows
from specdec.targets.base import Target
from specdec.targets.base.contract import Evaluation
from specdec.timing.timer import Timer

logger = logging.getLogger(__name__)

Shape = tuple[int, int]
"""k, w: a draft of k rows of width w. At a width of 0 a call evaluates the root alone: in rows a batch of k roots,
packed a plain step, whatever k."""


@dataclass(frozen=True)
class Calibration:
    """Raw times of single calls and drafts, seconds; those of drafts are empty where nothing was proposed."""

    context: int  # tokens in the cache during the calls
    # tokens n of a call (root and nodes) -> times of one verification, from draft tokens to standardised p
    calls: dict[int, list[float]]
    draft: list[float]  # of one draft of one token
    drafts: dict[int, list[float]] = field(default_factory=dict)  # gamma -> of one whole draft asked to be so deep

    def t(self, size: int) -> float:
        """Return the median time of a call on `size` tokens, root and nodes, in seconds."""
        return median(self.calls[size])

    def as_dict(self) -> dict[str, Any]:
        summary = {size: {"median_s": self.t(size), "ratio": self.t(size) / self.t(1)} for size in self.calls}
        draft_step_s = median(self.draft) if self.draft else 0.0
        return {**asdict(self), "t1_s": self.t(1), "draft_step_s": draft_step_s, "t_n": summary}


@torch.inference_mode()
def calibrate(
    target: Target,
    drafter: Drafter,
    structure: Structure,
    prompt: Sequence[int],
    trees: Sequence[Tree],
    timer: Timer,
    gammas: Sequence[int] = (),
) -> Calibration:
    """Time calls on the root alone and on drafts of each topology in `trees`, one drafter step and whole drafts of each
    depth in `gammas`, in turn, on one prompt's context. The first two times of each are not counted.
    """
    by_depth = {tree.depth: tree for tree in (chain_tree(0), *trees)}
    depths = sorted({1, *gammas})
    sizes = sorted(len(tree) + 1 for tree in by_depth.values())
    trees = [*by_depth.values(), chain_tree(depths[-1])]
    branches = max(1, *(len(tree.leaves) for tree in trees))
    target.start(TextStart(prompt, len(prompt) + max(map(target.room, trees)), branches))
    # A drafter that reads a recorded text gets the prompt's own tokens: only the cost of a step matters here.
    nodes = max(len(tree) for tree in trees)
    text = TextStart(prompt, len(prompt) + nodes + 1, generator=timer.generator, reference=prompt, in_step=True)
    drafter.start(text, target.states)
    tokens = torch.randint(target.vocab_size, (max(*sizes, *depths),), generator=timer.generator).to(target.device)
    shapes = {depth: structure.resized(depth) for depth in depths}
    for _ in timer.passes(warm_up=2, name="Calibrate: calls and drafts"):
        # In turn as in decoding: a draft meets the caches that a verification left, and the other way round.
        for depth in sorted({*by_depth, *depths}):
            if depth in shapes:
                draft = timer.time(("draft", depth), partial(drafter.draft, shapes[depth]))
                if not len(draft):
                    timer.forget(("draft", depth))
                if drafter.capabilities.reads_logits:  # as in decoding, so that later drafts are as large; untimed
                    target.verify(draft)
                    assert target.logits is not None
                    drafter.observe(draft, target.logits)
                    target.discard()
            tree = by_depth.get(depth, chain_tree(depth))
            timer.time(("call", depth), partial(target.verify, Draft(tokens[: len(tree)], tree)))
            target.discard()
    drafts = {depth: timer.seconds(("draft", depth)) for depth in depths}
    return Calibration(
        context=len(prompt),
        calls={len(tree) + 1: timer.seconds(("call", depth)) for depth, tree in by_depth.items()},
        draft=drafts[1],
        drafts={depth: drafts[depth] for depth in sorted(set(gammas))},
    )


def call_sizes(largest: int, dense: int) -> list[int]:
    """Return every n up to `dense`, then steps of a quarter of the last power of two up to `largest`, and the powers
    of two. (64, 16) gives 1, 2, ... 16, 20, ... 32, 40, ... 64; a dense of 1 gives powers of two alone.
    """
    found = {largest, *(1 << power for power in range(largest.bit_length()))}
    found |= set(range(1, min(dense, largest) + 1))
    size = dense
    while 1 < size < largest:
        size += max(1, (1 << size.bit_length() - 1) // 4)
        found.add(min(size, largest))
    return sorted(found)


@torch.inference_mode()
def time_calls(
    target: Target, tokens: Sequence[int], sizes: Sequence[int], contexts: Sequence[int], timer: Timer
) -> dict[str, Any]:
    """Time calls on chains of each size behind each number of cached tokens, for the cost model; each is first made
    once more. Return `cells`: for each context and size, times in seconds from draft tokens to standardised p; and
    `complete`: false when time ran out before every cell was measured as often as asked for.

    Args:
        tokens: text for the cache, repeated to the length needed.
        sizes: tokens of a call; those that the target cannot hold twice are left out. Where the first pass alone would
            take longer than the timer allows, only powers of two stay.
        contexts: tokens in the cache; cut to what the target can hold beside the largest call.
    """
    sizes = [n for n in sorted({1, *sizes}) if n <= max(1, target.context_length // 2)]
    largest = max(sizes)
    cached = sorted({min(context, target.context_length - largest - 1) for context in contexts})
    text = [tokens[index % len(tokens)] for index in range(max(cached) + 1)]
    offered = torch.randint(target.vocab_size, (largest,), generator=timer.generator).to(target.device)
    drafts = {n: Draft(offered[: n - 1], chain_tree(n - 1)) for n in sizes}

    def call(n: int) -> None:
        target.verify(drafts[n])
        target.discard()

    def prefill(context: int) -> None:
        target.start(TextStart(text[: context + 1], context + 1 + largest))

    shorter = "measurement.cost_contexts=[] leaves the cost model out"
    with stage("Calibrate: calls of many sizes", told=False, shorter=shorter) as under_way:
        # Measure what a call costs first: it decides whether the first pass can afford every size.
        coarse = [n for n in sizes if n & (n - 1) == 0]
        prefill(cached[-1])
        timer.clock.synchronize()
        prefilled = under_way.elapsed
        for _ in range(2):  # the second time counts
            begin = time.perf_counter()
            for n in coarse:
                call(n)
            timer.clock.synchronize()
        each = len(cached) * ranks.given(time.perf_counter() - begin) / len(coarse)  # of a pass: once on a size
        thinned = 2 * len(sizes) * each > timer.limit and coarse != sizes
        if thinned:
            sizes = coarse
        a_pass = len(sizes) * each + prefilled * sum(cached) / cached[-1]
        under_way.expected = under_way.elapsed + len(sizes) * each + min(timer.calls * a_pass, a_pass + timer.limit)
        under_way.announce()
        for done in timer.passes():
            for context in cached:
                prefill(context)
                call(sizes[0])  # the processor's caches are as the prefill left them
                for n in timer.shuffled(sizes):
                    if done == 0:
                        call(n)
                    timer.time((n, context), partial(target.verify, drafts[n]))
                    target.discard()
    cells = [
        {"rows": n, "context": context, "seconds": timer.seconds((n, context))} for context in cached for n in sizes
    ]
    return {"cells": cells, "complete": timer.done >= timer.calls and not thinned}


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
            f"Contexts of {', '.join(map(str, cut))} tokens do not fit the target's {target.context_length} beside the "
            f"widest shape: cut to {longest}."
        )
    calls = _Calls(target, tokens, {way: asked_shapes(fitting, way) for way in ways}, depths, timer)
    try:
        copies = 1
        for way in ways:
            target.evaluation = way
            # The cache gets as many copies as there is memory for behind the longest context.
            copies = max([copies, *(k for k, _ in calls.possible(max(depths), fill=False))])
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
    return pd.DataFrame(calls.lines(shapes, contexts))


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

    def lines(self, shapes: Sequence[Shape], contexts: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield a line of the table for each call that was asked for."""
        for way, context in product(self.shapes, sorted({*contexts, *self._contexts})):
            for k, w in asked_shapes(shapes, way):
                case, tokens = (way, (k, w), context), tokens_evaluated(k, w, way)
                possible = context in self._contexts and (k, w) in self.shapes[way]
                missing = "context" if not possible else "memory" if case in self._lacking else "time"
                cell = {"k": k, "w": w, "context": context, "evaluation": way, "rows_evaluated": tokens}
                times = [(seconds, "") for seconds in self._timer.seconds(case)]
                times += [(nan, missing)] * (self._timer.calls - len(times))
                for call, (seconds, why) in enumerate(times[: self._timer.calls]):
                    yield {**cell, "call": call, "seconds": seconds, "missing": why}

    def visit(self, context: int) -> None:
        """Make one timed call on every shape behind `context` tokens."""
        way = self._target.evaluation
        if not (possible := self.possible(context)):
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

    def possible(self, context: int, fill: bool = True) -> list[Shape]:
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
