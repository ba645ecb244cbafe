"""Requests that come to a simulated server: what each asks for and commits, and when it arrives.

A request's output is known beforehand; what the server decides is in how many rounds it is committed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

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


def poisson(rate: float, texts: Sequence[ServedText], seed: int) -> Iterator[Arrival]:
    """Yield Poisson arrivals without end, each with one of `texts`, drawn with replacement.

    Rates share their random numbers: at twice the rate the same requests arrive in half the time.
    """
    gaps, drawn = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    at = 0.0
    while True:
        for gap, place in zip(gaps.standard_exponential(256), drawn.integers(len(texts), size=256), strict=True):
            at += float(gap) / rate
            yield Arrival(at, texts[int(place)])


def recorded_times(times: Sequence[float], rate: float, texts: Sequence[ServedText], seed: int) -> Iterator[Arrival]:
    """Yield arrivals without end whose gaps are those of recorded times, in their order, again and again, scaled to a
    mean of `rate` per second; texts are drawn as for `poisson`. `times` are seconds, ascending, at least two that
    differ.
    """
    gaps = np.diff(np.asarray(times, dtype=float))
    gaps /= gaps.mean() * rate
    drawn = np.random.default_rng([seed, 1])
    at = 0.0
    for gap in cycle(gaps.tolist()):
        at += gap
        yield Arrival(at, texts[int(drawn.integers(len(texts)))])


def at_once(texts: Sequence[ServedText]) -> Iterator[Arrival]:
    """Yield all texts at time 0, in their order: the queue of a closed experiment, in which slots are always full."""
    for text in texts:
        yield Arrival(0.0, text)


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
        agrees = random.random(size + deepest) < alpha
        ahead = 0
        lengths = []
        for place in reversed(range(size + deepest)):
            ahead = ahead + 1 if agrees[place] else 0
            lengths.append(1 + min(ahead, deepest))
        texts.append(ServedText(prompt_tokens, tuple(reversed(lengths))[:size]))
    return tuple(texts)
