"""One method of a comparison: how it decodes a text, and how it would fare along one that is written already."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec.clock import Clock
from specdec.decode import generate
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.base.nested import Wrapper
from specdec.prompts import Prompt
from specdec.records import Acceptance, Draft, Generation, Request, TextStart
from specdec.replay.expected_rounds import TextReplay
from specdec.replay.walk import TextReading
from specdec.sampling import generator_for, one_hot
from specdec.structures.base import Structure
from specdec.targets.base import Target, TargetCapabilities
from specdec.verifiers.base import Verifier


def seeded_request(
    target: Target,
    text: tuple[str, Sequence[int]],
    limit: int,
    seed: int,
    purposes: tuple[str, str],
    reference: Sequence[int] | None = None,
) -> Request:
    """Return a text, given by name and prompt, to be decoded to `limit` tokens at most, or to the end of a recorded
    text. Its generators, new at each call, are made of its name and of the purposes of their numbers: for drafts, and
    for acceptance decisions.
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


@dataclass(frozen=True)
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
        """Decode one text; see `generate`."""
        return generate(self.target, self.drafter, self.verifier, self.structure, request, clock)

    @property
    def _has_replay(self) -> bool:
        """True if what a round accepts follows from the text: under greedy, where all lossless rules are one; with a
        temperature for chains that are tested token by token.
        """
        rule = self.verifier.capabilities
        return (self.target.sampling.greedy and rule.lossless) or (rule.token_by_token and self.structure.branches == 1)

    def replayed_rounds(self, request: Request, text: Sequence[int], reading: TextReading) -> float | None:
        """Return the rounds that this arm is expected to take along a text; None where that does not follow from it, or
        takes as many calls of the target as decoding does (a drafter whose replay is "calling"). The text answers the
        request, whose generator of drafts is fresh.
        """
        if not self._has_replay:
            return None
        return TextReplay(self.drafter, self.target, self.structure, text, request, reading).expected_rounds()

    def alpha_sums(self, request: Request, text: Sequence[int], reading: TextReading) -> dict[str, float] | None:
        """Return the two sums whose ratio is `alpha.text`: of min(p, q) over the positions of the baseline's text, or
        of what a lossy rule's own law passes, and of the positions with a proposal. At each a draft of one token is
        taken, so for heads it is the first head's. None for a lossy rule whose chances depend on the depth, and for a
        drafter whose replay is "calling".
        """
        rule = self.verifier.capabilities
        known = self._has_replay if rule.lossless else rule.any_depth and self.structure.branches == 1
        if not known or self.drafter.capabilities.replay in (None, "calling"):
            return None
        drafter = self.drafter
        if isinstance(drafter, Wrapper) and isinstance(drafter.drafter, Lookup) and self.target.sampling.greedy:
            drafter = drafter.drafter
        replay = TextReplay(drafter, self.target, self.structure, text, request, reading)
        along = replay.agreement(None if rule.lossless else self.verifier)
        return {"numerator": float(along.beta.sum()), "denominator": int(along.proposed.sum())}


class Forced(Target):
    """Wraps a target for one text: after all of its work p becomes one-hot at the recorded token of each position of a
    chain (`drafter.forced=true`).

    For timing an engine at a known acceptance in 16-bit arithmetic, where divergences at near-ties would spoil it. A
    run that uses it logs no lossless metric.
    """

    capabilities = TargetCapabilities(structures=frozenset({"chain"}))

    def __init__(self, target: Target, reference: Sequence[int]) -> None:
        self._target = target
        self.capabilities = replace(target.capabilities, structures=self.capabilities.structures)
        # Beyond the recorded end nothing is committed; the padding only keeps the shapes right.
        self._reference = torch.tensor([*reference, reference[-1]], device=target.device)
        self._position = 0
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.end_tokens, self.device = target.end_tokens, target.device
        self.tokenizer, self.sampling = target.tokenizer, target.sampling

    def start(self, text: TextStart) -> None:
        self._target.start(text)
        self.states = self._target.states
        self._position = 0

    def verify(self, draft: Draft) -> Tensor:
        self._target.verify(draft)
        self.logits = self._target.logits
        recorded = self._reference[self._position : self._position + len(draft) + 1]
        return one_hot(recorded, self.vocab_size)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self._target.commit(path, next_token)
        self.states = self._target.states
        self._position += len(path) + 1

    def agreed(self, draft: Draft, acceptance: Acceptance) -> Acceptance:
        return self._target.agreed(draft, acceptance)

    def discard(self) -> None:
        self._target.discard()

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self._target.score(prompt, text)
