"""Context n-grams against a brute-force search, written from the definition (theory.md 9.2)."""

from collections import Counter
from types import SimpleNamespace

import torch
from fixtures.drafting import chain, rows, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.drafters.ngram import Ngram, NgramConfig
from specdec.records import Source, TextStart, Tree
from specdec.tree_building.lookup_filling import Proposal


def latest_ends(text: list[int], order: int, matches_max: int) -> list[int]:
    if order > len(text):
        return []
    ends = [end for end in range(order, len(text)) if text[end - order : end] == text[len(text) - order :]]
    return ends[-matches_max:]


def by_count_then_recency(followed: dict[int, object]) -> list:
    """What follows at each position, the most common first, of equals the one whose last position is later."""
    counts = Counter(followed.values())
    last_seen = {what: max(end for end in followed if followed[end] == what) for what in counts}
    return sorted(counts, key=lambda what: (counts[what], last_seen[what]), reverse=True)


def begins(row, others) -> bool:
    return any(other[: len(row)] == row for other in others)


def brute_rows(text: list[int], k: int, w: int, orders: list[int], matches_max: int) -> list[tuple[int, ...]]:
    """Search the whole text for each suffix, the longest first; rank what followed its latest occurrences."""
    rows: list[tuple[int, ...]] = []
    for order in orders:
        ranked = by_count_then_recency(
            {end: tuple(text[end : end + w]) for end in latest_ends(text, order, matches_max)}
        )
        ranked = [row for row in ranked if not begins(row, [other for other in ranked if other != row])]
        rows += [row for row in ranked if not begins(row, rows)]
    return rows[:k]


def brute_tree(text: list[int], shape: Tree, orders: list[int], matches_max: int) -> dict[int, int]:
    """Token of each node that has one: search the text again for every path."""
    tokens: dict[int, int] = {}
    for node, parent in enumerate(shape.parents):
        above = shape.path(parent) if parent >= 0 else ()
        if any(one not in tokens for one in above):
            continue
        path = [tokens[one] for one in above]
        ranked: list[int] = []
        for order in orders:
            ends = latest_ends(text, order, matches_max)
            agreeing = [end + len(path) for end in ends if text[end : end + len(path)] == path]
            ranked += by_count_then_recency({end: text[end] for end in agreeing if end < len(text)})
        rank = shape.children[parent + 1].index(node)
        distinct = list(dict.fromkeys(ranked))
        if rank < len(distinct):
            tokens[node] = distinct[rank]
    return tokens


def make(q="longest", order_max: int = 4, order_min: int = 1, matches_max: int = 32, occurrence="common") -> Ngram:
    orders = {"q": q, "order_max": order_max, "order_min": order_min}
    config = NgramConfig(name="ngram", **orders, matches_max=matches_max, occurrence=occurrence)
    return Ngram(config, SimpleNamespace(device=torch.device("cpu")))


def proposed(drafter: Ngram, gamma: int) -> list[int]:
    return drafter.draft(chain(gamma)).tokens.tolist()


def rows_of(proposal: Proposal) -> list[tuple[int, ...]]:
    return [tuple(proposal.tokens[node] for node in proposal.tree.path(leaf)) for leaf in proposal.tree.leaves]


# Few different tokens, so that suffixes of every order recur and counts tie.
TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), min_size=1, max_size=60))
LONG_TEXTS = st.integers(2, 3).flatmap(lambda size: st.lists(st.integers(0, size), min_size=20, max_size=60))
PARAMETERS = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.sampled_from([1, 2, 3, 8, 32]))
TREES = st.integers(1, 12).flatmap(lambda nodes: st.tuples(*(st.integers(-1, node - 1) for node in range(nodes))))


@given(TEXTS, PARAMETERS)
@settings(max_examples=40)
def test_a_chain_is_the_brute_force_one(text, parameters):
    gamma, order_min, more, matches_max = parameters
    for q, orders in (("longest", range(order_min + more, order_min - 1, -1)), (order_min, [order_min])):
        drafter = make(q, order_min + more, order_min, matches_max)
        drafter.start(TextStart(text, 1000))
        best = brute_rows(text, 1, gamma, list(orders), matches_max)
        assert proposed(drafter, gamma) == (list(best[0]) if best else [])


@given(LONG_TEXTS, PARAMETERS, st.integers(1, 12))
@settings(max_examples=30)
def test_rows_are_the_brute_force_ones(text, parameters, k):
    w, order_min, more, matches_max = parameters
    for q, orders in (("longest", range(order_min + more, order_min - 1, -1)), (order_min, [order_min])):
        drafter = make(q, order_min + more, order_min, matches_max)
        drafter.start(TextStart(text[:3], 1000))  # the index grows, with a lookup in between and without
        proposed(drafter, w)
        drafter.commit(text[3:7])
        drafter.commit(text[7:])
        expected = brute_rows(text, k, w, list(orders), matches_max)
        assert drafter.rows(k, w) == expected
        # A row that another one of fewer matched tokens continues ends inside it, and is no leaf.
        leaves = [row for row in expected if sum(begins(row, [other]) for other in expected) == 1]
        proposal = drafter.propose(rows(k, w))
        assert sorted(rows_of(proposal)) == sorted(leaves)
        origins = dict(zip(rows_of(proposal), (proposal.source[leaf] for leaf in proposal.tree.leaves), strict=True))
        assert origins == {row: Source("ngram", expected.index(row)) for row in leaves}


