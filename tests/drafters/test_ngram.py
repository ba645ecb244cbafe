"""Context n-grams against a brute-force search, written from the definition (THEORY 9)."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.drafters.base import drafters
from specdec.drafters.ngram import Ngram, NgramConfig, SuffixIndex
from specdec.errors import UsageError
from specdec.structures.base import structures


def brute_force(text: list[int], gamma: int, order_min: int, order_max: int, matches_max: int) -> list[int]:
    """Search the whole text for the longest suffix that came before; count what followed its latest
    occurrences.
    """
    for order in range(order_max, order_min - 1, -1):
        ends = [end for end in range(order, len(text)) if text[end - order : end] == text[len(text) - order :]]
        if order > len(text) or not ends:
            continue
        latest = ends[-matches_max:]
        followed = {end: tuple(text[end : end + gamma]) for end in latest}
        counts = Counter(followed.values())
        last_seen = {continuation: max(e for e in latest if followed[e] == continuation) for continuation in counts}
        return list(max(counts, key=lambda continuation: (counts[continuation], last_seen[continuation])))
    return []


@pytest.fixture
def make(table, random_law):
    target = table(random_law(4, 0))

    def build(order_max: int = 4, order_min: int = 1, matches_max: int = 32) -> Ngram:
        values = {"name": "ngram", "order_max": order_max, "order_min": order_min, "matches_max": matches_max}
        return drafters.build(values, target=target)

    return build


def proposed(drafter: Ngram, gamma: int) -> list[int]:
    return drafter.draft(structures.build({"name": "chain", "gamma": gamma})).tokens.tolist()


class _Anywhere:
    """A drafter needs only the device of its target."""

    device = torch.device("cpu")


# Few different tokens, so that suffixes of every order recur and counts tie.
TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), min_size=1, max_size=60))
PARAMETERS = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3), st.sampled_from([1, 2, 3, 8, 32]))


@given(TEXTS, PARAMETERS)
@settings(max_examples=400)
def test_proposal_is_the_brute_force_one(text, parameters):
    gamma, order_min, more, matches_max = parameters
    config = NgramConfig(name="ngram", order_max=order_min + more, order_min=order_min, matches_max=matches_max)
    drafter = Ngram(config, _Anywhere())  # type: ignore[arg-type]
    drafter.start(text, 1000)
    assert proposed(drafter, gamma) == brute_force(text, gamma, order_min, order_min + more, matches_max)


@given(
    TEXTS,
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.booleans()), max_size=12),
    PARAMETERS,
)
@settings(max_examples=300)
def test_growing_an_index_is_building_it_anew(prompt, commits, parameters):
    gamma, order_min, more, matches_max = parameters
    config = NgramConfig(name="ngram", order_max=order_min + more, order_min=order_min, matches_max=matches_max)
    grown = Ngram(config, _Anywhere())  # type: ignore[arg-type]
    grown.start(prompt, 1000)
    text = list(prompt)
    for tokens, looked_up in commits:
        grown.commit(tokens)
        text += tokens
        if looked_up:  # a lookup in between, or several commits in a row
            proposed(grown, gamma)
    assert proposed(grown, gamma) == brute_force(text, gamma, order_min, order_min + more, matches_max)


def test_the_longest_suffix_wins_over_frequency(make):
    drafter = make()
    #               1 2 -> 9 once, 2 -> 5 three times
    drafter.start([1, 2, 9, 2, 5, 2, 5, 2, 5, 1, 2], 1000)
    assert proposed(drafter, 1) == [9]


def test_count_decides_then_recency(make):
    drafter = make(order_max=1)
    drafter.start([7, 1, 7, 2, 7, 1, 7, 3, 7], 1000)
    assert proposed(drafter, 1) == [1], "1 followed twice"
    drafter.start([7, 1, 7, 2, 7, 3, 7], 1000)
    assert proposed(drafter, 1) == [3], "all followed once: the latest"


def test_only_the_latest_matches_are_counted(make):
    text = [7, 1, 7, 1, 7, 1, 7, 2, 7, 3, 7]
    unlimited, windowed = make(order_max=1), make(order_max=1, matches_max=2)
    unlimited.start(text, 1000)
    windowed.start(text, 1000)
    assert proposed(unlimited, 1) == [1]
    assert proposed(windowed, 1) == [3]


def test_a_continuation_stops_at_the_end_of_the_text(make):
    drafter = make()
    drafter.start([1, 2, 3, 1, 2], 1000)
    assert proposed(drafter, 8) == [3, 1, 2]


def test_nothing_is_proposed_without_a_match(make):
    drafter = make()
    for prompt in ([1], [1, 2, 3]):
        drafter.start(prompt, 1000)
        assert proposed(drafter, 4) == []
    assert proposed(make(order_min=2), 4) == [], "nor before any text"


def test_a_suffix_does_not_match_itself(make):
    drafter = make(order_max=2, order_min=2)
    drafter.start([5, 1, 2], 1000)
    assert proposed(drafter, 2) == []
    drafter.commit([1, 2])
    assert proposed(drafter, 2) == [1, 2]


def test_orders_must_not_cross(make):
    with pytest.raises(UsageError, match=r"drafter\.order_min=5: it should be at most drafter\.order_max=4"):
        make(order_max=4, order_min=5)


def test_memory_entries_are_linear_in_the_text():
    """One link per token and order, and at most one table entry."""
    index = SuffixIndex(1, 3)
    index.extend(range(1000))
    index.matches(1)
    assert sum(len(table) for table in index._latest.values()) <= 3 * 1000
    assert sum(len(links) for links in index._earlier.values()) == 3 * 1000
