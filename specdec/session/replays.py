"""The rounds that every arm would take along texts that are written already: two tables of a session."""

from collections.abc import Sequence
from typing import Any

from specdec.drafters.base.lookup import Lookup
from specdec.drafters.base.nested import Wrapper
from specdec.folder.session_files import Collected
from specdec.records import Generation, Request
from specdec.replay.expected_rounds import agreement, expected_rounds
from specdec.replay.walk import TextStates
from specdec.session.arm import Arm
from specdec.targets.base import Target


class Replays:
    """Adds what replays give to what is `collected` of a prompt, a line per drafter (method), prompt and repeat.

    `replay.parquet` has the rounds of every arm along its own texts (kind "own", for the account) and along the
    baseline's (kind "baseline", for the curves, which need no speculation). `alpha.parquet` has the two sums whose
    ratio is `alpha.text`: sum of min(p, q) over positions, or of what a lossy rule passes, and positions with a
    proposal. At every position a draft of one token is taken, so for heads it is the first head's.

    A drafter whose replay is "calling" has neither: both would take as many calls of the target as decoding does.
    """

    def __init__(self, target: Target, collected: Collected) -> None:
        self._states, self.collected = TextStates(target), collected

    def rounds(self, kind: str, arm: Arm, request: Request, text: Sequence[int], work: dict[str, Any]) -> None:
        """Count the rounds that an arm is expected to take along a text; nothing where that does not follow from it.

        Args:
            kind: "own" or "baseline": who wrote the text.
            request: what the text answers, with a fresh generator of drafts.
            work: prompt and repeat.
        """
        if _has_replay(arm):
            rounds = expected_rounds(arm.drafter, arm.target, arm.structure, text, request, self._states)
            if rounds is not None:
                line = {"method": arm.method, "gamma": arm.gamma, "kind": kind, **work}
                self.collected.replays.append({**line, "tokens": len(text), "rounds": rounds})

    def walked(self, arm: Arm, generation: Generation, work: dict[str, Any]) -> None:
        """Count the rounds of a generation that was itself a walk along recorded text, which every method writes: both
        of its replays are that walk.
        """
        line = {"method": arm.method, "gamma": arm.gamma, **work}
        sums = {"tokens": len(generation.tokens), "rounds": float(len(generation.rounds))}
        self.collected.replays += [{"kind": kind, **line, **sums} for kind in ("own", "baseline")]

    def alpha(self, arm: Arm, request: Request, text: Sequence[int], work: dict[str, Any]) -> None:
        """Sum the chances of acceptance along the baseline's text: sum min(p, q), or what a lossy rule's own law says
        of chains. Nothing under a lossy rule whose chances depend on the depth.
        """
        rule = arm.verifier.capabilities
        known = _has_replay(arm) if rule.lossless else rule.any_depth and arm.structure.branches == 1
        if not known or arm.drafter.capabilities.replay in (None, "calling"):
            return
        drafter = arm.drafter.drafter if isinstance(arm.drafter, Wrapper) else arm.drafter
        if not (isinstance(drafter, Lookup) and arm.target.sampling.greedy):
            drafter = arm.drafter
        where = (drafter, arm.target, arm.structure, text, request, self._states)
        along = agreement(*where, None if rule.lossless else arm.verifier)
        sums = {"numerator": float(along.beta.sum()), "denominator": int(along.proposed.sum())}
        self.collected.alpha.append({"method": arm.method, **work, **sums})


def _has_replay(arm: Arm) -> bool:
    """Return True if what a round accepts follows from the text: under greedy, where all lossless rules are one; with a
    temperature for chains that are tested token by token.
    """
    rule = arm.verifier.capabilities
    return (arm.target.sampling.greedy and rule.lossless) or (rule.token_by_token and arm.structure.branches == 1)
