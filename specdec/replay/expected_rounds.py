"""Reads off the target's own text how a drafter would have fared, without decoding again."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from specdec.clock import Clock, CpuClock
from specdec.drafters.base import Drafter
from specdec.records import Request, Tree
from specdec.replay.answers import Led, TextStates
from specdec.sampling import one_hot, probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.theory.dependence import replay_rounds, replay_rounds_by_start
from specdec.verifiers.base import Verifier


@dataclass(frozen=True)
class Agreement:
    """The result of drafting one token before every position of a text, or one level of a structure that branches.

    Attributes:
        proposed: [N] True where there was a proposal.
        beta: [N] chance that a proposed token was accepted there (0 without a proposal): sum of min(p, q) of a chain,
            or what a lossy rule gives; its mean over proposals is `alpha.text`.
        m: [N] chance of acceptance given the token of the text under speculative sampling: min(1, q/p) of a chain, 0/1
            when greedy.
    """

    proposed: tuple[bool, ...]
    beta: tuple[float, ...]
    m: tuple[float, ...]


@torch.inference_mode()
def agreement(
    drafter: Drafter,
    target: Target,
    structure: Structure,
    text: Sequence[int],
    request: Request,
    states: TextStates | None = None,
    rule: Verifier | None = None,
) -> Agreement:
    """Draft one token before every position of a text; under greedy the text itself is p, otherwise the target scores
    it once.

    So `beta` of a drafter whose tokens depend on where the round began, such as heads, is that of the first token of a
    draft.

    Args:
        text: what answers the request; its generator of drafts is in the state that decoding started with.
        states: of the target, shared between replays of one text.
        rule: the rule whose chances `beta` has, the same at any depth; None for speculative sampling. Under greedy all
            such rules are exact match.
    Raises:
        ValueError: a structure that branches, sampled: the chance depends on which siblings were drawn; or a drafter
            whose replay is "calling": the target would have to be called at every position.
    """
    if structure.branches > 1 and not target.sampling.greedy:
        raise ValueError("the acceptance of sampled siblings has no replay")
    if drafter.capabilities.replay == "calling":
        raise ValueError("a drafter that needs the target's calls has no agreement along a text without them")
    prompt = request.prompt
    p = None if target.sampling.greedy else _laws_of_target(target, prompt, text)
    laws = drafter.laws(prompt, text) if structure.branches == 1 else None
    if laws is not None:
        return _agreement_of_laws(p, laws, torch.tensor(list(text), device=laws.device), rule)
    led = Led(drafter, target, states)
    led.start(request, text, structure)
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
                point = one_hot(draft.tokens[0], p.shape[-1])
                beta.append(float(p[index, guesses[0]] if rule is None else _beta(p[index], point, rule)))
                m.append(float(token in guesses))  # q is 1 there, so min(1, q/p) is 1
            else:
                beta.append(float(_beta(p[index], draft.q[0], rule)))
                m.append(min(1.0, float(draft.q[0, token] / p[index, token])))
        led.step(token)
    return Agreement(tuple(proposed), tuple(beta), tuple(m))


def _laws_of_target(target: Target, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
    """Return p [N, V] before every token of the text."""
    return probabilities(target.score(prompt, text)[:-1], target.sampling)


def _beta(p: Tensor, q: Tensor, rule: Verifier | None) -> Tensor:
    """Return the chance [...] that a token drawn from q [..., V] passes under p [..., V]."""
    q = q.to(p.dtype)
    return (torch.minimum(p, q) if rule is None else rule.passed(p, q)).sum(-1)


def _agreement_of_laws(p: Tensor | None, q: Tensor, text: Tensor, rule: Verifier | None) -> Agreement:
    """Return the agreement of a drafter that gives its law at every position; without p the text is the target's greedy
    choice.
    """
    of_text = text.unsqueeze(-1)
    q_text = q.gather(-1, of_text).squeeze(-1)
    if p is None:
        beta = m = q_text
    else:
        beta = _beta(p, q, rule)
        # A token of the text that p forbids to rounding would divide by 0; q forbids it too or accepts it.
        m = (q_text.to(p.dtype) / p.gather(-1, of_text).squeeze(-1)).nan_to_num(0.0).clamp_max(1.0)
    return Agreement((True,) * len(text), tuple(beta.tolist()), tuple(m.tolist()))


@dataclass(frozen=True)
class Starts:
    """The fate of chains that begin at each position of a text, along it.

    Attributes:
        reach: [N] tokens that are offered there, at most gamma.
        m: [N, gamma] chance that token t+k of the text is accepted in the chain that begins at t, when it is tested:
            min(1, q/p). It is 0 from `reach` on, and beyond the text.
    """

    reach: np.ndarray
    m: np.ndarray

    @classmethod
    def of_positions(cls, along: Agreement, gamma: int) -> "Starts":
        """Return those of a position-wise drafter: the chance is the same wherever the chain began.

        A chain ends before a position without a proposal. The end of the text is no limit: it may offer tokens beyond.
        """
        size, ahead = len(along.m), 0
        reach, m = np.zeros(size, dtype=int), np.zeros((size, gamma))
        for position in reversed(range(size)):
            ahead = ahead + 1 if along.proposed[position] else 0
            reach[position] = ahead if position + ahead < size else gamma
            known = along.m[position : position + min(gamma, ahead)]
            m[position, : len(known)] = known
        return cls(reach.clip(max=gamma), m)


@torch.inference_mode()
def starts_along(
    drafter: Drafter,
    target: Target,
    structure: Structure,
    text: Sequence[int],
    request: Request,
    states: TextStates | None = None,
) -> Starts:
    """Return the fate of the chains of a drafter whose replay is "start", by its `chances` or, where it has none, by
    drafting point masses at every position.

    Args:
        text, request, states: see `agreement`.
    """
    size, gamma, prompt = len(text), structure.gamma, request.prompt
    given = None
    if drafter.capabilities.reads_states:
        given = (states or TextStates(target)).of(prompt, text)
    chances = drafter.chances(prompt, text, given, gamma)
    if chances is not None:
        q = chances.double().cpu().numpy()
        reach = np.full(size, gamma)
        if given is not None and not len(prompt) - 1:
            reach[0] = 0  # there is no state before the second token
    else:
        reach, q = np.zeros(size, dtype=int), np.zeros((size, gamma))
        led = Led(drafter, target, states)
        led.start(request, text, structure)
        for position, token in enumerate(text):
            draft = drafter.draft(structure.clamped(request.max_new_tokens - position - 1))
            if draft.q is not None:
                raise ValueError("a drafter that draws its tokens needs `chances` to be replayed from every position")
            reach[position] = len(draft)
            q[position, : len(_agreed(draft.tree, draft.tokens.tolist(), text[position:]))] = 1.0
            led.step(token)
    if target.sampling.greedy:
        return Starts(reach, q)
    of_text = torch.tensor(list(text), device=target.device).unsqueeze(-1)
    p = _laws_of_target(target, prompt, text).gather(-1, of_text).squeeze(-1).double().cpu().numpy()
    ahead = np.append(p, np.ones(gamma))  # beyond the text q is 0
    # A token of the text that p forbids to rounding would divide by 0; q forbids it too or accepts it.
    with np.errstate(divide="ignore", invalid="ignore"):
        m = np.nan_to_num(q / sliding_window_view(ahead, gamma)[:size])
    return Starts(reach, m.clip(max=1.0))


@dataclass(frozen=True)
class Walk:
    """The rounds that writing one text takes.

    Attributes:
        offered: nodes offered -> (expected) rounds that offer so many.
        draft_s, commit_s: seconds that the drafter took to draft, and to take note of what was committed; None where
            the rounds follow without drafting them.
        calls: calls of the target that the walk took.
    """

    offered: dict[int, float]
    draft_s: float | None
    commit_s: float | None = None
    calls: int = 0

    @property
    def rounds(self) -> float:
        return sum(self.offered.values())


@torch.inference_mode()
def rounds_along(
    drafter: Drafter,
    target: Target,
    structure: Structure,
    text: Sequence[int],
    request: Request,
    clock: Clock,
    states: TextStates | None = None,
) -> Walk:
    """Return the rounds that greedy decoding of `text` takes, drafting again from each round's start: exact for any
    structure.

    Where the replay is "calling", the target is called in each of these rounds, as in decoding.

    Args:
        request, states: see `agreement`.
    """
    text = tuple(text)
    led = Led(drafter, target, states)
    led.start(request, text, structure)
    offered: defaultdict[int, float] = defaultdict(float)
    marks: list[tuple[object, ...]] = []
    position = 0
    while position < len(text):
        start = clock.mark()
        draft = drafter.draft(structure.clamped(request.max_new_tokens - position - 1))
        drafted = clock.mark()
        path = _agreed(draft.tree, draft.tokens.tolist(), text[position:])
        committed = text[position : position + len(path) + 1]
        led.answer(draft, path, committed)
        began = clock.mark()
        led.commit(draft, committed)
        marks.append((start, drafted, began, clock.mark()))
        position += len(committed)
        offered[len(draft)] += 1
    clock.synchronize()
    return Walk(
        dict(offered),
        draft_s=sum(clock.seconds(start, drafted) for start, drafted, _, _ in marks),
        commit_s=sum(clock.seconds(began, ended) for _, _, began, ended in marks),
        calls=len(marks) if drafter.capabilities.replay == "calling" else 0,
    )


def _agreed(tree: Tree, tokens: Sequence[int], text: Sequence[int]) -> list[int]:
    """Return the nodes of the draft that are the text, from the root down: siblings differ, so there is one way."""
    path: list[int] = []
    while len(path) < len(text):
        children = tree.children[path[-1] + 1 if path else 0]
        child = next((child for child in children if tokens[child] == text[len(path)]), None)
        if child is None:
            break
        path.append(child)
    return path


def expected_walk(starts: Starts, max_new_tokens: int) -> Walk:
    """Return the expected rounds of chains, and with them where rounds begin; their number is
    `replay_rounds_by_start(starts.m)`.

    A round offers `reach` tokens, fewer before the limit.
    """
    size, gamma = starts.m.shape
    begins = np.zeros(size + gamma + 2)  # chance that a round begins at each position; beyond the text, unused
    begins[0] = 1.0
    offered: defaultdict[int, float] = defaultdict(float)
    for position in range(size):
        passed = np.concatenate(([1.0], np.cumprod(starts.m[position])))  # chance that the first k are accepted
        passed[:-1] -= passed[1:]  # that exactly k are
        begins[position + 1 : position + 2 + gamma] += begins[position] * passed
        if begins[position] > 0:
            offers = max(0, min(int(starts.reach[position]), max_new_tokens - position - 1))
            offered[offers] += float(begins[position])
    return Walk(dict(offered), None)


def expected_rounds(
    drafter: Drafter,
    target: Target,
    structure: Structure,
    text: Sequence[int],
    request: Request,
    states: TextStates | None = None,
) -> float | None:
    """Return the rounds that writing `text` is expected to take, by the drafter's own form of replay; None where it has
    none, or none without calling the target in each round.

    Args:
        request, states: see `agreement`.
    """
    replay, chain, text = drafter.capabilities.replay, structure.branches == 1, tuple(text)
    if replay == "position" and chain:
        return float(replay_rounds(agreement(drafter, target, structure, text, request, states).m, structure.gamma))
    if replay in (None, "calling"):
        return None
    if target.sampling.greedy:
        # On any clock: the times are not used here.
        return rounds_along(drafter, target, structure, text, request, CpuClock(), states).rounds
    if replay == "start" and chain:
        return replay_rounds_by_start(starts_along(drafter, target, structure, text, request, states).m)
    return None
