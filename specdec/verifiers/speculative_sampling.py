"""Speculative sampling (Leviathan et al. 2211.17192, Algorithm 1; Chen et al. 2302.01318, Algorithm 2), and multi-round
rejection where a draft branches (SpecInfer 2305.09781, Algorithm 2; Sequoia 2402.12374, Algorithm 2; RSD 2402.14160).

On the way down a branching draft every choice stays on the device: positions are tensors, and steps that do not happen
are masked out. The decision is fetched once, at the end, so that a round waits for a GPU once.
"""

from functools import lru_cache

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft, Tree
from specdec.sampling import one_hot, residual, sample
from specdec.structures.base import EVERY_STRUCTURE
from specdec.verifiers.base import Verifier, VerifierCapabilities, chain_acceptance, correction, verifiers


@verifiers.register("speculative_sampling")
class SpeculativeSampling(Verifier):
    """Accept x ~ q with probability min(1, p(x)/q(x)); at the first rejection draw from norm((p - q)_+).

    Where a node has several children they are tested in the order of `draft.tests`, each against what the rejections
    before it left of p: p <- norm((p - q)_+) with the very q that the rejected one was drawn from. With draws that are
    independent this is SpecInfer's rule, with draws without replacement Sequoia's and RSD's; q travels with each token.
    Where p is one-hot, a token passes only where p has its point, and what corrects a rejection is that point.
    """

    capabilities = VerifierCapabilities(handles=EVERY_STRUCTURE, exact_match=True)

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        if draft.tree.is_chain and draft.draws is None:
            return accept_chain(draft, p, generator)
        return descend(draft, p, generator, self)

    def decide(self, draft: Draft, p: Tensor, children: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Decide at one node, by the target's law p [1, V] there, the children [T] to test in this order (-1 where
        there are fewer) and a uniform number for each test, [T]. Return the accepted child [1] or -1, and the law
        [1, V] of the next token where none is accepted (p itself for a node without children).
        """
        assert draft.q is not None
        laws, tokens = at(draft.q, children).to(p.dtype), at(draft.tokens, children)  # [T, V], [T]
        chosen = torch.full_like(children[:1], -1)
        for test in range(len(children)):
            child, token, q = children[test : test + 1], tokens[test : test + 1], laws[test : test + 1]
            due = (child >= 0) & (chosen < 0)
            p_token = torch.where(due, p.index_select(-1, token)[0], 0.0)  # where nothing is due, nothing passes
            passed = uniforms[test : test + 1] * q.index_select(-1, token)[0] < p_token
            chosen = torch.where(passed, child, chosen)
            p = torch.where(due & ~passed, residual(p, q), p)
            if can_look(p) and not due & ~passed:
                break
        return chosen, p


def accept_chain(
    draft: Draft, p: Tensor, generator: torch.Generator | None, lenience: float = 1.0, kept: float = 1.0
) -> Acceptance:
    """Decide all positions of a chain at once, each token with min(1, p / (lenience q)). After a rejection the share
    `kept` of q is taken off p; after an empty draft the token is drawn from p[0].
    """
    offered = len(draft)
    if offered == 0:
        return chain_acceptance(draft, None, sample(p[0], generator))
    tokens = draft.tokens.unsqueeze(-1)
    p_token = p[:offered].gather(-1, tokens).squeeze(-1)  # [N]
    bound = torch.rand(offered, generator=generator, device=p.device, dtype=p.dtype)
    if lenience < 1.0:
        bound = bound * lenience
    if draft.q is not None:
        # u < p/q, written without the division: q may be 0 only where a token cannot have been drawn.
        bound = bound * draft.q.gather(-1, tokens).squeeze(-1)
    accepted = (bound < p_token).cumprod(0).sum()
    return chain_acceptance(draft, accepted, sample(correction(draft, p, accepted, kept=kept), generator))


def descend(draft: Draft, p: Tensor, generator: torch.Generator | None, rule: SpeculativeSampling) -> Acceptance:
    """Follow accepted children of a draft with nodes from the root until none passes; the next token comes from what is
    left of p [N+1, V] there. Children that are point masses (`draft.q` is None) need no rule: testing them in turn,
    each with its share of what is left of p, is the same as drawing the next token from p and following the child with
    that token. Otherwise `rule` decides.
    """
    widths, table = _tests(draft.tree, None if draft.q is None else draft.draws, p.device)  # table [N+1, T]
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
            chosen, rest = rule.decide(draft, law, children, uniforms[tested : tested + width])
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
def _tests(
    tree: Tree, draws: tuple[tuple[int, ...], ...] | None, device: torch.device
) -> tuple[tuple[int, ...], Tensor]:
    """Return the most tests of a node at each depth, the root first, and all tests as a table [N+1, T], -1 beyond."""
    tests, widths = tree.children if draws is None else draws, [0] * tree.depth
    table = torch.full((len(tests), max(map(len, tests))), -1)
    for row, (depth, children) in enumerate(zip((0, *tree.depths), tests, strict=True)):
        if children:
            table[row, : len(children)] = torch.tensor(children)
            widths[depth] = max(widths[depth], len(children))
    return tuple(widths), table.to(device, non_blocking=True)
