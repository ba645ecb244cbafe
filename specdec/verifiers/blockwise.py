"""Blockwise parallel decoding (Stern et al. 1811.03115): exact match, and the looser rules of its section 5."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, typed
from specdec.records import Acceptance, Draft
from specdec.sampling import among_largest
from specdec.verifiers.base import Verifier, VerifierCapabilities, first_choice_acceptance, verifiers


@typed
class BlockwiseRuleConfig(Named):
    acceptance: Literal["exact", "top_k", "score"]
    top_k: AtLeastOne
    threshold: Annotated[float, Field(ge=0.0, lt=1.0)]
    minimum_block: AtLeastOne


@verifiers.register("blockwise")
class BlockwiseRule(Verifier):
    """Accept a chain's tokens for as long as they pass. The next token is argmax p, also in a round without a draft. No
    randomness; the baseline is greedy text.

    acceptance=exact: the token is argmax p (section 3). top_k: it is among the k likeliest (5.1). score: p(x) >= max p
    - threshold; the paper keeps an ordinal output, the intensity of a pixel, that lies within a distance of the argmax
    (5.2), and as tokens of text have no order the distance here is between their probabilities.

    minimum_block is the paper's l (5.3): every round commits at least l tokens, so the first l - 1 drafted ones, fewer
    if there are no more, are accepted whatever they are. The paper's block holds the base model's own next token, and
    so does what our round commits: 1 forces nothing.

    exact with minimum_block 1 is the rule `greedy`: lossless, and for temperature 0 only. All others are lossy. top_k
    and score need more of p than its argmax, so a run has sampling=temperature; at temperature 0 both are exact match.
    """

    capabilities = VerifierCapabilities(
        handles=frozenset({"chain"}), lossless=False, deterministic=True, token_by_token=False
    )

    def __init__(self, config: BlockwiseRuleConfig) -> None:
        self._acceptance, self._top_k, self._threshold = config.acceptance, config.top_k, config.threshold
        self._forced = config.minimum_block - 1
        free = self._forced == 0
        exact = config.acceptance == "exact" and free
        self.capabilities = replace(
            self.capabilities, lossless=exact, greedy_only=exact, exact_match=free, any_depth=free
        )

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        return first_choice_acceptance(draft, p, self._passing(p, torch.arange(1, len(p) + 1, device=p.device)))

    def passed(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        return q.to(p.dtype) * self._passing(p, depth)

    def _passing(self, p: Tensor, depth: int | Tensor) -> Tensor:
        """Return a mask [..., V] of the tokens that pass under p [..., V] at depth [...] of the draft."""
        forced = torch.as_tensor(depth, device=p.device).unsqueeze(-1) <= self._forced
        if self._acceptance == "score":
            return forced | (p >= p.amax(-1, keepdim=True) - self._threshold)
        likeliest = among_largest(p, 1 if self._acceptance == "exact" else min(self._top_k, p.shape[-1]))
        # A one-hot p has no second choice.
        return forced | (likeliest & (p > 0))
