"""The price of an n-gram proposal at long contexts: at most 50 us in the median at 100,000 tokens, of ten rows of ten
150 us, memory linear; and how fast recorded text can be walked through.
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable

import pytest
from fixtures.drafting import chain, ngram, rows
from fixtures.measuring import Anywhere, draft_seconds, in_microseconds, loop, phrases, seconds_of, zipf

from specdec.ngrams.suffix_index import SuffixIndex
from specdec.records import TextStart

pytestmark = pytest.mark.benchmark
CONTEXT, ROUNDS = 100_000, 3_000


def one_token(length: int, dice: random.Random) -> list[int]:
    return [5] * length


SHAPES = [(chain(4), 1), (chain(4), 3), (chain(10), 6), (rows(10, 10), 3)]


@pytest.mark.parametrize("text", [zipf, phrases, loop, one_token])
@pytest.mark.parametrize(("structure", "per_round"), SHAPES, ids=lambda value: getattr(value, "label", str(value)))
def test_time_of_a_proposal(text, structure, per_round, log_figure):
    drafter, tokens = ngram(Anywhere()), text(CONTEXT + ROUNDS * per_round, random.Random(0))
    drafter.start(TextStart(tokens[:CONTEXT], 2 * CONTEXT))
    times = in_microseconds(draft_seconds(drafter, structure, tokens, CONTEXT, per_round))
    case = {"text": text.__name__, "structure": structure.label, "tokens_per_round": per_round}
    log_figure(what="proposal at 100,000 tokens", **case, **times)
    assert times["median_us"] < (200 if structure.name == "chain" else 600)


@pytest.mark.parametrize("text", [zipf, phrases])
@pytest.mark.parametrize("structure", [chain(4), rows(10, 10)], ids=lambda structure: structure.label)
@pytest.mark.parametrize("length", [1_000, CONTEXT])
def test_recorded_text_is_walked_through(text, structure, length, log_figure):
    """Index and propose alone, in texts of this length: what a replay does besides counting."""
    drafter, tokens, rounds = ngram(Anywhere()), text(CONTEXT, random.Random(0)), 0
    began = time.process_time()
    for start in range(0, CONTEXT, length):
        own = tokens[start : start + length]
        drafter.start(TextStart(own[:100], length))
        position = 100
        while position < length:
            tokens_proposed, tree, _ = drafter.propose(structure)
            node, committed = -1, 1
            while position + committed < length:
                wanted, children = own[position + committed - 1], tree.children[node + 1]
                node = next((child for child in children if tokens_proposed[child] == wanted), -1)
                if node < 0:
                    break
                committed += 1
            drafter.commit(own[position : position + committed])
            position, rounds = position + committed, rounds + 1
    speed = (CONTEXT - 100 * (CONTEXT // length)) / (time.process_time() - began)
    log_figure(
        what="tokens per second of recorded text",
        **{"text": text.__name__, "structure": structure.label, "text_length": length},
        **{"rounds": rounds, "tokens_per_s": round(speed)},
    )
    assert speed > (20_000 if structure.name == "chain" else 4_000)


def bytes_per_token(text: Callable[..., list[int]], length: int) -> float:
    tokens = text(length, random.Random(0))
    gc.collect()
    tracemalloc.start()
    index = SuffixIndex([4, 3, 2, 1])
    index.extend(tokens)
    index.matches(4, 1)
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
    tokens = text(CONTEXT, random.Random(0))
    index = SuffixIndex([4, 3, 2, 1])
    us = seconds_of(lambda: (index.extend(tokens), index.matches(4, 1))) * 1e6 / CONTEXT
    log_figure(what="indexing a prompt", text=text.__name__, us_per_token=round(us, 2))
    assert us < 50
