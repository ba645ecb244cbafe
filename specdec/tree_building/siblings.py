"""Branching drafts out of laws: how siblings are drawn, and the tree that they grow into.

Knows laws and topologies; where a law comes from is the drafter's business.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specdec.records import EMPTY, Draft, Source, Tree
from specdec.sampling import sample
from specdec.structures.base import Beam, Structure

Siblings = Literal["independent", "without_replacement"]
"""How a drafter that samples draws the children of one node."""

How = Siblings | Literal["ranked"]
"""How they are chosen: `ranked` is for a drafter that proposes what is most likely."""

Laws = Callable[[Tensor, Tree, Sequence[int]], Tensor]
"""`laws(tokens, tree, nodes)`: given the draft so far, tokens [N] over `tree`, the laws [M, V] after M of its nodes (-1
is the root). Children that are ranked take any scores in place of laws; where `structure.beam` is given, logits."""


class Drawn(NamedTuple):
    """Children of M parents, those of one parent side by side in the order in which they were drawn.

    Attributes:
        tokens: [C].
        q: [C, V] the law that each was really drawn from; None where they are point masses.
    """

    tokens: Tensor
    q: Tensor | None


def independent(q: Tensor, counts: Sequence[int], generator: torch.Generator | None) -> Drawn:
    """`counts[i]` tokens from law i of q [M, V]; one token may come several times."""
    parents = [parent for parent, count in enumerate(counts) for _ in range(count)]
    rows = q.index_select(0, index_on(q.device, tuple(parents)))
    return Drawn(sample(rows, generator), rows)


def without_replacement(q: Tensor, counts: Sequence[int], generator: torch.Generator | None) -> Drawn:
    """`counts[i]` <= V different tokens from law i of q [M, V] (Sequoia 2402.12374, Algorithm 2; RSD 2402.14160).

    After each token q(x) <- 0, renormalised; the law is uniform over the untried tokens once nothing of q is left.
    """
    if max(counts) == 1:
        return independent(q, counts, generator)

    def draw(laws: Tensor, tried: Tensor) -> tuple[Tensor, Tensor]:
        left = laws.masked_fill(tried, 0.0)
        mass = left.sum(-1, keepdim=True)
        untried = (~tried).to(laws.dtype)
        # NaN stays NaN: what is wrong with a law must show.
        law = torch.where(mass == 0, untried / untried.sum(-1, keepdim=True), left / mass)
        return sample(law, generator), law

    return _in_turns(q, counts, draw)


def ranked(scores: Tensor, counts: Sequence[int]) -> Drawn:
    """The `counts[i]` <= V tokens with the largest of scores [M, V], best first, ties by order; point masses."""
    finite = scores.clamp_min(torch.finfo(scores.dtype).min)  # -inf is for tokens that were taken

    def take(rows: Tensor, tried: Tensor) -> tuple[Tensor, None]:
        return rows.masked_fill(tried, -torch.inf).max(-1).indices, None

    return _in_turns(finite, counts, take)


def _in_turns(
    laws: Tensor, counts: Sequence[int], choose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
) -> Drawn:
    """One child of every parent that still wants one, until none does; `choose(laws [P, V], tried [P, V])`."""
    tried = torch.zeros_like(laws, dtype=torch.bool)
    tokens, rows, places = list[Tensor](), list[Tensor](), list[tuple[int, int]]()
    for turn in range(max(counts)):
        wanting = [parent for parent, count in enumerate(counts) if count > turn]
        parents = index_on(laws.device, tuple(wanting))
        chosen, law = choose(laws.index_select(0, parents), tried.index_select(0, parents))
        tried[parents, chosen] = True
        tokens.append(chosen)
        if law is not None:
            rows.append(law)
        places += [(parent, turn) for parent in wanting]
    order = index_on(laws.device, tuple(sorted(range(len(places)), key=places.__getitem__)))
    return Drawn(torch.cat(tokens)[order], torch.cat(rows)[order] if rows else None)


@lru_cache(maxsize=1024)
def index_on(device: torch.device, places: tuple[int, ...]) -> Tensor:
    """An index [n] there, made without waiting for the device, and once where every round has the same topology."""
    return torch.tensor(places).to(device, non_blocking=True)


def grow(
    structure: Structure,
    laws: Laws,
    how: How,
    strategy: str,
    generator: torch.Generator | None = None,
) -> Draft:
    """Fill the topology of `structure` level by level, one call of `laws` for each.

    A token that independent draws give again is one node with a test more (`Draft.draws`). It stands for both places of
    the topology and gets the children of both, so that k rows are k independent continuations, merged where they begin
    alike. To merge, the tokens are read once a level; the other ways read nothing and keep the topology, but for nodes
    with more children than there are tokens.

    A source's rank is the row's for rows, otherwise that among siblings, in the order drawn.

    Raises:
        ValueError: a structure whose nodes have to be ranked, filled in another way.
    """
    if structure.beam is not None:
        if how != "ranked":
            raise ValueError(f"a dynamic tree is made of ranked tokens, not of {how} draws")
        return _by_confidence(structure, structure.beam, laws, strategy)
    topology, ranks = structure.tree, sibling_ranks(structure.tree, structure.rows is not None)
    tokens, rows = EMPTY.tokens, list[Tensor]()
    parents, source, tests = list[int](), list[Source](), [list[int]()]
    level: list[tuple[int, list[int]]] = [(-1, [-1])]  # nodes, and the places of the topology that each stands for
    while True:
        below = [
            (node, [child for place in places for child in topology.children[place + 1]]) for node, places in level
        ]
        wanted = [(node, places) for node, places in below if places]
        if not wanted:
            break
        law = laws(tokens, _tree(tuple(parents)), [node for node, _ in wanted])  # [M, V]
        if how == "independent":
            children = independent(law, [len(places) for _, places in wanted], generator)
            numbers: Sequence[int] = children.tokens.tolist()
        else:
            wanted = [(node, places[: law.shape[-1]]) for node, places in wanted]
            counts = [len(places) for _, places in wanted]
            children = ranked(law, counts) if how == "ranked" else without_replacement(law, counts, generator)
            numbers = range(len(children.tokens))  # all different, without a look
        level, kept, index = [], [], 0
        for parent, places in wanted:
            merged: dict[int, int] = {}  # token -> its place in `level`
            for place in places:
                if numbers[index] not in merged:
                    merged[numbers[index]] = len(level)
                    level.append((len(parents), []))
                    kept.append(index)
                    parents.append(parent)
                    source.append(Source(strategy, ranks[place]))
                    tests.append([])
                node, stands_for = level[merged[numbers[index]]]
                stands_for.append(place)
                tests[parent + 1].append(node)
                index += 1
        chosen = index_on(law.device, tuple(kept))
        tokens = torch.cat([tokens.to(law.device), children.tokens[chosen]])
        if children.q is not None:
            rows.append(children.q[chosen])
    if not parents:
        return EMPTY
    drawn_again = how == "independent" and max(map(len, tests)) > 1
    draws = tuple(map(tuple, tests)) if drawn_again else None
    return Draft(tokens, _tree(tuple(parents)), torch.cat(rows) if rows else None, tuple(source), draws)


def _by_confidence(structure: Structure, beam: Beam, laws: Laws, strategy: str) -> Draft:
    """The draft of a beam: expansion, then selection (EAGLE-2 2406.16858, 4.1 and 4.2).

    Confidences are log-probabilities of float32 laws. Of equal ones the node drafted first counts as more confident; a
    child is never more confident than its parent, so the ancestors of every node that is kept are kept. Tokens without
    a chance are left out. The host reads the confidences once a level.

    A node that enough others beat can no longer be offered, nor can what would follow it: it is dropped at once, and
    `laws` sees the ancestors of what it is asked for alone, so never more nodes than the structure has.
    """
    tokens, tree = EMPTY.tokens, EMPTY.tree
    ranks, confidence = list[int](), list[float]()
    level = [-1]  # to be expanded
    for _ in range(structure.gamma):
        above = sorted({ancestor for node in level for ancestor in tree.path(node)})
        asked = [above.index(node) if node >= 0 else -1 for node in level]
        law = laws(_taken(tokens, above), _subtree(tree.parents, above), asked)  # [M, V]
        best = law.float().log_softmax(-1).topk(min(beam.branching, law.shape[-1]), dim=-1)
        parents = list(tree.parents)
        for parent, chances in zip(level, best.values.tolist(), strict=True):
            confidence += [(confidence[parent] if parent >= 0 else 0.0) + chance for chance in chances]
            ranks += range(len(chances))
            parents += [parent] * len(chances)
        # Not above -inf is NaN too: a law that is not finite offers nothing.
        able = [node for node, chance in enumerate(confidence) if chance > -inf]
        kept = _most_confident(able, confidence, structure.nodes)
        tokens = _taken(torch.cat([tokens.to(law.device), best.indices.flatten()]), kept)
        fresh = [place for place, node in enumerate(kept) if node >= len(tree)]
        tree = _subtree(parents, kept)
        ranks, confidence = [ranks[node] for node in kept], [confidence[node] for node in kept]
        level = _most_confident(fresh, confidence, beam.width)
        if not level:
            break
    return Draft(tokens, tree, None, tuple(Source(strategy, rank) for rank in ranks)) if len(tree) else EMPTY


def _most_confident(nodes: Sequence[int], confidence: Sequence[float], most: int) -> list[int]:
    """At most so many of `nodes`, in their order."""
    return sorted(sorted(nodes, key=lambda node: -confidence[node])[:most])


def _subtree(parents: Sequence[int], nodes: Sequence[int]) -> Tree:
    """Of nodes that come with their ancestors. Not kept, as `_tree` does: it is another in every round."""
    number = {-1: -1} | {node: place for place, node in enumerate(nodes)}
    return Tree(tuple(number[parents[node]] for node in nodes))


def _taken(tokens: Tensor, nodes: Sequence[int]) -> Tensor:
    return tokens[torch.tensor(nodes, dtype=torch.long).to(tokens.device, non_blocking=True)]


@lru_cache(maxsize=256)
def _tree(parents: tuple[int, ...]) -> Tree:
    """Most rounds have the topology of the round before, and a tree knows its depths and its mask."""
    return Tree(parents)


@lru_cache(maxsize=64)
def sibling_ranks(topology: Tree, of_rows: bool = False) -> tuple[int, ...]:
    """The rank [N] of each node among its siblings, or of the row that it is in."""
    among = {child: rank for children in topology.children for rank, child in enumerate(children)}
    return tuple(among[topology.path(node)[0] if of_rows else node] for node in range(len(topology)))
