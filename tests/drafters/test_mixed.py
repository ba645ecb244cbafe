"""Rows shared out between context and bigram, against lists made by hand from each of the two on its own."""

import pytest
from fixtures.drafting import chain, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.records import Source, TextStart
from specdec.structures.base import structures
from specdec.tree_building.lookup_filling import Proposal

SIZE = 6


@pytest.fixture(scope="module")
def target(table, random_law):
    return table(random_law(SIZE, 3))


@pytest.fixture(scope="module")
def make(drafter_values, target):
    """`make(context_rows=2, fill=False)`: a mixed drafter of the table target."""

    def build(context_rows=None, fill=True, **ngram):
        values = drafter_values("mixed", SIZE)
        changes = {"context_rows": context_rows, "fill": fill, "context": values["context"] | ngram}
        return drafters.build(values | changes, target=target)

    return build


@pytest.fixture(scope="module")
def parts(group_values, target):
    return (
        drafters.build(group_values("drafter", "ngram"), target=target),
        drafters.build(group_values("drafter", "model_bigram", cache_dir=None), target=target),
    )


def rows_of(proposal: Proposal) -> dict[tuple[int, ...], Source]:
    leaves = proposal.tree.leaves
    return {tuple(proposal.tokens[node] for node in proposal.tree.path(leaf)): proposal.source[leaf] for leaf in leaves}


def started(drafter, text):
    drafter.start(TextStart(text, 1000))
    return drafter


TEXTS = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=40)


@given(TEXTS, st.integers(1, 12), st.integers(1, 4), st.sampled_from([None, 0, 1, 2, 5]), st.booleans())
@settings(max_examples=25)
def test_rows_are_shared_out(make, parts, text, k, w, context_rows, fill):
    fill = fill or context_rows is None
    context, bigram = (started(part, text) for part in parts)
    share = k if context_rows is None else min(k, context_rows)
    expected = [(row, Source("ngram", rank)) for rank, row in enumerate(context.rows(k, w)[:share])]
    most = k if fill else len(expected) + k - share
    for rank, row in enumerate(bigram.rows(text[-1], SIZE, w)):
        if len(expected) < most and row not in [other for other, _ in expected]:
            expected.append((row, Source("model_bigram", rank)))
    leaves = {
        row: source
        for row, source in expected
        if not any(other != row and other[: len(row)] == row for other, _ in expected)
    }
    assert rows_of(started(make(context_rows, fill), text).propose(rows(k, w))) == leaves


@given(TEXTS, st.integers(1, 4), st.sampled_from([None, 0, 1]))
@settings(max_examples=20)
def test_a_chain_is_the_context_s_or_else_the_bigram_s(make, parts, text, gamma, context_rows):
    context, bigram = (started(part, text).propose(chain(gamma)) for part in parts)
    expected = context if context.tokens and context_rows != 0 else bigram
    assert started(make(context_rows), text).propose(chain(gamma)) == expected


@given(TEXTS, st.sampled_from([None, 0, 1, 2]), st.booleans(), st.sampled_from([0, 1]))
@settings(max_examples=25)
def test_siblings_of_a_tree_are_shared_out(make, parts, group_values, text, context_rows, fill, goes_on):
    """Two children a level, below the first or the second one of the level above: at every node what followed the same
    path after the last token, then the bigram.
    """
    fill = fill or context_rows is None
    parents = [-1, -1, goes_on, goes_on, 2 + goes_on, 2 + goes_on]
    shape = structures.build(group_values("structure", "tree", parents=parents, nodes=6, depth=3))
    proposal = started(make(context_rows, fill), text).propose(shape)
    _, bigram = parts
    share = 2 if context_rows is None else min(2, context_rows)
    matches = [position for position in range(1, len(text)) if text[position - 1] == text[-1]][-32:]
    for node, children in enumerate(proposal.tree.children, -1):
        if node >= 0 and not children:
            continue
        path = [proposal.tokens[one] for one in (proposal.tree.path(node) if node >= 0 else ())]
        nexts = [
            text[at + len(path)] for at in matches if text[at : at + len(path)] == path and at + len(path) < len(text)
        ]
        ranked = sorted(dict.fromkeys(reversed(nexts)), key=nexts.count, reverse=True)[:share]
        sources = ["ngram"] * len(ranked)
        for token in bigram.ranked(path[-1] if path else text[-1], SIZE):
            if token not in ranked and len(ranked) < (2 if fill else sources.count("ngram") + 2 - share):
                ranked.append(token)
                sources.append("model_bigram")
        assert [proposal.tokens[child] for child in children] == ranked
        assert [proposal.source[child] for child in children] == [
            Source(strategy, rank) for rank, strategy in enumerate(sources)
        ]


def test_the_context_s_match_length_is_a_parameter(make):
    text = [4, 0, 1, 5, 0, 2, 4, 0]
    one, two = (started(make(q=q), text).propose(rows(3, 1)) for q in (1, 2))
    assert [source.strategy for source in one.source].count("ngram") == 2
    assert [source.strategy for source in two.source].count("ngram") == 1


def test_what_is_wrong_is_named_where_it_stands(drafter_values, target):
    for changes, sentence in (
        ({"fill": False}, r"drafter\.fill=false: fixed shares need a drafter\.context_rows"),
        ({"context": {"name": "none", "x": 1}}, r"Unknown key drafter\.context\.x"),
        ({"bigram": {"name": "none"}}, r"drafter\.bigram\.name=none: it should be model_bigram or model_unigram"),
        ({"context.order_min": 9}, r"drafter\.context\.order_min=9: .* drafter\.context\.order_max=4"),
        ({"context.p": 0}, r"Unknown key drafter\.context\.p: drafter 'ngram' has the keys q, order_max"),
        ({"bigram.begin": True}, r"drafter\.bigram\.begin=true"),
    ):
        values = {
            key: dict(value) if isinstance(value, dict) else value
            for key, value in drafter_values("mixed", SIZE).items()
        }
        for key, value in changes.items():
            part, _, leaf = key.rpartition(".")
            (values[part] if part else values)[leaf] = value
        with pytest.raises(UsageError, match=sentence):
            drafters.build(values, target=target)


def test_more_rows_than_the_bigram_ranks_are_refused_before_decoding(make, parts):
    make().prepare(100, rows(64, 2))
    make(context_rows=3, fill=False).prepare(100, rows(65, 2))
    with pytest.raises(UsageError, match=r"drafter\.bigram\.k=64: structure=rows asks for 65"):
        make().prepare(100, rows(65, 2))
    with pytest.raises(UsageError, match=r"drafter\.k=64: .* raise drafter\.k"):
        parts[1].prepare(100, rows(65, 2))
