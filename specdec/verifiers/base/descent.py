"""The way down a branching draft, node by node; a rule says what happens at one node.

Every choice stays on the device: positions are tensors, and steps that do not happen are masked out. The decision is
fetched once, at the end, so that a round waits for a GPU once.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.sampling import one_hot, sample

Rule = Callable[[Draft, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`rule(draft, p, children, uniforms) -> (chosen, rest)` decides at one node. It is given the target's law p [1, V]
there, the children [T] to test in this order (-1 where there are fewer) and a uniform number for each test, [T]. It
returns the accepted child [1] or -1, and the law [1, V] of the next token where none is accepted (p itself for a node
without children)."""


def descend(draft: Draft, p: Tensor, generator: torch.Generator | None, rule: Rule) -> Acceptance:
    """Follow accepted children of a draft with nodes from the root until none passes; the next token comes from what is
    left of p [N+1, V] there.

    Children that are point masses (`draft.q` is None) need no rule: testing them in turn, each with its share of what
    is left of p, is the same as drawing the next token from p and following the child with that token. Otherwise `rule`
    decides.
    """
    widths, table = _tests(draft.tree.children if draft.q is None else draft.tests, p.device)  # table [N+1, T]
    uniforms = None
    if draft.q is not None:
        uniforms = torch.rand(sum(widths), generator=generator, device=p.device, dtype=p.dtype)
    place = torch.zeros(1, dtype=torch.long, device=p.device)  # in p and `table`: 0 for the root, i + 1 for node i
    going = torch.ones(1, dtype=torch.bool, device=p.device)
    law = p[:1]  # [1, V] the law of the next token, as far as it is known
    path: list[Tensor] = []
    tested = 0
    for width in widths:
        children = table.index_select(0, place)[0, :width]
        if uniforms is None:
            token = sample(law, generator)  # [1]
            carries = (children >= 0) & (at(draft.tokens, children) == token)
            first = children.index_select(0, carries.int().argmax(-1, keepdim=True))
            chosen, rest = torch.where(carries.any(), first, -1), one_hot(token, law.shape[-1]).to(law.dtype)
        else:
            chosen, rest = rule(draft, law, children, uniforms[tested : tested + width])
        tested += width
        passed = going & (chosen >= 0)
        place = torch.where(passed, chosen + 1, place)
        law = torch.where(passed, p.index_select(0, place), torch.where(going, rest, law))
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
    """Return whether the host reads numbers for free, so that steps that do not happen need not be computed."""
    return values.device.type == "cpu"


def at(values: Tensor, nodes: Tensor) -> Tensor:
    """Return the entries [T, ...] of `values` [N, ...] for nodes [T], any entry for -1; nothing is fetched."""
    return values.index_select(0, nodes.clamp_min(0))


@lru_cache(maxsize=64)
def _tests(tests: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[tuple[int, ...], Tensor]:
    """Return the most tests of a node at each depth, the root first, and all tests as a table [N+1, T], -1 beyond."""
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
