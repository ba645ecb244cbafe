"""Trees of tokens that were looked up: rows merged where they begin alike, or candidates laid on a topology.

All in plain numbers, because a replay makes many thousand a second. Knows neither tensors nor drafters.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from specdec.records import Source, Tree, chain_tree, shared_tree

Place = TypeVar("Place")


class Proposal(NamedTuple):
    """A draft in plain numbers, before it becomes a tensor; a replay of recorded text needs no more.

    Attributes:
        tokens: [N].
        tree: topology over the N nodes; siblings carry different tokens.
        source: [N] strategy and rank of each node.
    """

    tokens: tuple[int, ...]
    tree: Tree
    source: tuple[Source, ...]


NOTHING = Proposal((), chain_tree(0), ())


def merged(rows: Iterable[tuple[Sequence[int], Source]]) -> Proposal:
    """Return rows that share the root as one tree. A beginning that several rows share is one path, with the source of
    the first of them.
    """
    parents: list[int] = []
    tokens: list[int] = []
    source: list[Source] = []
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for row, origin in rows:
        parent = -1
        for token in row:
            node = nodes.get((parent, token))
            if node is None:
                node = nodes[parent, token] = len(tokens)
                parents.append(parent)
                tokens.append(token)
                source.append(origin)
            parent = node
    return Proposal(tuple(tokens), shared_tree(tuple(parents)), tuple(source)) if tokens else NOTHING


def filled(tree: Tree, root: Place, best: Callable[[Place, int], Iterable[tuple[int, str, Place]]]) -> Proposal:
    """Return a topology with the best candidates at every node. A node without a candidate is left out, with all nodes
    below it.

    Args:
        root: the place of the root, for `best`.
        best: (place, count) -> at most `count` different tokens to follow there, best first, each with its strategy
            and with the place that it leads to.
    """
    chosen: dict[int, tuple[int, Source]] = {}
    places = [(-1, root)]  # of the nodes that were chosen; grows while they are filled
    for node, place in places:
        children = tree.children[node + 1]
        if children:
            candidates = best(place, len(children))
            for rank, (child, (token, strategy, after)) in enumerate(zip(children, candidates, strict=False)):
                chosen[child] = token, Source(strategy, rank)
                places.append((child, after))
    if not chosen:
        return NOTHING
    kept = sorted(chosen)
    if len(kept) < len(tree):
        number = {-1: -1} | {node: place for place, node in enumerate(kept)}
        tree = shared_tree(tuple(number[tree.parents[node]] for node in kept))
    tokens, source = zip(*(chosen[node] for node in kept), strict=True)
    return Proposal(tokens, tree, source)
