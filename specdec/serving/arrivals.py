"""Requests that come to a simulated server: what each asks for and commits, and when it arrives.

A request's output is known beforehand; what the server decides is in how many rounds it is committed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class ServedText:
    """A recorded text, as a server has to write it."""

    prompt_tokens: int  # tokens of the prompt; all but the last are prefilled
    # For every token of the output the most tokens that a round which starts there commits, the target's own included
    # (theory.md 4.7), so that such a round with gamma draft tokens commits min(length, gamma + 1).
    lengths: tuple[int, ...]
    # By gamma, the lengths of rounds that draft so many tokens, where shorter drafts are not beginnings of longer ones;
    # gammas that are missing have `lengths`.
    by_gamma: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or not self.lengths or min(self.lengths) < 1:
            raise ValueError("a served text needs a prompt, and a length of at least 1 for each of its tokens")

    @property
    def tokens(self) -> int:
        """Tokens of the output."""
        return len(self.lengths)

    def committed(self, position: int, gamma: int) -> int:
        """Return the tokens that a round from `position` with `gamma` draft tokens commits, at most those left."""
        return min(self.of(gamma)[position], gamma + 1, len(self.lengths) - position)

    def of(self, gamma: int) -> tuple[int, ...]:
        """Return the lengths of rounds that draft `gamma` tokens."""
        return self.by_gamma.get(gamma, self.lengths)

    def rounds(self, gamma: int) -> int:
        """Return the rounds that the text takes with drafts of `gamma` tokens."""
        position = rounds = 0
        while position < len(self.lengths):
            position += self.committed(position, gamma)
            rounds += 1
        return rounds


@dataclass(frozen=True)
class Arrival:
    """A request: the second at which it arrives, and its text."""

    at: float
    text: ServedText


def arriving(rate: float, texts: Sequence[ServedText], seed: int, times: Sequence[float] = ()) -> Iterator[Arrival]:
    """Yield arrivals without end, on average `rate` per second, each with one of `texts`, drawn with replacement.

    They are Poisson, or have the gaps of recorded `times`, in their order, again and again, scaled to the rate; `times`
    are seconds, ascending, at least two that differ. Rates share their random numbers: at twice the rate the same
    requests arrive in half the time.
    """
    dice, drawn = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    recorded, at = np.diff(np.asarray(times, dtype=float)), 0.0
    while True:
        gaps = recorded / recorded.mean() if len(recorded) else dice.standard_exponential(256)
        for gap, place in zip(gaps.tolist(), drawn.integers(len(texts), size=len(gaps)).tolist(), strict=True):
            at += gap / rate
            yield Arrival(at, texts[place])


def drawn_texts(
    count: int, alpha: float, prompt_tokens: int, output_tokens: int, deepest: int, seed: int
) -> tuple[ServedText, ...]:
    """Draw texts from a stated law: geometric output lengths, and draft tokens that agree with chance alpha by
    position, independently (Leviathan et al., 2211.17192, section 3.1). Every prompt has `prompt_tokens`, an output
    `output_tokens` on average, and no draft is longer than `deepest`.
    """
    random = np.random.default_rng([seed, 2])
    texts = []
    for size in random.geometric(1 / output_tokens, count).tolist():
        places = np.arange(size + deepest)
        differs = np.where(random.random(len(places)) < alpha, len(places), places)
        ahead = np.minimum.accumulate(differs[::-1])[::-1] - places  # tokens that agree from there on
        texts.append(ServedText(prompt_tokens, tuple((1 + ahead[:size].clip(max=deepest)).tolist())))
    return tuple(texts)
