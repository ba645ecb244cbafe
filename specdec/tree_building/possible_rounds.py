"""The round that would begin at each position of a text that is known to its end, for all positions at once.

For drafts that depend on nothing but the tokens before them: what `lookup_filling` builds one by one is counted here
and compared with the text, and never built. Knows neither tensors nor drafters, nor where continuations come from.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from specdec.structures.base import Structure


class PossibleRounds(NamedTuple):
    """Rounds in columns [N], one for each position of a text; see `records.Round` for the terms.

    Attributes:
        offered, nodes, leaves: depth of the draft, its nodes, and its paths.
        accepted: what of its depth the text has.
        ended: the last accepted node has no children, so that nothing was rejected; also true of an empty draft.
        rank: of the last accepted node, or of the first offered one where none is accepted.
        strategy: the name in `Source`, the same for every draft.
    """

    offered: np.ndarray
    nodes: np.ndarray
    leaves: np.ndarray
    accepted: np.ndarray
    ended: np.ndarray
    rank: np.ndarray
    strategy: str


class TextMatches(NamedTuple):
    """Earlier occurrences of the end of a text, for several of its beginnings: all continue as the text itself does.

    Attributes:
        tokens: [T] of the text.
        places: [P] tokens of each beginning.
        room: [P] tokens that may be offered there.
        at, position: [M] the number of a beginning, and the place after an occurrence; the best of a beginning first.
    """

    tokens: np.ndarray
    places: np.ndarray
    room: np.ndarray
    at: np.ndarray
    position: np.ndarray


def together(parts: Sequence[PossibleRounds]) -> PossibleRounds:
    """Return the rounds of consecutive stretches of a text as one table."""
    *columns, (strategy, *_) = zip(*parts, strict=True)
    return PossibleRounds(*map(np.concatenate, columns), strategy)


def chain_rounds(agreed: np.ndarray, offered: np.ndarray, strategy: str) -> PossibleRounds:
    """Return the rounds of chains.

    Args:
        agreed: [N] tokens of a chain from each position on that are the text's, were it long enough.
        offered: [N] its length.
    """
    accepted = np.minimum(agreed, offered)
    rank = np.zeros(len(agreed), dtype=np.int64)
    return PossibleRounds(offered, offered, np.minimum(offered, 1), accepted, accepted == offered, rank, strategy)


def rows_rounds(found: TextMatches, windows: np.ndarray, structure: Structure, strategy: str) -> PossibleRounds:
    """Return the rounds of the `structure.rows` most common continuations, of equals the one that comes first.

    A continuation that the end of the text cuts short is left out where it is the beginning of another one.

    Args:
        windows: [gamma + 1, T] numbers of the windows of each length at each position, equal for equal tokens.
    """
    tokens, places, room, at, position = found
    count, (longest, size) = len(places), windows.shape
    width = np.minimum(room, longest - 1)
    length = np.minimum(width[at], places[at] - position)
    whole = (length > 0) & ~_begins_another(at, position, length, length < width[at], windows)
    at, position, length = at[whole], position[whole], length[whole]
    chosen, rank, _ = ranked(at, length * size + windows[length, position])
    assert structure.rows is not None
    best = chosen[rank < structure.rows]
    shape = (count, structure.rows)
    # [P, rows]: where each row begins in the text, and its length, 0 where there is none
    begins, sizes = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    where = at[best], rank[rank < structure.rows]
    begins[where], sizes[where] = position[best], length[best]
    agreed = _agreed(tokens, begins, places[:, None], sizes)
    accepted = agreed.max(axis=1)
    goes_on = (agreed == accepted[:, None]) & (sizes > accepted[:, None])
    return PossibleRounds(
        offered=sizes.max(axis=1),
        nodes=sizes.sum(axis=1) - _shared(tokens, begins, sizes),
        leaves=(sizes > 0).sum(axis=1),
        accepted=accepted,
        ended=~goes_on.any(axis=1),
        rank=np.argmax(agreed, axis=1),  # the node is that of the first row that has it
        strategy=strategy,
    )


def tree_rounds(found: TextMatches, structure: Structure, strategy: str) -> PossibleRounds:
    """Return the rounds of a token tree: the node of rank j has the (j+1)-th most common token among the matches that
    agree with the path to it, of equals the one of the match that comes first.
    """
    tokens, places, room, at, position = found
    count, table, ahead = len(places), _numbered_children(structure), _padded(tokens, structure.gamma)
    room = np.minimum(room, structure.gamma)
    node = np.zeros(len(at), dtype=np.int64)  # of each match; 0 is the root
    path = np.zeros(count, dtype=np.int64)  # the node that the text has come to, -1 where it has left the tree
    offered, nodes, inner, accepted, last = np.zeros((5, count), dtype=np.int64)
    ended = np.ones(count, dtype=bool)
    for level in range(structure.gamma):
        inside = position < places[at]
        at, position, node = at[inside], position[inside], node[inside]
        first, rank, member = ranked(at * table.shape[1] + node, tokens[position])
        child = table[room[at[first]], node[first], np.minimum(rank, table.shape[2] - 1)]
        filled = child > 0
        new, number, rank = first[filled], child[filled], rank[filled]
        place = at[new]
        offered[place] = level + 1
        nodes += np.bincount(place, minlength=count)
        if level:
            inner += np.bincount(place[rank == 0], minlength=count)
        below = node[new] == path[place]
        ended[place[below]] = False
        hit = below & (tokens[position[new]] == ahead[places[place] + level])
        on = place[hit]
        accepted[on], last[on], ended[on] = level + 1, rank[hit], True
        path[:] = -1
        path[on] = number[hit]
        node = child[member]
        at, position, node = at[node > 0], position[node > 0] + 1, node[node > 0]
    return PossibleRounds(offered, nodes, nodes - inner, accepted, ended, last, strategy)


def ranked(group: np.ndarray, item: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank the different items of each group by how often they occur, and equals by where they occur first.

    Args:
        group, item: [M], from 0.
    Returns:
        For each different item of a group [D], by group and then best first: its first entry, and its rank; and for each
        entry [M] which of these it is.
    """
    size = len(group)
    key = group * (item.max(initial=0) + 1) + item
    alike = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[alike], prepend=-1))
    counts = np.diff(begins, append=size)
    occurs = np.zeros(size, dtype=np.int64)
    occurs[alike[begins]] = counts
    first = np.flatnonzero(occurs)
    first = first[np.argsort(group[first] * (size + 1) - occurs[first], kind="stable")]
    groups = group[first]
    number = np.empty(size, dtype=np.int64)  # of the item, at its first entry
    number[first] = np.arange(len(first))
    member = np.empty(size, dtype=np.int64)
    member[alike] = np.repeat(number[alike[begins]], counts)
    return first, number[first] - np.searchsorted(groups, groups), member


