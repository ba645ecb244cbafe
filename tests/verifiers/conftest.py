"""Exact laws of the tokens that a rule emits, for rules that are not lossless."""

from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.records import Draft, chain_tree
from specdec.sampling import sample
from specdec.verifiers import Verifier


@pytest.fixture
def first_token(enumeration) -> Callable[..., tuple[Tensor, float]]:
    """`first_token(rule, p, q, deterministic=None)` gives the law [V] of the first token that a round with one drafted
    token emits, and the chance that it was the draft's. The draft is drawn from q, or is `deterministic`, a point mass.
    """

    def law_of(rule: Verifier, p: Tensor, q: Tensor, deterministic: int | None = None) -> tuple[Tensor, float]:
        rows = torch.stack([p, torch.full_like(p, 1 / len(p))])

        def once() -> tuple[int, bool]:
            token = torch.tensor(deterministic) if deterministic is not None else sample(q, enumeration.generator)
            draft = Draft(token.reshape(1), chain_tree(1), None if deterministic is not None else q.unsqueeze(0))
            acceptance = rule.accept(draft, rows, enumeration.generator)
            return (int(token) if acceptance.path else acceptance.next_token), bool(acceptance.path)

        law, accepted = torch.zeros_like(p), 0.0
        for (token, passed), chance in enumeration.law(once).items():
            law[token] += chance
            accepted += chance * passed
        return law, accepted

    return law_of


@pytest.fixture
def defined_law() -> Callable[..., dict[tuple[int, ...], float]]:
    """`defined_law(p, q, root, gamma, passes)` gives the same from a definition: a token that is drawn from the laws
    q [V, V] at a depth is kept where `passes(last, token, depth)`, and the best token of p [V, V] ends the round.
    """

    def law_of(
        p: Tensor, q: Tensor, root: int, gamma: int, passes: Callable[[int, int, int], bool]
    ) -> dict[tuple[int, ...], float]:
        law: dict[tuple[int, ...], float] = defaultdict(float)

        def walk(committed: tuple[int, ...], last: int, chance: float) -> None:
            end = (*committed, int(p[last].argmax()))
            if len(committed) == gamma:
                law[end] += chance
                return
            for token in range(len(p)):
                reached = chance * float(q[last, token])
                if passes(last, token, len(committed) + 1):
                    walk((*committed, token), token, reached)
                else:
                    law[end] += reached

        walk((), root, 1.0)
        return dict(law)

    return law_of


@pytest.fixture
def chain_law(enumeration) -> Callable[..., dict[tuple[int, ...], float]]:
    """`chain_law(rule, p, q, root, gamma)` gives the chance of each text that a round commits after `root`. The
    chain is drawn from the laws q [V, V] and judged by the laws p [V, V].
    """

    def law_of(rule: Verifier, p: Tensor, q: Tensor, root: int, gamma: int) -> dict[tuple[int, ...], float]:
        def once() -> tuple[int, ...]:
            tokens: list[int] = []
            for _ in range(gamma):
                tokens.append(int(sample(q[tokens[-1] if tokens else root], enumeration.generator)))
            rows = torch.tensor([root, *tokens])
            draft = Draft(torch.tensor(tokens, dtype=torch.long), chain_tree(gamma), q[rows[:-1]])
            acceptance = rule.accept(draft, p[rows], enumeration.generator)
            return (*tokens[: len(acceptance.path)], acceptance.next_token)

        return enumeration.law(once)

    return law_of
