"""Times drafts by their structure, in turn with the target's calls, as in decoding."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch

from specdec.drafters.base import Drafter
from specdec.records import TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.timing.timer import Timer


@torch.inference_mode()
def time_drafts(
    target: Target, drafter: Drafter, structures: Sequence[Structure], prompt: Sequence[int], timer: Timer
) -> pd.DataFrame:
    """Time drafts after `prompt`, all structures in random order in each pass; one more pass comes first and does not
    count.

    Each draft is verified and forgotten, so that the next one meets the processor's caches as a call leaves them.

    Returns:
        One line for each structure and call: structure (its place), nodes and depth (asked for), call (from 0), drafted
        (nodes), seconds.
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
