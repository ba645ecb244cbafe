"""The price of an n-gram proposal at long contexts: at most 50 us in the median at 100,000 tokens, of ten rows of ten
150 us.
"""

import random

import pytest
from fixtures.drafting import chain, ngram, rows
from fixtures.measuring import Anywhere, draft_seconds, in_microseconds, zipf

from specdec.records import TextStart

pytestmark = pytest.mark.benchmark
CONTEXT, ROUNDS = 100_000, 3_000
SHAPES = [(chain(4), 1), (chain(4), 3), (chain(10), 6), (rows(10, 10), 3)]


@pytest.mark.parametrize(("structure", "per_round"), SHAPES, ids=lambda value: getattr(value, "label", str(value)))
def test_time_of_a_proposal(structure, per_round, log_figure):
    drafter, tokens = ngram(Anywhere()), zipf(CONTEXT + ROUNDS * per_round, random.Random(0))
    drafter.start(TextStart(tokens[:CONTEXT], 2 * CONTEXT))
    times = in_microseconds(draft_seconds(drafter, structure, tokens, CONTEXT, per_round))
    case = {"text": "zipf", "structure": structure.label, "tokens_per_round": per_round}
    log_figure(what="proposal at 100,000 tokens", **case, **times)
    assert times["median_us"] < (200 if structure.name == "chain" else 600)
