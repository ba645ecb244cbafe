"""Scores the place where a greedy output parts from the baseline's again in float32: rounding explains it, or not.

In 16-bit a wide verify and a one-token step round differently, so greedy outputs can part at near-ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.targets.base import Target

# Two evaluations in one arithmetic that sum in another order differ by this many units in the last place of the largest
# logit: 1e-6 of the logits' spread was seen in float32.
_UNITS = 16


@dataclass(frozen=True)
class Divergence:
    """The first difference of two outputs of one prompt.

    Attributes:
        position: index in the output.
        margin: float32 logit of the higher of the two tokens minus that of the lower.
        rounding: largest difference between the target's own logits and float32 ones at this position, or what sums in
            another order make.
        explained: both tokens lie within what rounding can swap: the float32 leader is one of them, or as near.
    """

    prompt: str
    gamma: int
    position: int
    baseline_token: int
    token: int
    margin: float
    rounding: float
    explained: bool


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
