"""Reads off the target's own text how a drafter would have fared, without decoding again."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.clock import Clock, CpuClock
from specdec.drafters.base import Drafter
from specdec.records import Request, TextStart, Tree
from specdec.sampling import probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.theory.dependence import replay_rounds


@dataclass(frozen=True)
class Agreement:
    """The result of drafting one token before every position of a text, or one level of a structure that branches.

    Attributes:
        proposed: [N] True where there was a proposal.
        beta: [N] chance that a proposed token was accepted there (0 without a proposal): sum of min(p, q) of a chain;
            its mean over proposals is `alpha.text`.
        m: [N] the same given the token of the text: min(1, q/p) of a chain, 0/1 when greedy.
    """

    proposed: tuple[bool, ...]
    beta: tuple[float, ...]
    m: tuple[float, ...]


@torch.inference_mode()
def agreement(
    drafter: Drafter, target: Target, structure: Structure, text: Sequence[int], request: Request
) -> Agreement:
    """Draft one token before every position of a text; under greedy the text itself is p, otherwise the target scores
    it once.

    Args:
        text: what answers the request; its generator of drafts is in the state that decoding started with.
    Raises:
        ValueError: a structure that branches, sampled: the chance depends on which siblings were drawn.
    """
    if structure.branches > 1 and not target.sampling.greedy:
        raise ValueError("the acceptance of sampled siblings has no replay")
    prompt, p = request.prompt, None
    if not target.sampling.greedy:
        p = probabilities(target.score(prompt, text)[:-1], target.sampling)
    laws = drafter.laws(prompt, text) if structure.branches == 1 else None
    if laws is not None:
        return _agreement_of_laws(p, laws, torch.tensor(list(text), device=laws.device))
    drafter.start(_start(request, text, structure))
    single = structure.resized(1)
    proposed, beta, m = [], [], []
    for index, token in enumerate(text):
        draft = drafter.draft(single)
        proposed.append(len(draft) > 0)
        if not proposed[-1]:
            beta.append(0.0)
            m.append(0.0)
        else:
            guesses: list[int] = draft.tokens.tolist()  # one, unless the structure branches
            if p is None:
                beta.append(float(token in guesses) if draft.q is None else float(draft.q[0, token]))
                m.append(beta[-1])
            elif draft.q is None:
                beta.append(float(p[index, guesses[0]]))
                m.append(float(token in guesses))  # q is 1 there, so min(1, q/p) is 1
            else:
                beta.append(float(torch.minimum(p[index], draft.q[0]).sum()))
                m.append(min(1.0, float(draft.q[0, token] / p[index, token])))
        drafter.commit([token])
    return Agreement(tuple(proposed), tuple(beta), tuple(m))


def _agreement_of_laws(p: Tensor | None, q: Tensor, text: Tensor) -> Agreement:
    """Return the agreement of a drafter that gives its law at every position; without p the text is the target's greedy
    choice.
    """
    of_text = text.unsqueeze(-1)
    q_text = q.gather(-1, of_text).squeeze(-1)
    if p is None:
        beta = m = q_text
    else:
        q = q.to(p.dtype)
        beta = torch.minimum(p, q).sum(-1)
        # A token of the text that p forbids to rounding would divide by 0; q forbids it too or accepts it.
        m = (q_text.to(p.dtype) / p.gather(-1, of_text).squeeze(-1)).nan_to_num(0.0).clamp_max(1.0)
    return Agreement((True,) * len(text), tuple(beta.tolist()), tuple(m.tolist()))


@dataclass(frozen=True)
class Walk:
    """The rounds that writing one text takes.

    Attributes:
        offered: depth offered -> (expected) rounds that offer so much.
        draft_s: seconds that all its drafts took; None where the rounds follow without drafting them.
    """

    offered: dict[int, float]
    draft_s: float | None

    @property
    def rounds(self) -> float:
        return sum(self.offered.values())


@torch.inference_mode()
def rounds_along(drafter: Drafter, structure: Structure, text: Sequence[int], request: Request, clock: Clock) -> Walk:
    """Return the rounds that greedy decoding of `text` takes, drafting again from each round's start: exact for any
    structure.

    Args:
        request: see `agreement`.
    """
    drafter.start(_start(request, text, structure))
    offered: defaultdict[int, float] = defaultdict(float)
    marks: list[tuple[object, object]] = []
    position = 0
    while position < len(text):
        start = clock.mark()
        draft = drafter.draft(structure.clamped(request.max_new_tokens - position - 1))
        marks.append((start, clock.mark()))
        committed = text[position : position + _agreed(draft.tree, draft.tokens.tolist(), text[position:]) + 1]
        drafter.commit(committed)
        position += len(committed)
        offered[draft.tree.depth] += 1
    clock.synchronize()
    return Walk(dict(offered), sum(clock.seconds(*pair) for pair in marks))


def _start(request: Request, text: Sequence[int], structure: Structure) -> TextStart:
    capacity = len(request.prompt) + len(text) + structure.nodes + 1
    return TextStart(request.prompt, capacity, generator=request.draft_generator, reference=request.reference)


def _agreed(tree: Tree, tokens: Sequence[int], text: Sequence[int]) -> int:
    """Count the tokens of the text that the draft has, from the root down: siblings differ, so there is one way."""
    node, depth = -1, 0
    while depth < len(text):
        child = next((child for child in tree.children[node + 1] if tokens[child] == text[depth]), None)
        if child is None:
            break
        node, depth = child, depth + 1
    return depth


def expected_walk(along: Agreement, gamma: int, max_new_tokens: int) -> Walk:
    """Return the rounds of a position-wise drafter of chains, and with them where rounds begin; their number is
    `replay_rounds(along.m, gamma)`.

    A round offers gamma tokens, fewer before a position without a proposal and before the limit.
    """
    m, size = np.asarray(along.m), len(along.m)
    starts = np.zeros(size + gamma + 2)  # chance that a round begins at each position; beyond the text, unused
    starts[0] = 1.0
    reach = 0  # proposals in a row from here on
    reaches = np.zeros(size, dtype=int)
    for position in reversed(range(size)):
        reach = reach + 1 if along.proposed[position] else 0
        reaches[position] = reach
    offered: defaultdict[int, float] = defaultdict(float)
    for position in range(size):
        ahead = m[position : position + gamma]
        passed = np.concatenate(([1.0], np.cumprod(ahead)))  # chance that the first k are accepted
        passed[:-1] -= passed[1:]  # that exactly k are
        starts[position + 1 : position + 1 + len(passed)] += starts[position] * passed
        # The end of the text is no limit: a round may offer tokens beyond an end token.
        known = int(reaches[position]) if position + reaches[position] < size else gamma
        if starts[position] > 0:
            offered[max(0, min(gamma, max_new_tokens - position - 1, known))] += float(starts[position])
    return Walk(dict(offered), None)


def expected_rounds(
    drafter: Drafter, target: Target, structure: Structure, text: Sequence[int], request: Request
) -> float | None:
    """Return the rounds that writing `text` is expected to take, by the drafter's own form of replay; None where it has
    none.

    Args:
        request: see `agreement`.
    """
    replay = drafter.capabilities.replay
    if replay == "position" and structure.branches == 1:
        return float(replay_rounds(agreement(drafter, target, structure, text, request).m, structure.gamma))
    if replay is not None and target.sampling.greedy:
        # On any clock: the times are not used here.
        return rounds_along(drafter, structure, tuple(text), request, CpuClock()).rounds
    return None
