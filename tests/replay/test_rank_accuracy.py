"""Rank accuracies against the replay of the whole tree that they stand for."""

import random
from types import SimpleNamespace

import pytest
import torch
from fixtures.drafting import tree

from specdec.drafters import Drafter, drafters
from specdec.drafters.base import DrafterCapabilities
from specdec.drafters.base.nested import Wrapper
from specdec.records import Draft, Source
from specdec.replay.rank_accuracy import RankCounts, rank_counts, rank_walk, total
from specdec.replay.walk import replay_stream
from specdec.targets.causal import Causal
from specdec.text.streams import Stream
from specdec.theory.trees import best_tree


@pytest.fixture
def ngram(group_values):
    return drafters.build(group_values("drafter", "ngram", q="longest"), target=SimpleNamespace(device="cpu"))


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
    """Every node has `ranks` children, down to `depth`, in the order of the levels."""
    return tree(*(node // ranks - 1 for node in range(sum(ranks**level for level in range(1, depth + 1)))))


@pytest.mark.parametrize(("ranks", "depth"), [(1, 5), (2, 3), (3, 2)])
def test_they_are_those_of_the_full_trees_rounds(ngram, ranks, depth):
    texts = streams()
    counts = rank_counts(ngram, None, texts, 1000, ranks, depth)
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
    # A round begins behind the path of the one before it, and the full tree accepts all of it.
    for stream in streams():
        paths = [path for path, _ in rank_walk(ngram, None, stream, 1000, ranks, depth, every=True)]
        assert len(paths) == len(stream.generated)
        replayed = replay_stream(ngram, full_tree(ranks, depth), stream, 1000)
        assert [len(paths[position]) for position in replayed.position] == replayed.accepted.tolist()


def test_the_limit_of_tokens_holds(ngram):
    texts = streams(count=1)
    short = [Stream("0", "", texts[0].prompt, texts[0].generated[:20])]
    assert rank_counts(ngram, None, texts, 20, 2, 3) == rank_counts(ngram, None, short, 1000, 2, 3)
    texts = streams()
    apart = [rank_counts(ngram, None, [text], 1000, 2, 3) for text in texts]
    assert total(apart) == rank_counts(ngram, None, texts, 1000, 2, 3)
    assert total(apart[:1]) == apart[0]


def test_accuracies_are_chances_even_where_nothing_was_seen():
    counts = RankCounts((3, 0), ((2, 0), (0, 0)))
    first, second, third = counts.accuracy(3)
    assert first == pytest.approx(((2 + 1 / 3) / 4, (1 / 3) / 4))
    assert second == third == pytest.approx((1 / 3, 1 / 3))
    assert len(best_tree(counts.accuracy(3), 6, 3)) == 6


def test_levels_are_counted_apart(ngram):
    texts = streams()
    two, three = (rank_counts(ngram, None, texts, 1000, 2, 3, levels) for levels in (2, 3))
    assert three.tested[0] == two.tested[0] and sum(three.tested[1:]) == two.tested[1]
    assert three.hits[0] == two.hits[0]
    assert tuple(map(sum, zip(*three.hits[1:], strict=True))) == two.hits[1]
    # What comes to a level is what was right at the level above, but where the text's limit is in the way.
    assert three.tested[2] <= sum(three.hits[1]) and three.tested[1] <= sum(three.hits[0])
    assert three.accuracy(5)[2:] == three.accuracy(3)[2:] * 3
    assert [row["level"] for row in three.rows()] == [1, 1, 2, 2, 3, 3]


class Oblivious(Drafter):
    """Reads states, proposes the tokens after the last one in a cycle, the right one with luck."""

    capabilities = DrafterCapabilities(fills=frozenset({"tree"}), reads_states=True)

    def __init__(self):
        self.texts = []

    def start(self, text, states=None):
        self.texts.append((list(text.prompt), [states.clone()]))

    def commit(self, tokens, states=None):
        self.texts[-1][0].extend(tokens)
        self.texts[-1][1].append(states.clone())

    def draft(self, structure):
        last, tree = self.texts[-1][0][-1], structure.tree
        tokens = []
        for parent in tree.parents:
            rank = sum(other == parent for other in tree.parents[: len(tokens)])
            tokens.append(((tokens[parent] if parent >= 0 else last) + 1 + rank) % 4)
        return Draft(torch.tensor(tokens), tree, source=(Source("oblivious", 0),) * len(tree))


def test_a_drafter_that_is_fed_reads_the_states_of_the_text(tiny_llama, sampling):
    target = Causal(tiny_llama(4, context=128), sampling(temperature=0.0))
    target.hidden.keep(1)
    drafter, texts = Oblivious(), streams(count=2)
    counts = rank_counts(drafter, target, texts, 1000, 2, 3, 3)
    assert counts.tested[0] > counts.tested[1] > counts.tested[2] > 0
    for text, (tokens, states) in zip(texts, drafter.texts, strict=True):
        assert tokens == [*text.prompt, *text.generated]
        read = torch.cat(states)
        own, _ = target.hidden.sequence(torch.tensor([tokens]), 1)
        assert len(read) == len(tokens) - 1, "of the last token, the root of a round to come, nothing is known"
        torch.testing.assert_close(read, own[0, :-1], atol=1e-12, rtol=1e-9)


def test_a_look_up_counts_the_same_in_tensors(ngram):
    texts = streams(count=3)
    assert rank_counts(Wrapper(ngram), None, texts, 1000, 3, 3) == rank_counts(ngram, None, texts, 1000, 3, 3)
