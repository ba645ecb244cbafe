"""What passes between the parts, from `TextStart` and `Draft` to `Round` and `Generation`. Frozen, named fields, no
behaviour that knows a method.

Shape letters, used in comments everywhere: B rows, S context, N draft nodes, V vocabulary, D hidden, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Source(NamedTuple):
    """Which strategy proposed a node, and the rank it gave it (0 is its first choice)."""

    strategy: str
    rank: int


@dataclass(frozen=True)
class Tree:
    """The topology of a draft: `parents[i]` is a node before `i`, or -1 for the root (the last committed token).

    Raises:
        ValueError: when a parent does not precede its child.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents must precede their children")

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 1."""
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
        """Boolean [N+1, N+1]: row sees column among root and nodes (itself and its ancestors)."""
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
        """[N+1] distance of root and nodes from the root: 0 and the depths."""
        return torch.tensor((0, *self.depths))


@lru_cache(maxsize=64)
def chain_tree(length: int) -> Tree:
    """The chain of `length` nodes; cached because every round of a chain asks for one. Few, because a long chain (a
    prefill is one) holds a square mask."""
    return Tree(tuple(range(-1, length - 1)))


@dataclass(frozen=True)
class Draft:
    """A token tree proposed by a drafter. Tokens and `q` are made in the same place, so they cannot part.

    Attributes:
        tokens: [N] int64.
        tree: topology over the N nodes.
        q: [N, V], row i the law that token i was really drawn from; None declares every node deterministic
            (a point mass on its token).
        source: [N] strategy and rank of each node.
        draws: entry i + 1 lists the children of node i (entry 0 the root's) in the order in which they were drawn, a
            child that was drawn again once more: drawing the same token twice from q makes one node, and rules for
            independent draws test it twice. None where each child was drawn once, in the order of `tree.children`.
    """

    tokens: Tensor
    tree: Tree
    q: Tensor | None = None
    source: tuple[Source, ...] = ()
    draws: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.tree)

    @property
    def tests(self) -> tuple[tuple[int, ...], ...]:
        """For the root and each node, the children in the order in which an acceptance rule takes them up."""
        return self.tree.children if self.draws is None else self.draws


@dataclass(frozen=True)
class TextStart:
    """What a target and a drafter are told when a text begins.

    Attributes:
        prompt: all prompt tokens, at least one; the last is the root of round 1.
        capacity: tokens that prompt, output and the largest draft need together.
        branches: the most paths from the root to a leaf in a draft, for a target that evaluates each path apart.
        generator: the source of all randomness of this text's drafts.
        reference: the baseline's tokens after the prompt, for drafters that need them.
    """

    prompt: Sequence[int]
    capacity: int
    branches: int = 1
    generator: torch.Generator | None = None
    reference: Sequence[int] | None = None


@dataclass(frozen=True)
class Request:
    """A text to decode.

    Attributes:
        prompt: at least one token.
        max_new_tokens: the limit of the output, which an end token may end before.
        draft_generator, accept_generator: the sources of randomness of drafts and of acceptance decisions.
        reference: see `TextStart`.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    draft_generator: torch.Generator | None = None
    accept_generator: torch.Generator | None = None
    reference: Sequence[int] | None = None


EMPTY = Draft(tokens=torch.empty(0, dtype=torch.long), tree=chain_tree(0))


@dataclass(frozen=True)
class Acceptance:
    """The verifier's decision for one draft.

    Attributes:
        path: accepted nodes from the root downwards.
        next_token: the correction or the bonus.
        rejected: whether a rejection was observed, i.e. the last accepted node had children and none passed
            (false for an empty draft: no proposal is not a rejection).
        tokens: [N] the draft's tokens as numbers; they come with the decision, so that a round waits for the device
            once.
    """

    path: tuple[int, ...]
    next_token: int
    rejected: bool
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Marks:
    """Clock readings around the four verbs of a round, in the clock's own type (see `clock`)."""

    start: object
    drafted: object
    verified: object
    accepted: object
    committed: object


@dataclass(frozen=True)
class Departure:
    """How far a round of a rule that is not lossless went from what the target alone would do (`observe`).

    Attributes:
        tv: at each committed position, total variation between what is emitted there and the target's law.
        otherwise: chance that a lossless rule would have decided otherwise on this draft; None for an empty one.
    """

    tv: tuple[float, ...]
    otherwise: float | None


@dataclass(frozen=True)
class Round:
    """One draft-verify-accept-commit cycle, as it happened; plain numbers, so that it can be kept for every round.

    Attributes:
        context: tokens in the context when the round began, root included.
        draft_tokens: [N] offered tokens, over `tree`, proposed by `source`.
        acceptance: the verifier's decision.
        committed: tokens appended to the text (accepted + 1, fewer when cut).
        accepted: accepted draft tokens that count: up to the cut, nothing after it.
        rejected: a rejection was observed, and it lies inside the text (false means censored, or nothing offered).
        truncation: "end_token" or "limit" when that ended the text in this round, else "".
        beta: sum over tokens of min(p, q) at each tested position of a chain, root's child first.
        marks: clock readings.
        tv: where the verifier is not lossless, total variation between what it emits there and what it emits without
            a draft, at each of those positions.
        departure: of a verifier that is not lossless; None where it is, and where that is not known.
    """

    context: int
    draft_tokens: tuple[int, ...]
    tree: Tree
    source: tuple[Source, ...]
    acceptance: Acceptance
    committed: tuple[int, ...]
    accepted: int
    rejected: bool
    truncation: str
    beta: tuple[float, ...]
    marks: Marks
    tv: tuple[float, ...] = ()
    departure: Departure | None = None


@dataclass(frozen=True)
class Generation:
    """All rounds of one prompt by one method.

    Attributes:
        tokens: committed tokens after the prompt, the end token included, nothing after it.
        prefill: clock readings before and after the prefill.
        finish: "end_token" or "limit".
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    prefill: tuple[object, object]
    finish: str = field(default="limit")