@given(LONG_TEXTS, PARAMETERS, TREES)
@settings(max_examples=30)
def test_trees_are_the_brute_force_ones(text, parameters, parents):
    _, order_min, more, matches_max = parameters
    shape = tree(*parents)
    for q, orders in (("longest", range(order_min + more, order_min - 1, -1)), (order_min, [order_min])):
        drafter = make(q, order_min + more, order_min, matches_max)
        drafter.start(TextStart(text, 1000))
        expected = brute_tree(text, shape.tree, list(orders), matches_max)
        proposal = drafter.propose(shape)
        assert proposal.tokens == tuple(expected.values())
        kept = {node: place for place, node in enumerate(expected)} | {-1: -1}
        assert proposal.tree.parents == tuple(kept[shape.tree.parents[node]] for node in expected)
        siblings = [shape.tree.children[shape.tree.parents[node] + 1] for node in expected]
        assert proposal.source == tuple(
            Source("ngram", group.index(node)) for group, node in zip(siblings, expected, strict=True)
        )


def test_rows_and_trees_match_one_token_unless_told_otherwise():
    """The paper's q; a chain takes the longest match."""
    text = [1, 2, 9, 2, 5, 2, 5, 2, 5, 1, 2]
    auto, longest = make("auto", matches_max=4), make("longest", matches_max=4)
    for drafter in (auto, longest):
        drafter.start(TextStart(text, 1000))
        assert proposed(drafter, 1) == [9]
    assert auto.propose(rows(2, 1)).tokens == (5, 9)
    assert longest.propose(rows(2, 1)).tokens == (9, 5)
    assert auto.propose(tree(-1, -1)).tokens == (5, 9)
    assert longest.propose(tree(-1, -1)).tokens == (9, 5)
    two = make(2)
    two.start(TextStart(text, 1000))
    assert proposed(two, 1) == [9] and two.propose(rows(2, 1)).tokens == (9,)
    auto = make("auto", order_max=4, order_min=2)
    auto.start(TextStart([1, 2, 3, 1], 1000))
    assert proposed(auto, 2) == [] and rows_of(auto.propose(rows(3, 2))) == [(2, 3)], "rows match one token even so"


def test_a_filled_tree_is_the_topology_itself():
    """Its mask and its positions are then computed once for all rounds."""
    drafter, shape = make(1), tree(-1, -1, 0)
    drafter.start(TextStart([7, 1, 2, 7, 3, 7], 1000))
    assert drafter.propose(shape).tree is shape.tree
    assert drafter.propose(tree(-1, -1, -1, 0)).tree == Tree((-1, -1, 0)), "there is no third token"


def server_lookup(text: list[int], order_min: int, order_max: int, k: int) -> list[int]:
    """The rule of vLLM's n-gram proposer (v1/spec_decode/ngram_proposer.py), searched naively: of the n-grams that end
    the text the longest, at most `order_max`, that begins anywhere before its own place; its first such place; the k
    tokens behind it, fewer where the text ends.
    """
    for order in range(min(order_max, len(text) - 1), order_min - 1, -1):
        for begin in range(len(text) - order):
            if text[begin : begin + order] == text[len(text) - order :]:
                return text[begin + order : begin + order + k]
    return []


@given(TEXTS, st.integers(1, 6), st.integers(1, 3), st.integers(0, 4))
@settings(max_examples=20)
def test_the_leftmost_rule_is_that_of_servers(text, gamma, order_min, more):
    drafter = make("longest", order_min + more, order_min, occurrence="leftmost")
    assert drafter.capabilities.fills == {"chain"}, "servers look up one continuation"
    drafter.start(TextStart(text[:1], 100))
    for size in range(1, len(text) + 1):
        assert proposed(drafter, gamma) == server_lookup(text[:size], order_min, order_min + more, gamma)
        drafter.commit(text[size : size + 1])


@given(LONG_TEXTS, st.integers(1, 15))
@settings(max_examples=20)
def test_first_places_survive_a_retraction(text, count):
    drafter = make("longest", 3, 1, occurrence="leftmost")
    drafter.start(TextStart(text[:4], 100))
    drafter.commit(text[4:])
    proposed(drafter, 3)
    drafter.retract(count)
    assert proposed(drafter, 3) == server_lookup(text[:-count], 1, 3, 3)
