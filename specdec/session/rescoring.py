"""Looks at outputs once more, by untimed passes of a model along them: does rounding explain where a greedy output
parts from the baseline's; how likely is the output, and is its answer right; which experts did its calls read.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.models.routing import Mixture
from specdec.records import Draft, Generation, TextStart
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.theory.roofline import distinct_experts

# Two evaluations in one arithmetic that sum in another order differ by this many units in the last place of the largest
# logit: 1e-6 of the logits' spread was seen in float32.
_UNITS = 16
_NUMBER = re.compile(r"(?:(?<!\w)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")  # a minus between two numbers is no sign
_REFERENCE = "####"  # before the answer in GSM8K


@dataclass(frozen=True)
class Divergence:
    """The first difference of two outputs of one prompt. In 16-bit a wide verify and a one-token step round
    differently, so that greedy outputs can part at near-ties.
    """

    prompt: str
    gamma: int
    position: int  # index in the output
    baseline_token: int
    token: int
    margin: float  # float32 logit of the higher of the two tokens minus that of the lower
    rounding: float  # largest difference of the target's own logits from float32 ones here, or of sums in another order
    explained: bool  # both tokens lie within what rounding can swap: the float32 leader is one of them, or as near


def rounding_error(scored: Tensor, narrow: Tensor) -> float:
    """Return by how much rounding may change a logit, given logits [V] in float32 or better and those of decoding."""
    wide = scored.double()
    usual = _UNITS * torch.finfo(scored.dtype).eps * float(wide[wide.abs() < torch.inf].abs().max())
    return max(float((wide - narrow.double()).abs().nan_to_num(0.0).max()), usual)


@torch.inference_mode()
def explain(
    target: Target, label: tuple[str, int], prompt: Sequence[int], baseline: Sequence[int], output: Sequence[int]
) -> Divergence | None:
    """Score the first difference of `output` from `baseline`; None when there is none.

    A difference is explained when the best float32 logit exceeds neither token's by more than twice the rounding
    error seen at that position: two evaluations, each off by as much, can then order them either way.
    """
    both = enumerate(zip(baseline, output, strict=False))
    position = next((place for place, (token, other) in both if token != other), None)
    if position is None and len(baseline) == len(output):
        return None
    if position is None:
        # One text ended where the other went on with equal tokens: no near-tie explains that.
        end = min(len(baseline), len(output))
        return Divergence(*label, end, -1, -1, float("nan"), float("nan"), explained=False)
    scored = target.score(prompt, baseline[:position])[-1]
    wide = scored.double()
    narrow = target.score_as_decoded(prompt, baseline[:position])[-1]
    tokens = (baseline[position], output[position])
    pair = wide[list(tokens)]
    rounding = rounding_error(scored, narrow)
    return Divergence(
        *label,
        position,
        *tokens,
        margin=float((pair[0] - pair[1]).abs()),
        rounding=rounding,
        explained=float(wide.max() - pair.min()) <= 2 * rounding,
    )


def log_likelihood(target: Target, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Return ln of the chance that `target` writes `text` after `prompt` at temperature 1, uncut; -inf if it cannot."""
    law = target.score(prompt, text)[: len(text)].double().log_softmax(-1)  # [T, V]
    return float(law.gather(-1, torch.tensor(text, device=law.device).unsqueeze(-1)).sum())


def answers(output: str, reference: str) -> bool:
    """Return True if the last number of an output is the answer of the reference, which stands behind `####` there or
    is its last number.

    The last number, because models that nobody told of the format do not write the mark; evaluation harnesses extract
    answers in the same way. Numbers are compared, not spellings: 1,200 is 1200.0.
    """
    wanted = _last_number(reference.rpartition(_REFERENCE)[2])
    return wanted is not None and _last_number(output) == wanted


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


@torch.inference_mode()
def expert_reads(
    target: Causal, mixture: Mixture, generation: Generation, work: dict[str, Any]
) -> list[dict[str, Any]]:
    """Verify the drafts of a generation once more, by the model's own modules, and count the experts they choose.
    Return lines of `experts.parquet` (`analysis.read.runs.EXPERTS`), one for each number of tokens of a call, with the
    `work` that names the generation in each.
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
