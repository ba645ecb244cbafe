"""Siblings: the law that each was really drawn from, and the trees that they grow into, by enumeration."""

from collections import Counter
from itertools import product

import pytest
import torch
from fixtures.drafting import dynamic, rows, tree

from specdec.tree_building.siblings import grow, growing, in_turns, independent

LAW = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.5, 0.4]], dtype=torch.float64)


def after(root):
    """The laws of a Markov chain that `grow` asks for."""
    return lambda asked: LAW[[root if node < 0 else int(asked.tokens[node]) for node in asked.nodes]]


def test_without_replacement_the_law_loses_what_was_drawn(enumeration):
    def run():
        tokens, q = in_turns(LAW[:1], [3], "without_replacement", enumeration.generator)
        expected = LAW[0].clone()
        for token, law in zip(tokens.tolist(), q, strict=True):
            torch.testing.assert_close(law, expected / expected.sum())
            expected[token] = 0
        return tuple(tokens.tolist())

    law = enumeration.law(run)
    assert len(law) == 6 and law[1, 0, 2] == pytest.approx(0.3 * 0.6 / 0.7)


def test_when_nothing_of_the_law_is_left_untried_tokens_are_drawn_alike():
    q = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]])
    tokens, laws = in_turns(q, [4], "without_replacement", torch.Generator().manual_seed(0))
    assert set(tokens[:2].tolist()) == {0, 1} and len(set(tokens.tolist())) == 4
    torch.testing.assert_close(laws[2], torch.tensor([0, 0, 1, 1, 1]) / 3)
    torch.testing.assert_close(laws[3], (1.0 - torch.nn.functional.one_hot(tokens[:3], 5).sum(0)) / 2)


def test_a_law_that_is_not_finite_stays_so_and_a_search_offers_nothing():
    q = torch.full((1, 4), torch.nan)
    assert len(grow(growing(dynamic(4, 2, 2, 2), "ranked", "s"), lambda asked: q.expand(len(asked.nodes), -1))) == 0
    assert in_turns(q, [2], "without_replacement", torch.Generator().manual_seed(0)).q.isnan().all()


def test_children_of_several_parents_stand_side_by_side():
    counts = [1, 3, 2]
    tokens, laws = in_turns(LAW, counts, "without_replacement", torch.Generator().manual_seed(0))
    assert len(tokens) == 6 and len(set(tokens[1:4].tolist())) == 3 and len(set(tokens[4:].tolist())) == 2
    torch.testing.assert_close(laws[[0, 1, 4]], LAW)
    torch.testing.assert_close(independent(LAW, counts, torch.Generator().manual_seed(0)).q, LAW[[0, 1, 1, 1, 2, 2]])
    assert in_turns(LAW, counts, "ranked").tokens.tolist() == [0, 2, 0, 1, 1, 2]


def test_ranks_break_ties_by_order_as_the_chain_does():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, -torch.inf, -torch.inf, -torch.inf, -1.0]])
    assert in_turns(scores, [5, 5], "ranked").tokens.tolist() == [1, 2, 4, 3, 0, 0, 4, 1, 2, 3]
    assert in_turns(scores, [1, 1], "ranked").tokens.tolist() == scores.max(-1).indices.tolist()


def continuations(draft):
    """Tokens of each row, read off the draws: a node stands for as many rows as drew it."""
    texts = []

    def follow(node, text, times):
        drawn = Counter(draft.tests[node + 1])
        assert sum(drawn.values()) in (0, times)
        for child, count in drawn.items():
            follow(child, (*text, int(draft.tokens[child])), count)
        if not drawn:
            texts.extend([text] * times)

    follow(-1, (), sum(map(len, draft.tests[:1])))
    return tuple(sorted(texts))


def test_independent_rows_are_independent_continuations(enumeration):
    """The law of the unordered rows, against every pair of continuations."""
    found = enumeration.law(
        lambda: continuations(grow(growing(rows(2, 2), "independent", "test", enumeration.generator), after(1)))
    )
    expected = Counter()
    for one in product(range(3), repeat=4):
        chance = LAW[1, one[0]] * LAW[one[0], one[1]] * LAW[1, one[2]] * LAW[one[2], one[3]]
        expected[tuple(sorted([one[:2], one[2:]]))] += float(chance)
    assert found == pytest.approx(expected, abs=1e-12)


