"""The seconds that a simulated server takes for a prefill and for a step of its batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from specdec.cost_model import SimulatedCost


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of everything that a server does, by a cost model (theory.md 7.4): t(B, gamma) = draft + call on
    B (gamma + 1) tokens + overhead; or steps as they were `measured` for some batches at some gammas: between two
    batches on a straight line, below the smallest its seconds, beyond the largest by its own share of a sequence.
    """

    cost: SimulatedCost  # of calls, drafts and overhead of one sequence
    model_drafts: bool  # a model drafts, charged `cost.draft`; otherwise a look-up, charged as a share of the call
    # Share of the draft of one sequence that every further one adds: 0 where one call drafts for all, 1 where each
    # sequence is drafted for in turn.
    draft_growth: float
    overhead_growth: float  # the same of the overhead
    measured: Mapping[tuple[int, int], float] = field(default_factory=dict)  # mean seconds of a step by batch and gamma

    def prefill(self, prompts: int, tokens: int) -> float:
        """Return the seconds of one prefill of several prompts, whose tokens to prefill are `tokens` together."""
        return float(self.cost.seconds(tokens, 0, max(1, prompts))) if tokens else 0.0

    def step(self, batch: int, gamma: int, cached: float) -> float:
        """Return the seconds of a round of all sequences: draft, verify, accept, commit.

        Args:
            batch: sequences.
            gamma: draft tokens of each; 0 drafts nothing.
            cached: tokens in the cache, of all sequences together.
        """
        if self.measured:
            batches, seconds = self._lines[gamma]
            if batch > batches[-1]:
                return float(seconds[-1] * batch / batches[-1])
            return float(np.interp(batch, batches, seconds))
        cost, context = self.cost, cached / batch
        tokens = batch * (gamma + 1)
        reading = cost.weights_s + cost.cached_s * cached
        if cost.experts:
            reading += float(cost.expert_seconds(tokens))
        computed = -(-tokens // cost.tile) * cost.tile
        computing = computed * (cost.row_s + cost.key_s * (context + computed / batch))
        # SimulatedCost.seconds, whose contexts are whole tokens, in plain floats: millions of steps are taken.
        call = cost.fixed_s + cost.token_s * context
        call += max(reading, computing) if cost.overlap else reading + computing
        draft = 0.0
        if gamma and self.model_drafts:
            draft = cost.draft.fixed_s + cost.draft.step_s * gamma + cost.draft.cached_s * context
            draft *= 1 + self.draft_growth * (batch - 1)
        elif gamma:
            draft = cost.lookup_s * (1 + self.draft_growth * (batch - 1)) + cost.lookup_share * call
        return call + draft + cost.overhead_s * (1 + self.overhead_growth * (batch - 1))

    @cached_property
    def _lines(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By gamma, the measured batches, ascending, and their seconds."""
        by_gamma: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for gamma in {gamma for _, gamma in self.measured}:
            batches = sorted(batch for batch, depth in self.measured if depth == gamma)
            by_gamma[gamma] = np.array(batches, float), np.array([self.measured[batch, gamma] for batch in batches])
        return by_gamma
