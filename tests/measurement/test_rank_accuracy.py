"""Rank accuracies against the replay of the whole tree that they stand for."""

import random

import pytest

from specdec.drafters import drafters
from specdec.measurement.rank_accuracy import RankCounts, rank_counts
from specdec.measurement.stream_replay import replay_stream
from specdec.streams import Stream
from specdec.structures import structures
from specdec.theory.trees import best_tree


@pytest.fixture
def ngram(make_target, group_values):
    return drafters.build(group_values("drafter", "ngram", q="longest"), target=make_target())


@pytest.fixture
def make_target():
    class Nowhere:
        device = "cpu"

    return Nowhere


def streams(count=6, length=60):
    """Texts of four tokens that mostly follow a cycle."""
    found = []
    for number in range(count):
        dice = random.Random(number)
        text = [0]
        for _ in range(length):
            text.append((text[-1] + 1) % 4 if dice.random() < 0.7 else dice.randrange(4))
        found.append(Stream(str(number), "", tuple(text[:5]), tuple(text[5:]), ended=number % 2 == 0))
    return found


def full_tree(ranks, depth):
    """Every node has `ranks` children, down to `depth`."""
    parents, level = [], [-1]
    for _ in range(depth):
        nodes = []
        for parent in level:
            for _ in range(ranks):
                nodes.append(len(parents))
                parents.append(parent)
        level = nodes
    values = {"name": "tree", "file": None, "parents": parents, "accuracy": None}
    return structures.build({**values, "nodes": len(parents), "depth": depth})


@pytest.mark.parametrize(("ranks", "depth"), [(1, 5), (2, 3), (3, 2)])
def test_they_are_those_of_the_full_trees_rounds(ngram, ranks, depth):
    texts = streams()
    counts = rank_counts(ngram, texts, 1000, ranks, depth)
    rounds = [replay_stream(ngram, full_tree(ranks, depth), stream, 1000) for stream in texts]
    first, later = counts.hits
    accepted = [count for each in rounds for count in each.accepted]
    assert sum(first) == sum(count > 0 for count in accepted)
    assert sum(first) + sum(later) == sum(accepted)
    # Every round could have offered something, but one that begins at the last token which may be written.
    last = sum(
        each.position[-1] == each.tokens - 1 and not stream.ended for each, stream in zip(rounds, texts, strict=True)
    )
    assert counts.tested[0] == len(accepted) - last
    if depth > 1 and ranks > 1:
        assert later[0] > later[1] > 0, "the test has nothing to count"


def test_the_limit_of_tokens_holds(ngram):
    texts = streams(count=1)
    short = [Stream("0", "", texts[0].prompt, texts[0].generated[:20])]
    assert rank_counts(ngram, texts, 20, 2, 3) == rank_counts(ngram, short, 1000, 2, 3)


def test_accuracies_are_chances_even_where_nothing_was_seen():
    counts = RankCounts((3, 0), ((2, 0), (0, 0)))
    first, second, third = counts.accuracy(3)
    assert first == pytest.approx(((2 + 1 / 3) / 4, (1 / 3) / 4))
    assert second == third == pytest.approx((1 / 3, 1 / 3))
    assert len(best_tree(counts.accuracy(3), 6, 3)) == 6
