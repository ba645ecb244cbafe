"""The price of an n-gram proposal at long contexts: at most 50 us in the median at 100,000 tokens, memory
linear.

Run by hand: `python -m pytest -n 0 -m benchmark tests/benchmarks`. The bounds asserted are generous, because a shared
machine may be slow; the figures logged in `analysis/results/ngram_speed.json` are what counts.
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
    drafter.start(tokens[:CONTEXT], 2 * CONTEXT)
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
def test_time_of_a_proposal(text, gamma, per_round, log_figure):
    times = sorted(microseconds(text, gamma, per_round))
    median, late = statistics.median(times), times[int(0.99 * len(times))]
    log_figure(
        what="proposal at 100,000 tokens",
        text=text.__name__,
        gamma=gamma,
        tokens_per_round=per_round,
        median_us=round(median, 1),
        p99_us=round(late, 1),
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
def test_memory_is_linear(text, log_figure):
    sizes = {length: bytes_per_token(text, length) for length in (25_000, 50_000, 100_000)}
    log_figure(what="bytes per token", text=text.__name__, **{str(n): round(size) for n, size in sizes.items()})
    assert max(sizes.values()) < 1.6 * min(sizes.values()) + 20


@pytest.mark.parametrize("text", [zipf, phrases, loop])
def test_time_to_index_a_prompt(text, log_figure):
    tokens = text(CONTEXT)
    index = SuffixIndex(1, 4)
    began = time.perf_counter()
    index.extend(tokens)
    index.matches(1)
    us = (time.perf_counter() - began) * 1e6 / CONTEXT
    log_figure(what="indexing a prompt", text=text.__name__, us_per_token=round(us, 2))
    assert us < 50