def test_a_token_drawn_again_gets_the_children_of_both_places():
    shape = tree(-1, -1, 0, 1, 1)  # one child below the first, two below the second
    certain = torch.tensor([[0.0, 1.0, 0.0]]).double()
    draft = grow(growing(shape, "independent", "test"), lambda asked: certain.expand(len(asked.nodes), -1))
    assert draft.tree.parents == (-1, 0) and draft.tokens.tolist() == [1, 1]
    assert draft.draws == ((0, 0), (1, 1, 1), ())
    torch.testing.assert_close(draft.q, certain.expand(2, -1))


def test_siblings_that_differ_keep_the_topology():
    shape = tree(-1, -1, 0, 0, 1, 2)
    for how in ("without_replacement", "ranked"):
        draft = grow(growing(shape, how, "test", torch.Generator().manual_seed(3)), after(0))
        assert draft.tree.parents == (-1, -1, 0, 0, 1, 2) and draft.draws is None
        assert [source.rank for source in draft.source] == [0, 1, 0, 1, 0, 0]
        assert (draft.q is None) == (how == "ranked")
    tokens = draft.tokens.tolist()
    assert tokens[:2] == [0, 1] and tokens[2:4] == [0, 1] and tokens[4] == 2


def test_the_sizes_of_a_draft():
    wide = grow(growing(rows(5, 2), "without_replacement", "test", torch.Generator().manual_seed(0)), after(2))
    assert wide.tree.parents == (-1, -1, -1, 0, 1, 2)
    draft = grow(growing(rows(1, 3), "independent", "test", torch.Generator().manual_seed(0)), after(2))
    assert draft.tree.is_chain and draft.draws is None and len(draft) == 3
    assert len(grow(growing(rows(2, 1).resized(0), "independent", "test"), after(2))) == 0


def searched(law, root, shape):
    """The same search over paths as tuples of tokens: confidence by path, of the nodes that are offered."""
    drafted, beam = {}, [(root,)]
    for _ in range(shape.gamma):
        level = {}
        for path in beam:
            for token in law[path[-1]].argsort(descending=True)[: shape.beam.branching].tolist():
                level[(*path, token)] = drafted.get(path, 1.0) * float(law[path[-1], token])
        drafted |= level
        beam = sorted(level, key=level.get, reverse=True)[: shape.beam.width]
    best = sorted(drafted, key=drafted.get, reverse=True)[: shape.nodes]
    return {path[1:]: drafted[path] for path in best}


@pytest.mark.parametrize("sizes", [(6, 3, 2, 2), (4, 3, 3, 2), (9, 2, 3, 3), (5, 4, 3, 1), (3, 3, 1, 1), (30, 3, 4, 3)])
def test_a_dynamic_tree_keeps_the_most_confident_paths(random_law, sizes):
    law, shape = random_law(7, 3), dynamic(*sizes)
    for root in range(7):

        def logits(asked, root=root):
            rows = law[[root if node < 0 else int(asked.tokens[node]) for node in asked.nodes]]
            return rows.log() + torch.arange(len(rows)).unsqueeze(1)  # a constant in each row changes nothing

        draft = grow(growing(shape, "ranked", "s"), logits)
        assert draft.q is None and draft.draws is None
        paths = {tuple(draft.tokens[list(draft.tree.path(node))].tolist()): node for node in range(len(draft))}
        assert set(paths) == set(searched(law, root, shape)) and len(paths) == len(draft) == shape.nodes
        for path, node in paths.items():
            assert draft.source[node] == ("s", int((law[(root, *path)[-2]] > law[(root, *path)[-2], path[-1]]).sum()))
        assert len(draft.tree.leaves) <= shape.branches and draft.tree.depth <= shape.gamma


def test_of_equal_confidence_the_node_drafted_first_stays():
    shape = dynamic(3, 2, 2, 2)
    sure = torch.full((3, 3), -torch.inf, dtype=torch.float64).fill_diagonal_(0.0)  # every token follows itself
    growth = growing(shape, "ranked", "s")
    one = grow(growth, lambda asked: sure[[1 if node < 0 else int(asked.tokens[node]) for node in asked.nodes]])
    assert one.tokens.tolist() == [1, 1] and one.tree.parents == (-1, 0), "what has no chance is left out"
    even = grow(growing(shape, "ranked", "s"), lambda asked: torch.zeros(len(asked.nodes), 2))
    assert even.tree.parents == (-1, -1, 0)


def test_a_dynamic_tree_is_not_drawn():
    for how in ("independent", "without_replacement"):
        with pytest.raises(ValueError, match="ranked"):
            grow(growing(dynamic(4, 2, 2, 2), how, "s", torch.Generator()), after(0))
