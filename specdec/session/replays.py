"""Rounds and chances of every arm along texts that are written already: two tables of a session.

`replay.parquet` has the rounds of every arm along its own texts (kind "own", for the account) and along the baseline's
(kind "baseline", for the curves, which need no speculation). `alpha.parquet` has the two sums of each drafter whose
ratio is `alpha.text`: sum of min(p, q) over positions, or of what a lossy rule passes, and positions with a proposal.
At every position a draft of one token is taken, so for heads it is the first head's.

A drafter whose replay is "calling" has neither: both would take as many calls of the target as decoding does.
"""

from collections.abc import Sequence

from specdec.drafters.base.lookup import Lookup
from specdec.drafters.base.nested import Wrapper
from specdec.records import Request
from specdec.replay.expected_rounds import TextReplay
from specdec.replay.walk import TextStates
from specdec.session.arm import Arm


def replayed_rounds(arm: Arm, request: Request, text: Sequence[int], states: TextStates) -> float | None:
    """Return the rounds that an arm is expected to take along a text; None where that does not follow from it.

    Args:
        request: what the text answers, with a fresh generator of drafts.
    """
    if not _has_replay(arm):
        return None
    return TextReplay(arm.drafter, arm.target, arm.structure, text, request, states).expected_rounds()


def alpha_sums(arm: Arm, request: Request, text: Sequence[int], states: TextStates) -> dict[str, float] | None:
    """Sum the chances of acceptance along the baseline's text: sum min(p, q), or what a lossy rule's own law says of
    chains. None under a lossy rule whose chances depend on the depth.
    """
    rule = arm.verifier.capabilities
    known = _has_replay(arm) if rule.lossless else rule.any_depth and arm.structure.branches == 1
    if not known or arm.drafter.capabilities.replay in (None, "calling"):
        return None
    drafter = arm.drafter.drafter if isinstance(arm.drafter, Wrapper) else arm.drafter
    if not (isinstance(drafter, Lookup) and arm.target.sampling.greedy):
        drafter = arm.drafter
    replay = TextReplay(drafter, arm.target, arm.structure, text, request, states)
    along = replay.agreement(None if rule.lossless else arm.verifier)
    return {"numerator": float(along.beta.sum()), "denominator": int(along.proposed.sum())}


def _has_replay(arm: Arm) -> bool:
    """Return True if what a round accepts follows from the text: under greedy, where all lossless rules are one; with a
    temperature for chains that are tested token by token.
    """
    rule = arm.verifier.capabilities
    return (arm.target.sampling.greedy and rule.lossless) or (rule.token_by_token and arm.structure.branches == 1)
