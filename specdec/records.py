"""Records that pass between the parts, from `TextStart` and `Draft` to `Round` and `Generation`: frozen, with named
fields, and without behaviour that knows a method.

Shape letters, used in comments everywhere: B sequences, S context, N draft nodes, V vocabulary, D hidden, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Source(NamedTuple):
    """The strategy that proposed a node, and the rank that it gave the node (0 is its first choice)."""

    strategy: str
    rank: int


@dataclass(frozen=True)
class Tree:
    """The topology of a draft: `parents[i]` is a node before `i` (else ValueError), or -1, the last committed token."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents must precede their children")

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def depth(self) -> int:
        return max(self.depths, default=0)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """`children[i + 1]` are the children of node `i`; entry 0 is the root's."""
        lists: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents):
            lists[parent + 1].append(node)
        return tuple(tuple(nodes) for nodes in lists)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each node among its siblings: 0, 1, ... in the order of the nodes."""
        ranks = {child: rank for children in self.children for rank, child in enumerate(children)}
        return tuple(ranks[node] for node in range(len(self)))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in order."""
        return tuple(node for node, nodes in enumerate(self.children[1:]) if not nodes)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from a child of the root down to `node`, itself included."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @cached_property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def visible(self) -> Tensor:
        """The attention mask [N+1, N+1] over root and nodes: entry (i, j) is true where i is j or lies below j."""
        size = len(self.parents) + 1
        if self.is_chain:
            return torch.ones(size, size, dtype=torch.bool).tril_()
        visible = torch.zeros(size, size, dtype=torch.bool)
        seen, above = torch.arange(size), torch.tensor((0, *(parent + 1 for parent in self.parents)))
        for _ in range(self.depth + 1):  # the root is above itself
            visible.scatter_(1, seen.unsqueeze(1), True)
            seen = above[seen]
        return visible

    @cached_property
    def offsets(self) -> Tensor:
        """The distances [N+1] of root and nodes from the root: 0 and the depths."""
        return torch.tensor((0, *self.depths))


