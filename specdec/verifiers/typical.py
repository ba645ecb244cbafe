"""Typical acceptance (Medusa, Cai et al. 2401.10774, 2.3.1): tokens that the target finds likely enough are kept."""

from functools import lru_cache
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import Named, typed
from specdec.records import Acceptance, Draft
from specdec.structures.base import EVERY_STRUCTURE
from specdec.verifiers.base import Verifier, VerifierCapabilities, chain_acceptance, verifiers
from specdec.verifiers.greedy import Greedy


@typed
class TypicalConfig(Named):
    epsilon: Annotated[float, Field(gt=0.0, lt=1.0)]
    delta: Annotated[float, Field(gt=0.0)] | None


@verifiers.register("typical")
class Typical(Verifier):
    """Accept a node while p(x) > min(epsilon, delta exp(-H(p))), H in nats: where the target is sure it has to agree,
    where it is not, a draft need only be plausible (theory.md 1.2). No q, no randomness.

    Of all paths whose nodes pass the longest wins, the first in the draft's order among equals (Medusa's own code
    takes the likeliest of them). The paper keeps a step's first token, the target's argmax, unconditionally. Here that
    is the token which ended the round before, the root of this draft: so the next token is argmax p after the last
    accepted node, and a round without a draft emits argmax p, which makes the baseline greedy text.

    p is the law at the run's own temperature, as in Medusa: the warmer, the more passes. At temperature 0 p is one-hot,
    the threshold lies below 1, and the rule is exact match.
    """

    capabilities = VerifierCapabilities(
        handles=EVERY_STRUCTURE, lossless=False, deterministic=True, token_by_token=False
    )

    def __init__(self, config: TypicalConfig) -> None:
        self._epsilon = config.epsilon
        self._delta = config.epsilon**0.5 if config.delta is None else config.delta

    def for_greedy(self) -> Verifier:
        return Greedy()

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        if not len(draft):
            return chain_acceptance(draft, None, p[0].argmax())
        parents = draft.tree.parents
        above = _parent_places(parents, p.device)  # [N]
        p_token = p[above, draft.tokens]
        passed = p_token > self._threshold(p).squeeze(-1)[above]
        # One transfer, the only one of the round.
        fetched: list[int] = torch.cat([p.argmax(-1), draft.tokens, passed.long()]).tolist()
        nodes = len(parents)
        chosen, tokens, passes = fetched[: nodes + 1], fetched[nodes + 1 : 2 * nodes + 1], fetched[2 * nodes + 1 :]
        kept: list[bool] = []
        last, depth = -1, 0
        for node, parent in enumerate(parents):
            kept.append(bool(passes[node]) and (parent < 0 or kept[parent]))
            if kept[node] and draft.tree.depths[node] > depth:
                last, depth = node, draft.tree.depths[node]
        return Acceptance(draft.tree.path(last), chosen[last + 1], bool(draft.tree.children[last + 1]), tuple(tokens))

    def passed(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        return q.to(p.dtype) * (p > self._threshold(p))

    def _threshold(self, p: Tensor) -> Tensor:
        """Return the threshold [..., 1] under p [..., V]."""
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        return (self._delta * (-entropy).exp()).clamp_max(self._epsilon)


@lru_cache(maxsize=64)
def _parent_places(parents: tuple[int, ...], device: torch.device) -> Tensor:
    """Return for each node [N] the place in p of the law that it is tested against: that of its parent."""
    return (torch.tensor(parents, dtype=torch.long) + 1).to(device, non_blocking=True)