@lru_cache(maxsize=64)
def _numbered_children(structure: Structure) -> np.ndarray:
    """Return the children of each node for each room that there may be [gamma + 1, nodes + 1, ranks + 1]: the node's
    number, the root's being 0, and 0 where there is no child of that rank, as at the last rank.
    """
    trees = [structure.clamped(room).tree for room in range(structure.gamma + 1)]
    widest = max(len(children) for tree in trees for children in tree.children)
    numbers = np.zeros((len(trees), max(map(len, trees)) + 1, widest + 1), dtype=np.int64)
    for room, tree in enumerate(trees):
        for node, children in enumerate(tree.children):
            numbers[room, node, : len(children)] = np.array(children, dtype=np.int64) + 1
    return numbers


def _padded(tokens: np.ndarray, more: int) -> np.ndarray:
    return np.concatenate([tokens, np.full(more, -1)])


def _agreed(tokens: np.ndarray, one: np.ndarray, other: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return how many tokens are the same from two positions on, at most `limit`; all arrays broadcast."""
    most = int(limit.max(initial=0))
    tokens, same = _padded(tokens, most), limit > 0
    agreed = np.zeros(same.shape, dtype=np.int64)
    for step in range(most):
        same = same & (limit > step) & (tokens[one + step] == tokens[other + step])
        agreed += same
    return agreed


def _begins_another(
    at: np.ndarray, position: np.ndarray, length: np.ndarray, cut: np.ndarray, windows: np.ndarray
) -> np.ndarray:
    """Return which continuations [M] are cut short and the beginning of another one of the same place: of one that
    comes after it, because only these are longer.
    """
    short = np.flatnonzero(cut)
    others = np.searchsorted(at, at[short], side="right") - short - 1
    one = np.repeat(short, others)
    other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(others) - others, others)
    same = windows[length[one], position[one]] == windows[length[one], position[other]]
    found = np.zeros(len(at), dtype=bool)
    found[one[same]] = True
    return found


def _shared(tokens: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return how many tokens [P] of rows [P, rows] are those of the beginning of an earlier row: they are no new nodes."""
    rows = sizes.shape[1]
    first = np.where(sizes > 0, tokens[begins], -1 - np.arange(rows))
    alike = (first[:, :, None] == first[:, None, :]) & np.tri(rows, k=-1, dtype=bool)
    place, one, other = np.nonzero(alike)
    limit = np.minimum(sizes[place, one], sizes[place, other])
    shared = np.zeros_like(sizes)
    np.maximum.at(shared, (place, one), _agreed(tokens, begins[place, one], begins[place, other], limit))
    return shared.sum(axis=1)