def parents_among(parents: Sequence[int], nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the parents of some nodes of a tree, whose ancestors are among them, by their places among these nodes."""
    place = {-1: -1} | {node: place for place, node in enumerate(nodes)}
    return tuple(place[parents[node]] for node in nodes)


@lru_cache(maxsize=64)
def chain_tree(length: int) -> Tree:
    """Return the chain of `length` nodes. Chains are kept, because every round asks for one; only a few, because a long
    one (a prefill) holds a square mask.
    """
    return Tree(tuple(range(-1, length - 1)))


@lru_cache(maxsize=256)
def shared_tree(parents: tuple[int, ...]) -> Tree:
    """Return one object for each topology, because a tree remembers its depths and its mask, and shapes come again."""
    return Tree(parents)


@dataclass(frozen=True)
class Draft:
    """A token tree that a drafter proposes. Tokens and q are made in one place, so that they always belong together."""

    tokens: Tensor  # [N] int64
    tree: Tree  # topology over the N nodes
    q: Tensor | None = None  # [N, V], row i the law that token i was really drawn from; None: all are point masses
    source: tuple[Source, ...] = ()  # [N] strategy and rank of each node
    # Entry i + 1 lists the children of node i (entry 0 those of the root) in the order of their draws. A child whose
    # token was drawn again is listed again: both draws make one node, and rules for independent draws test it twice.
    # None where each child was drawn once, in the order of `tree.children`.
    draws: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.tree)

    @property
    def tests(self) -> tuple[tuple[int, ...], ...]:
        """The children of the root and of each node, in the order in which an acceptance rule tests them."""
        return self.tree.children if self.draws is None else self.draws


def chain_draft(tokens: Tensor, strategy: str, q: Tensor | None = None) -> Draft:
    """Return a chain of tokens [N], each the first choice of one strategy."""
    return Draft(tokens, chain_tree(len(tokens)), q, (Source(strategy, 0),) * len(tokens))


@dataclass(frozen=True)
class TextStart:
    """The beginning of a text, as a target and a drafter are told of it."""

    prompt: Sequence[int]  # all prompt tokens, at least one; the last is the root of round 1
    capacity: int  # tokens that prompt, output and the largest draft need together
    branches: int = 1  # the most paths from the root to a leaf in a draft, for a target that evaluates each path apart
    generator: torch.Generator | None = None  # the source of all randomness of this text's drafts
    reference: Sequence[int] | None = None  # the baseline's tokens after the prompt, for drafters that need them
    in_step: bool = False  # the target evaluates the text in the same rounds (a replay has none): its cache may be read


@dataclass(frozen=True)
class Request:
    """A text to decode."""

    prompt: Sequence[int]  # at least one token
    max_new_tokens: int  # the limit of the output, which an end token may end before
    draft_generator: torch.Generator | None = None  # the source of randomness of drafts
    accept_generator: torch.Generator | None = None  # and of acceptance decisions
    reference: Sequence[int] | None = None  # see `TextStart`


EMPTY = Draft(tokens=torch.empty(0, dtype=torch.long), tree=chain_tree(0))
"""The draft without a node, one object for every device: its tokens lie on the host, and are in no computation."""


@dataclass(frozen=True)
class Acceptance:
    """The verifier's decision for one draft."""

    path: tuple[int, ...]  # accepted nodes from the root downwards
    next_token: int  # the correction after a rejection, or the bonus after a full acceptance
    rejected: bool  # the last accepted node had children and none passed; never of an empty draft
    tokens: tuple[int, ...]  # [N] the draft's, as numbers, so that a round waits for the device once


@dataclass(frozen=True, slots=True)
class Marks:
    """Clock readings before, between and after the four verbs of a round, in the clock's own type (see `clock`)."""

    start: object
    drafted: object
    verified: object
    accepted: object
    committed: object
    watched: tuple[float, float] = (0.0, 0.0)  # what the clock's watch read right before and after
    restored: object | None = None  # when the target's state fitted the text again; None where its layers keep none


@dataclass(frozen=True)
class Departure:
    """The distance between a round of a rule that is not lossless and what the target alone would do (`observe`)."""

    tv: tuple[float, ...]  # at each committed position, the total variation between the emitted token's law and p
    otherwise: float | None  # chance that a lossless rule decides otherwise on this draft; None for an empty one


@dataclass(frozen=True)
class Round:
    """One cycle of draft, verify, accept and commit, as it happened. Plain numbers, so that every round can be kept."""

    context: int  # tokens in the context when the round began, root included
    draft_tokens: tuple[int, ...]  # [N] offered tokens, over `tree`, proposed by `source`
    tree: Tree
    source: tuple[Source, ...]
    acceptance: Acceptance
    committed: tuple[int, ...]  # tokens appended to the text (accepted + 1, fewer when cut)
    accepted: int  # accepted draft tokens that became text: those up to the cut
    # A rejection was observed; not so where all passed, the cut hides what came next, or nothing was offered.
    rejected: bool
    truncation: str  # "end_token" or "limit" when that ended the text in this round, else ""
    # The chance that a token drawn from q passes, at each tested position of a chain, the root's child first: sum over
    # tokens of min(p, q), or more under a verifier that is not lossless.
    beta: tuple[float, ...]
    marks: Marks
    # The total variation, at each of those positions, between the laws that a verifier which is not lossless emits with
    # the draft and without one.
    tv: tuple[float, ...] = ()
    departure: Departure | None = None  # None for a lossless verifier, and where the emitted law is not known
    batch: int = 1  # sequences that shared the step; each takes an equal share of the durations between `marks`


@dataclass(frozen=True)
class Generation:
    """The output for one prompt by one method, with all of its rounds."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # committed after the prompt, the end token included, nothing after it
    rounds: Sequence[Round]
    prefill: tuple[object, object]  # clock readings before and after it
    finish: str = "limit"  # or "end_token"
    watched: tuple[float, float] = (0.0, 0.0)  # what the clock's watch read right before and right after the prefill
