"""What a draft costs, by its structure: timed in turn with the target's calls, as in decoding."""

import random
from collections.abc import Callable, Sequence

import pandas as pd
import torch

from specdec.clock import Clock
from specdec.drafters.base import Drafter
from specdec.progress import progress_bar
from specdec.records import TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target


@torch.inference_mode()
def time_drafts(
    target: Target,
    drafter: Drafter,
    structures: Sequence[Structure],
    prompt: Sequence[int],
    calls: int,
    clock: Clock,
    generator: torch.Generator,
    heartbeat: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Time drafts after `prompt`, in as many passes over the structures, in random order; a first pass is not counted.

    Each draft is verified and forgotten, so that the next one meets the processor's caches as a call leaves them.

    Returns:
        One row for each structure and call: structure (its place), nodes and depth (asked for), call (from 0), drafted
        (nodes), seconds.
    """
    most = max(structure.nodes for structure in structures)
    capacity = len(prompt) + 1 + max(target.room(structure.tree) for structure in structures)
    target.start(TextStart(prompt, capacity, max(structure.branches for structure in structures)))
    drafts = TextStart(prompt, len(prompt) + most + 1, generator=generator, reference=prompt)
    drafter.start(drafts, target.states)
    dice = random.Random(generator.initial_seed())
    marks: list[tuple[int, int, int, object, object]] = []
    with progress_bar() as progress:
        bar = progress.add_task("timing drafts", total=calls + 1)
        for call in range(-1, calls):
            for place in dice.sample(range(len(structures)), len(structures)):
                start = clock.mark()
                draft = drafter.draft(structures[place])
                marks.append((place, call, len(draft), start, clock.mark()))
                target.verify(draft)
                target.discard()
            progress.advance(bar)
            heartbeat()
    clock.synchronize()
    return pd.DataFrame(
        [
            {
                "structure": place,
                "nodes": structures[place].nodes,
                "depth": structures[place].gamma,
                "call": call,
                "drafted": drafted,
                "seconds": clock.seconds(start, end),
            }
            for place, call, drafted, start, end in marks
            if call >= 0
        ]
    )
