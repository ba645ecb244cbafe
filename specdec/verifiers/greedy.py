"""Exact match with the target's own choice: what speculative sampling becomes when p is one-hot (Stern et al. 2018)."""

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.structures.base import EVERY_STRUCTURE
from specdec.verifiers.base import Verifier, VerifierCapabilities, chain_acceptance, verifiers


@verifiers.register("greedy")
class Greedy(Verifier):
    """Follow the target's argmax down the tree for as long as a child has that token; no randomness."""

    capabilities = VerifierCapabilities(handles=EVERY_STRUCTURE, greedy_only=True, deterministic=True)

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        if not len(draft):
            return chain_acceptance(draft, None, p[0].argmax())
        fetched: list[int] = torch.cat([p.argmax(dim=-1), draft.tokens]).tolist()
        chosen, tokens = fetched[: len(draft) + 1], tuple(fetched[len(draft) + 1 :])
        path: list[int] = []
        node = -1
        while True:
            children = draft.tree.children[node + 1]
            match = next((child for child in children if tokens[child] == chosen[node + 1]), None)
            if match is None:
                return Acceptance(tuple(path), chosen[node + 1], bool(children), tokens)
            path.append(match)
            node = match
