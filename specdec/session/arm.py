"""One method of a comparison, and how it decodes a text."""

from dataclasses import dataclass

from specdec.clock import Clock
from specdec.decode import generate
from specdec.drafters.base import Drafter
from specdec.records import Generation, Request
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.verifiers.base import Verifier


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A drafter that fills one structure for a target, under one acceptance rule."""

    method: str
    target: Target
    drafter: Drafter
    structure: Structure
    verifier: Verifier

    @property
    def gamma(self) -> int:
        """Depth of the drafts that are asked for; 0 for plain decoding."""
        return self.structure.gamma

    def decode(self, request: Request, clock: Clock) -> Generation:
        """Decode one text.

        Raises:
            NumericsError: the target's logits were not finite; `partial` holds the rounds before.
        """
        return generate(
            target=self.target,
            drafter=self.drafter,
            verifier=self.verifier,
            structure=self.structure,
            request=request,
            clock=clock,
        )
