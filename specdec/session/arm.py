"""One method of a comparison, and how it decodes a text."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.clock import Clock
from specdec.decode import generate
from specdec.drafters.base import Drafter
from specdec.prompts import Prompt
from specdec.records import Generation, Request
from specdec.sampling import generator_for
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.verifiers.base import Verifier


def seeded_request(
    target: Target,
    text: tuple[str, Sequence[int]],
    limit: int,
    seed: int,
    purposes: tuple[str, str],
    reference: Sequence[int] | None = None,
) -> Request:
    """Return a text to decode, with generators that are new at each call.

    Args:
        text: its name, of which the generators are made, and the prompt.
        limit: the most tokens of an output, where a recorded text is not shorter.
        purposes: of the random numbers of drafts, and of those of acceptance decisions.
    """
    name, prompt = text
    draft, accept = purposes
    return Request(
        prompt,
        target.limit(prompt, limit),
        draft_generator=generator_for(seed, name, draft),
        accept_generator=generator_for(seed, name, accept, target.device),
        reference=reference,
    )


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

    def request(
        self, prompt: Prompt, limit: int, seed: int, repeat: int = 0, reference: Sequence[int] | None = None
    ) -> Request:
        """Return what this arm is asked to decode, with generators that are new at each call.

        Drafts draw the same numbers at every gamma, so that an oracle's coins belong to positions and curves share
        their noise; acceptance decisions draw numbers of their own for each arm.
        """
        purposes = f"draft/{repeat}", f"accept/{self.method}/{self.gamma}/{repeat}"
        return seeded_request(self.target, (prompt.id, prompt.tokens), limit, seed, purposes, reference)

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
