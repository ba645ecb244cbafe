"""The price of an n-gram proposal at long contexts: at most 50 us in the median at 100,000 tokens, memory
linear.

Run by hand: `python -m pytest -m benchmark tests/benchmarks/test_ngram_speed.py -s`. The bounds asserted are
generous, because a shared machine may be slow; the printed figures are what counts.
"""

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

import pytest
import torch

from specdec.drafters.ngram import Ngram, NgramConfig, SuffixIndex
from specdec.structures.base import structures

pytestmark = pytest.mark.benchmark
CONTEXT, ROUNDS, VOCABULARY = 100_000, 3_000, 4_096


class _Anywhere:
    device = torch.device("cpu")


def zipf(length: int) -> list[int]:
    """Words at random with the frequencies of text: few long matches, some very frequent single tokens."""
    weights = [1 / rank for rank in range(1, VOCABULARY + 1)]
    return random.Random(0).choices(range(VOCABULARY), weights, k=length)


def phrases(length: int) -> list[int]:
    """The same 200 phrases again and again in random order, one token in twenty replaced: code, or a chat
    template.
    """
    dice = random.Random(1)
    book = [dice.choices(range(VOCABULARY), k=dice.randint(3, 30)) for _ in range(200)]
    text: list[int] = []
    while len(text) < length:
        text += [token if dice.random() > 0.05 else dice.randrange(VOCABULARY) for token in dice.choice(book)]
    return text[:length]


def loop(length: int) -> list[int]:
    """A text that has fallen into a loop of seven tokens: every suffix has occurred thousands of times."""
    return [token % 7 for token in range(length)]


def one_token(length: int) -> list[int]:
    return [5] * length


def microseconds(text: Callable[[int], list[int]], gamma: int, per_round: int) -> list[float]:
    """Time of one round's work: take note of the committed tokens, index them, look up, build the draft."""
    tokens = text(CONTEXT + ROUNDS * per_round)
    drafter = Ngram(NgramConfig(name="ngram", order_max=4, order_min=1, matches_max=32), _Anywhere())  # type: ignore[arg-type]
    drafter.start(tokens[:CONTEXT])
    structure = structures.build({"name": "chain", "gamma": gamma})
    times = []
    for start in range(CONTEXT, len(tokens), per_round):
        committed = tokens[start : start + per_round]
        began = time.perf_counter()
        drafter.commit(committed)
        drafter.draft(structure)
        times.append((time.perf_counter() - began) * 1e6)
    return times


@pytest.mark.parametrize("text", [zipf, phrases, loop, one_token])
@pytest.mark.parametrize(("gamma", "per_round"), [(4, 1), (4, 3), (10, 6)])
def test_time_of_a_proposal(text, gamma, per_round):
    times = sorted(microseconds(text, gamma, per_round))
    median, late = statistics.median(times), times[int(0.99 * len(times))]
    print(
        f"\n{text.__name__}, gamma {gamma}, {per_round} tokens a round: median {median:.1f} us, 99% below {late:.1f} us"
    )
    assert median < 200


def bytes_per_token(text: Callable[[int], list[int]], length: int) -> float:
    tokens = text(length)
    gc.collect()
    tracemalloc.start()
    index = SuffixIndex(1, 4)
    index.extend(tokens)
    index.matches(1)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index.text) == length
    return used / length


@pytest.mark.parametrize("text", [zipf, phrases, loop])
def test_memory_is_linear(text):
    sizes = {length: bytes_per_token(text, length) for length in (25_000, 50_000, 100_000)}
    print(
        f"\n{text.__name__}: " + ", ".join(f"{length} tokens {size:.0f} bytes each" for length, size in sizes.items())
    )
    assert max(sizes.values()) < 1.6 * min(sizes.values()) + 20


@pytest.mark.parametrize("text", [zipf, phrases, loop])
def test_time_to_index_a_prompt(text):
    tokens = text(CONTEXT)
    index = SuffixIndex(1, 4)
    began = time.perf_counter()
    index.extend(tokens)
    index.matches(1)
    print(f"\n{text.__name__}: {(time.perf_counter() - began) * 1e6 / CONTEXT:.2f} us a token")
