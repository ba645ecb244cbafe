"""The experts that the verification calls of a text read, written down in an untimed pass along its rounds."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from specdec.models.routing import Mixture
from specdec.records import Draft, Generation, TextStart
from specdec.targets.causal import Causal
from specdec.theory.distinct_experts import distinct_experts


@torch.inference_mode()
def expert_reads(
    target: Causal, mixture: Mixture, generation: Generation, work: dict[str, Any]
) -> list[dict[str, Any]]:
    """Verify the drafts of a generation once more, by the model's own modules, and count the experts they choose.

    Args:
        work: what names the generation in each line.
    Returns:
        the lines of `experts.parquet` (`analysis.read.runs.EXPERTS`): one for each number of tokens of a call.
    """
    rounds, device = generation.rounds, target.device
    room = max(target.room(each.tree) for each in rounds)
    branches = max(len(each.tree.leaves) for each in rounds)
    usage = [np.zeros(number) for number in mixture.experts]
    distinct: dict[int, list[list[int]]] = defaultdict(list)  # tokens of a call -> its distinct experts [calls, L]
    evaluated = 0
    # Passes that were compiled or traced run no modules, so that nothing would be recorded.
    passes, target.decoder.passes = target.decoder.passes, None
    try:
        capacity = len(generation.prompt) + len(generation.tokens) + room
        target.start(TextStart(generation.prompt, capacity, max(1, branches)))
        for place, each in enumerate(rounds, 1):
            tokens = torch.tensor(each.draft_tokens, dtype=torch.int64, device=device)
            with mixture.recorded() as choices:
                target.verify(Draft(tokens, each.tree))
            counts = distinct[1 + len(each.draft_tokens)]
            counts.append([])
            for number, used, calls in zip(mixture.experts, usage, choices, strict=True):
                chosen = torch.cat(calls).flatten().cpu().numpy() if calls else np.empty(0, int)
                times = np.bincount(chosen, minlength=number)[:number]  # numbers beyond are experts without weights
                used += times
                counts[-1].append(int((times > 0).sum()))
            evaluated += max(sum(map(len, calls)) for calls in choices)
            if place < len(rounds):
                target.commit(each.acceptance.path, each.acceptance.next_token)
    finally:
        target.decoder.passes = passes

    own = [used / evaluated for used in usage]
    even = [np.full(number, chosen / number) for number, chosen in zip(mixture.experts, mixture.chosen, strict=True)]
    lines = []
    for size, found in sorted(distinct.items()):
        reads = mixture.weight_bytes(np.array(found)) / mixture.weight_bytes(mixture.chosen)
        counted = {"tokens": size, "calls": len(found), "experts": float(np.mean(found, axis=1).sum())}
        for name, laws in (("independent", own), ("uniform", even)):
            counted[name] = len(found) * float(np.mean([distinct_experts(law, size) for law in laws]))
        lines.append({**work, **counted, "reads": float(reads.sum())})
    return lines
