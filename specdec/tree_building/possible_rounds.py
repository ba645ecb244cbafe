"""The round that would begin at each position of a text that is known to its end, for all positions at once.

For drafts that depend on nothing but the tokens before them: what `lookup_filling` builds one by one is counted here
and compared with the text, and never built.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from specdec.structures.base import Structure


class PossibleRounds(NamedTuple):
    """Rounds in columns [N], one for each position of a text; see `records.Round` for the terms."""

    offered: np.ndarray  # depth of the draft
    nodes: np.ndarray
    leaves: np.ndarray  # paths
    accepted: np.ndarray  # what of its depth the text has
    ended: np.ndarray  # the last accepted node has no children: nothing was rejected; also true of an empty draft
    rank: np.ndarray  # of the last accepted node, or of the first offered one where none is accepted
    strategy: str  # the name in `Source`, the same for every draft


class Continuations(NamedTuple):
    """Tokens that are copied as continuations of a text at several of its places, place by place and best first."""

    text: np.ndarray  # [T] tokens of the text
    tokens: np.ndarray  # [S] those that are copied
    places: np.ndarray  # [P] tokens of the text that are known at each place
    room: np.ndarray  # [P] tokens that may be offered there
    at: np.ndarray  # [M] the number of the place that is continued, in ascending order
    begin: np.ndarray  # [M] the first of the tokens that are copied
    size: np.ndarray  # [M] how many these are
    period: np.ndarray  # [M] tokens after which the copy begins again


def chain_rounds(agreed: np.ndarray, offered: np.ndarray, strategy: str) -> PossibleRounds:
    """Return the rounds of chains of lengths [N], of whose tokens the first `agreed` [N] are those of the text."""
    accepted = np.minimum(agreed, offered)
    rank = np.zeros(len(agreed), dtype=np.int64)
    return PossibleRounds(offered, offered, np.minimum(offered, 1), accepted, accepted == offered, rank, strategy)


def copied_rounds(
    found: Continuations, structure: Structure, strategy: str, windows: Callable[[int], np.ndarray] | None = None
) -> PossibleRounds:
    """Return the rounds that offer as much of the continuations as there is room for. The most common come first, for
    which `windows` gives those of `FinishedText`; without it they stay in their order. No row is the
    beginning of another one of its place.
    """
    size = np.minimum(found.size, np.minimum(found.room, structure.gamma)[found.at])
    columns = {"at": found.at, "begin": found.begin, "size": size, "period": found.period}
    found = found._replace(**{name: column[size > 0] for name, column in columns.items()})
    if structure.rows is None:
        return _tree_rounds(found, structure, strategy, counted=windows is not None)
    entry, rank = _different_rows(found) if windows is None else _common_rows(found, windows(structure.gamma))
    entry, rank = entry[rank < structure.rows], rank[rank < structure.rows]
    # [P, rows]: the continuation of each row, one of no tokens where there is none
    number = np.full((len(found.places), structure.rows), len(found.at))
    number[found.at[entry], rank] = entry
    found = found._replace(
        begin=np.append(found.begin, 0), size=np.append(found.size, 0), period=np.append(found.period, 1)
    )
    sizes, text = found.size[number], np.pad(found.text, (0, structure.gamma), constant_values=-1)
    agreed = _agreed(_copier(found, number), lambda step: text[found.places[:, None] + step], sizes)
    accepted = agreed.max(axis=1)
    goes_on = (agreed == accepted[:, None]) & (sizes > accepted[:, None])
    return PossibleRounds(
        offered=sizes.max(axis=1),
        nodes=sizes.sum(axis=1) - _shared(found, number),
        leaves=(sizes > 0).sum(axis=1),
        accepted=accepted,
        ended=~goes_on.any(axis=1),
        rank=np.argmax(agreed, axis=1),  # the node is that of the first row that has it
        strategy=strategy,
    )


def _common_rows(found: Continuations, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return different continuations and their ranks at their place: the most common first, of equals the best.
    One that is shorter than others of its place, because the text ends, is left out where it is their beginning; the
    shorter ones of a place come first. `windows` [depth + 1, T] are those of `FinishedText`.
    """
    at, begin, size = found.at, found.begin, found.size
    longest = np.zeros(len(found.places), dtype=np.int64)
    np.maximum.at(longest, at, size)
    short = np.flatnonzero(size < longest[at])
    one, other = _pairs(short, short + 1, np.searchsorted(at, at[short], side="right"))
    same = windows[size[one], begin[one]] == windows[size[one], begin[other]]
    whole = np.delete(np.arange(len(at)), one[same])
    chosen, rank, _ = ranked(at[whole], size[whole] * windows.shape[1] + windows[size, begin][whole])
    return whole[chosen], rank


