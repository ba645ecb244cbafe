"""Times single calls of the target, t(n), and single steps of the drafter, apart from decoding."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from specdec import ranks
from specdec.drafters.base import Drafter
from specdec.progress import stage
from specdec.records import Draft, TextStart, Tree, chain_tree
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.timing.timer import Timer


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
        for n in coarse:
            call(n)
        timer.clock.synchronize()
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
