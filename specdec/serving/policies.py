"""Policies of a simulated server: how many tokens to draft in the step that comes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from specdec.serving.step_seconds import StepSeconds


class Policy(ABC):
    """Chooses one gamma for all sequences of a step. Made anew for each simulation, because it may learn."""

    name: str  # in tables and figures

    @abstractmethod
    def gamma(self, batch: int, cached: float) -> int:
        """Return the draft tokens of each of `batch` sequences, which have `cached` tokens in the cache together."""

    def saw(self, gamma: int, committed: Sequence[int], left: Sequence[int]) -> None:
        """Take note of a step: the tokens that each sequence committed, of those that it had left."""


class FixedGamma(Policy):
    """Always the same gamma; 0 is a server without speculation."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self.name = f"gamma {gamma}" if gamma else "none"

    def gamma(self, batch: int, cached: float) -> int:
        return self._gamma


class AdaptiveGamma(Policy):
    """The gamma whose step is expected to commit most tokens per second, for the present batch and cache:

        gamma = argmax over g of B tau(g) / t(B, g),   tau(g) = 1 + sum over k <= g of a_1 ... a_k

    This is the rule of SmartSpec (2406.14066), which calls the ratio goodput, with one gamma for all sequences, and
    with a chance a_k for each depth in place of one alpha, since heads are right less often further on. a_k is the
    share of passed draft tokens among those that were tested at depth k, older rounds counting less and less.

    Depths that were not tested lately keep their last estimate. So that a server which has stopped to speculate can
    find out that drafts have become good, every `probe_every`-th step in a row without drafts takes the smallest gamma.
    """

    name = "adaptive"
    prior, prior_rounds = 0.7, 20.0  # the first estimate of every a_k, and how many rounds it counts for
    memory_rounds = 2000.0  # tests of a depth after which an observation of it counts 1/e
    probe_every = 100

    def __init__(self, gammas: Sequence[int], seconds: StepSeconds) -> None:
        self._seconds, self._gammas = seconds, sorted(gammas)
        deepest = self._gammas[-1]
        self._tested = [self.prior_rounds] * deepest
        self._passed = [self.prior * self.prior_rounds] * deepest
        self._without = 0

    def gamma(self, batch: int, cached: float) -> int:
        tokens = list(accumulate([1.0, *accumulate(self.acceptance, mul)]))  # tau(0), tau(1), ...
        best = max((0, *self._gammas), key=lambda gamma: tokens[gamma] / self._seconds.step(batch, gamma, cached))
        self._without = 0 if best else self._without + 1
        if self._without >= self.probe_every:
            best, self._without = self._gammas[0], 0
        return best

    def saw(self, gamma: int, committed: Sequence[int], left: Sequence[int]) -> None:
        for depth in range(gamma):
            # A text that ends within the draft tells nothing about the depths beyond its end.
            told = [each for each, rest in zip(committed, left, strict=True) if each > depth < rest - 1]
            tested, passed = len(told), sum(each > depth + 1 for each in told)
            keep = max(0.0, 1 - tested / self.memory_rounds)
            self._tested[depth] = keep * self._tested[depth] + tested
            self._passed[depth] = keep * self._passed[depth] + passed

    @property
    def acceptance(self) -> list[float]:
        """The present estimates a_1, a_2, ..."""
        return [passed / tested for passed, tested in zip(self._passed, self._tested, strict=True)]