def _different_rows(found: Continuations) -> tuple[np.ndarray, np.ndarray]:
    """Return different continuations and their ranks at their place: in their order, none the beginning of another."""
    at, size = found.at, found.size
    one, other = _pairs(np.arange(len(at)), np.searchsorted(at, at), np.searchsorted(at, at, side="right"))
    adds_nothing = (size[one] < size[other]) | (size[one] == size[other]) & (other < one)
    one, other = one[adds_nothing], other[adds_nothing]
    agreed = _agreed(_copier(found, one), _copier(found, other), size[one])
    kept = np.delete(np.arange(len(at)), one[agreed == size[one]])
    return kept, np.arange(len(kept)) - np.searchsorted(at[kept], at[kept])


def _tree_rounds(found: Continuations, structure: Structure, strategy: str, *, counted: bool) -> PossibleRounds:
    """Return the rounds of a token tree: the node of rank j has the (j+1)-th token among the continuations that agree
    with the path to it, in the order of the continuations or, if `counted`, the most common token first.
    """
    count, table = len(found.places), _numbered_children(structure)
    text = np.pad(found.text, (0, structure.gamma), constant_values=-1)
    room = np.minimum(found.room, structure.gamma)
    entry, node = np.arange(len(found.at)), np.zeros(len(found.at), dtype=np.int64)  # node 0 is the root
    path = np.zeros(count, dtype=np.int64)  # the node that the text has come to, -1 where it has left the tree
    offered, nodes, inner, accepted, last = np.zeros((5, count), dtype=np.int64)
    ended = np.ones(count, dtype=bool)
    for level in range(structure.gamma):
        node, entry = node[found.size[entry] > level], entry[found.size[entry] > level]
        at, token = found.at[entry], _copier(found, entry)(level)
        first, rank, member = ranked(at * table.shape[1] + node, token, counted=counted)
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
        hit = below & (token[new] == text[found.places[place] + level])
        on = place[hit]
        accepted[on], last[on], ended[on] = level + 1, rank[hit], True
        path[:] = -1
        path[on] = number[hit]
        child = child[member]
        node, entry = child[child > 0], entry[child > 0]
    return PossibleRounds(offered, nodes, nodes - inner, accepted, ended, last, strategy)


def ranked(group: np.ndarray, item: np.ndarray, *, counted: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank the different items of each group [M], from 0, by how often they occur if that is `counted`, and equals by
    where they occur first. Return the first entry and the rank of each different item of a group [D], by group and then
    best first; and for each entry [M] which of these it is.
    """
    size = len(group)
    key = group * (item.max(initial=0) + 1) + item
    alike = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[alike], prepend=-1))
    counts = np.diff(begins, append=size)
    occurs = np.zeros(size, dtype=np.int64)
    occurs[alike[begins]] = counts if counted else 1
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


def _copier(found: Continuations, entry: np.ndarray) -> Callable[[int], np.ndarray]:
    """Return what gives the token after `step` others of each of these continuations."""
    begin, period = found.begin[entry], found.period[entry]
    return lambda step: found.tokens[begin + step % period]


def _agreed(one: Callable[[int], np.ndarray], other: Callable[[int], np.ndarray], limit: np.ndarray) -> np.ndarray:
    """Return how many tokens two sides have in common from the first on, at most `limit`."""
    agreed, same = np.zeros_like(limit), limit > 0
    for step in range(int(limit.max(initial=0))):
        same = same & (limit > step) & (one(step) == other(step))
        agreed += same
    return agreed


def _pairs(items: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each item beside each number of its range, item by item."""
    counts = ends - begins
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(items, counts), np.repeat(begins, counts) + within


def _shared(found: Continuations, number: np.ndarray) -> np.ndarray:
    """Return how many tokens [P] of rows [P, rows] begin an earlier row as well: they are no nodes of their own."""
    sizes, first = found.size[number], _copier(found, number)(0)
    earlier = np.tri(number.shape[1], k=-1, dtype=bool) & (sizes[:, :, None] > 0) & (sizes[:, None, :] > 0)
    place, one, other = np.nonzero(earlier & (first[:, :, None] == first[:, None, :]))
    limit = np.minimum(sizes[place, one], sizes[place, other])
    agreed = _agreed(_copier(found, number[place, one]), _copier(found, number[place, other]), limit)
    shared = np.zeros_like(sizes)
    np.maximum.at(shared, (place, one), agreed)
    return shared.sum(axis=1)
