"""Down a branching draft, node by node; what happens at one node is the rule's business.

Every choice stays on the device: positions are tensors, and what does not happen is masked out. The decision is fetched
once, at the end, so that a round waits for a GPU once.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.sampling import one_hot, sample

Rule = Callable[[Draft, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`rule(draft, p, children, uniforms) -> (chosen, rest)` at one node: p [1, V] the target's law there, children [T] the
nodes to test in this order (-1 where there are fewer), uniforms [T] one for each test; chosen [1] the accepted child or
-1, rest [1, V] the law of the next token where none is accepted (p itself for a node without children)."""


def descend(draft: Draft, p: Tensor, generator: torch.Generator | None, rule: Rule) -> Acceptance:
    """Follow accepted children from the root until none passes; the next token comes from what is left of p there.

    Children that are point masses (`draft.q` is None) need no rule: testing them in turn, each with its share of what
    is left of p, is drawing the next token from p and following the child that carries it. Otherwise `rule` decides.

    Args:
        draft: N nodes, at least one.
        p: [N+1, V].
    """
    widths, table = _tests(draft.tree.children if draft.q is None else draft.tests, p.device)  # table [N+1, T]
    uniforms = None
    if draft.q is not None:
        uniforms = torch.rand(sum(widths), generator=generator, device=p.device, dtype=p.dtype)
    row = torch.zeros(1, dtype=torch.long, device=p.device)  # of p: 0 is the root's, node i's is i + 1
    going = torch.ones(1, dtype=torch.bool, device=p.device)
    law = p[:1]  # [1, V] of the next token, as far as is known
    path: list[Tensor] = []
    tested = 0
    for width in widths:
        children = table.index_select(0, row)[0, :width]
        if uniforms is None:
            chosen, rest = _follow(draft, law, children, generator)
        else:
            chosen, rest = rule(draft, law, children, uniforms[tested : tested + width])
        tested += width
        passed = going & (chosen >= 0)
        row = torch.where(passed, chosen + 1, row)
        law = torch.where(passed, p.index_select(0, row), torch.where(going, rest, law))
        path.append(torch.where(passed, chosen, -1))
        going = passed
        if can_look(p) and not going:
            break
    decided: list[int] = torch.cat([*path, sample(law, generator), draft.tokens]).tolist()
    accepted = tuple(node for node in decided[: len(path)] if node >= 0)
    last = accepted[-1] if accepted else -1
    tokens = tuple(decided[len(path) + 1 :])
    return Acceptance(accepted, decided[len(path)], bool(draft.tree.children[last + 1]), tokens)


def can_look(values: Tensor) -> bool:
    """Whether reading a number costs nothing, so that what would be masked out need not be computed."""
    return values.device.type == "cpu"


def at(values: Tensor, nodes: Tensor) -> Tensor:
    """Rows of `values` [N, ...] for nodes [T]; any row where a node is -1. A number as an index would be fetched."""
    return values.index_select(0, nodes.clamp_min(0))


def _follow(draft: Draft, law: Tensor, children: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    token = sample(law, generator)  # [1]
    carries = (children >= 0) & (at(draft.tokens, children) == token)
    chosen = torch.where(carries.any(), children.index_select(0, carries.int().argmax(-1, keepdim=True)), -1)
    return chosen, one_hot(token, law.shape[-1]).to(law.dtype)


@lru_cache(maxsize=64)
def _tests(tests: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[tuple[int, ...], Tensor]:
    """How many tests a node can need at each depth from the root on, and the tests as a table [N+1, T], -1 beyond."""
    table = torch.full((len(tests), max(map(len, tests))), -1)
    depth = [0] * len(tests)
    widths: list[int] = []
    for row, children in enumerate(tests):
        for place, child in enumerate(children):
            table[row, place] = child
            depth[child + 1] = depth[row] + 1
        if children:
            widths += [0] * (depth[row] + 1 - len(widths))
            widths[depth[row]] = max(widths[depth[row]], len(children))
    return tuple(widths), table.to(device, non_blocking=True)
