"""Reads off the target's own text how a drafter would have fared, without decoding again."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from specdec.clock import Clock, CpuClock
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.records import Request
from specdec.replay.walk import Led, TextReading, walk
from specdec.sampling import one_hot
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.text.streams import Stream
from specdec.verifiers.base import Verifier


@dataclass(frozen=True)
class Agreement:
    """The result of drafting one token before every position of a text, or one level of a structure that branches."""

    proposed: np.ndarray  # [N] True where there was a proposal
    # [N] chance that a proposed token was accepted there (0 without a proposal): sum of min(p, q) of a chain, or what a
    # lossy rule gives; its mean over proposals is `alpha.text`.
    beta: np.ndarray
    # [N] the same given the token of the text, under speculative sampling: min(1, q/p) of a chain, 0/1 when greedy.
    m: np.ndarray


@dataclass(frozen=True)
class Starts:
    """The fate of chains that begin at each position of a text, along it."""

    reach: np.ndarray  # [N] tokens that are offered there, at most gamma
    # [N, gamma] chance that token t+k of the text is accepted in the chain that begins at t, when it is tested: min(1,
    # q/p). It is 0 from `reach` on, and beyond the text.
    m: np.ndarray

    @classmethod
    def of_positions(cls, along: Agreement, gamma: int) -> "Starts":
        """Return those of a position-wise drafter: the chance is the same wherever the chain began.

        A chain ends before a position without a proposal. The end of the text is no limit: it may offer tokens beyond.
        """
        places, silent = np.arange(len(along.m)), np.flatnonzero(~along.proposed)
        ends = np.append(silent, len(along.m) + gamma)[np.searchsorted(silent, places)]
        reach = (ends - places).clip(max=gamma)
        ahead = sliding_window_view(np.append(along.m, np.zeros(gamma)), gamma)[: len(along.m)]
        return cls(reach, np.where(np.arange(gamma) < reach[:, None], ahead, 0.0))


@dataclass(frozen=True)
class Walk:
    """The rounds that writing one text takes."""

    offered: dict[int, float]  # nodes offered -> (expected) rounds that offer so many
    # Seconds that the drafter took to draft, and to take note of what was committed; None where the rounds follow
    # without drafting them.
    draft_s: float | None
    commit_s: float | None = None
    calls: int = 0  # calls of the target that the walk took

    @property
    def rounds(self) -> float:
        return sum(self.offered.values())


@dataclass(frozen=True, eq=False)
class TextReplay:
    """A drafter that fills one structure, beside a text that is written already."""

    drafter: Drafter
    target: Target
    structure: Structure
    text: Sequence[int]  # the answer to the request
    request: Request  # its generator of drafts is in the state that decoding started with
    shared: TextReading | None = None  # of the target, between replays of one text

    @torch.inference_mode()
    def agreement(self, rule: Verifier | None = None) -> Agreement:
        """Draft one token before every position of the text; under greedy the text itself is p, otherwise the target
        scores it once.

        So `beta` of a drafter whose tokens depend on where the round began, such as heads, is that of the first token
        of a draft. It has the chances of a rule, the same at any depth; without one, those of speculative sampling.
        Under greedy all such rules are exact match.

        Raises ValueError: a structure that branches, sampled: the chance depends on which siblings were drawn; or a
        drafter whose replay is "calling": the target would have to be called at every position.
        """
        drafter, text, prompt = self.drafter, self.text, self.request.prompt
        if self.structure.branches > 1 and not self.target.sampling.greedy:
            raise ValueError("the acceptance of sampled siblings has no replay")
        if drafter.capabilities.replay == "calling":
            raise ValueError("a drafter that needs the target's calls has no agreement along a text without them")
        p = None if self.target.sampling.greedy else self._reading.laws(prompt, text)
        laws = drafter.laws(prompt, text) if self.structure.branches == 1 else None
        if laws is not None:
            of_text = torch.tensor(list(text), device=laws.device).unsqueeze(-1)
            chances = of_law = laws.gather(-1, of_text).squeeze(-1)
            if p is not None:
                chances = _beta(p, laws, rule)
                # A token of the text that p forbids to rounding would divide by 0; q forbids it too or accepts it.
                of_law = of_law.to(p.dtype) / p.gather(-1, of_text).squeeze(-1)
                of_law = of_law.nan_to_num(0.0).clamp_max(1.0)
            everywhere = np.ones(len(text), dtype=bool)
            return Agreement(everywhere, chances.double().cpu().numpy(), of_law.double().cpu().numpy())
        single, free = self.structure.resized(1), replace(self.request, max_new_tokens=len(text) + 1)
        if p is None and isinstance(drafter, Lookup):
            (possible,) = drafter.possible_rounds(prompt, text, free.max_new_tokens, [single])
            if possible is not None:
                passed = (possible.accepted > 0).astype(float)
                return Agreement(possible.offered > 0, passed, passed)
        led = Led(drafter, self._reading)
        proposed, (beta, m) = np.zeros(len(text), dtype=bool), np.zeros((2, len(text)))
        for _, position, proposal, path in led.steps(free, text, [single], every=True):
            if not proposal.tokens:
                continue
            proposed[position] = True
            token, q = text[position], led.q
            beta[position] = m[position] = float(bool(path)) if q is None else float(q[0, token])
            if p is not None:  # and the structure does not branch, so there is one guess
                guess = torch.tensor(proposal.tokens[0], device=p.device)
                law = one_hot(guess, p.shape[-1]) if q is None else q[0]
                beta[position] = float(_beta(p[position], law, rule))
                if q is not None:  # elsewhere q is 1 at the guess, so min(1, q/p) is 1 where that is the token
                    m[position] = min(1.0, float(q[0, token] / p[position, token]))
        return Agreement(proposed, beta, m)

    @torch.inference_mode()
    def starts(self) -> Starts:
        """Return the fate of chains: by the agreement of a drafter whose replay is "position", and of one whose replay
        is "start" by its `chances` or, where it has none, by drafting point masses at every position.
        """
        drafter, text, prompt = self.drafter, self.text, self.request.prompt
        size, gamma = len(text), self.structure.gamma
        if drafter.capabilities.replay == "position":
            return Starts.of_positions(self.agreement(), gamma)
        given = self._reading.states(prompt, text) if drafter.capabilities.reads_states else None
        chances = drafter.chances(prompt, text, given, gamma)
        if chances is not None:
            q, reach = chances.double().cpu().numpy(), np.full(size, gamma)
            if given is not None and len(prompt) == 1:
                reach[0] = 0  # there is no state before the second token
        else:
            possible, (reach, accepted) = None, np.zeros((2, size), dtype=int)
            if isinstance(drafter, Lookup):
                (possible,) = drafter.possible_rounds(prompt, text, self.request.max_new_tokens, [self.structure])
            if possible is not None:
                reach, accepted = possible.offered, possible.accepted
            else:
                led = Led(drafter, self._reading)
                for _, position, proposal, path in led.steps(self.request, text, [self.structure], every=True):
                    if led.q is not None:
                        raise ValueError(
                            "a drafter that draws its tokens needs `chances` to be replayed at every position"
                        )
                    reach[position], accepted[position] = len(proposal.tokens), len(path)
            q = (np.arange(gamma) < accepted[:, None]).astype(float)
        if self.target.sampling.greedy:
            return Starts(reach, q)
        p = self._reading.laws(prompt, text)
        p = p.gather(-1, torch.tensor(list(text), device=p.device).unsqueeze(-1)).squeeze(-1)
        ahead = np.append(p.double().cpu().numpy(), np.ones(gamma))  # beyond the text q is 0
        # A token of the text that p forbids to rounding would divide by 0; q forbids it too or accepts it.
        with np.errstate(divide="ignore", invalid="ignore"):
            m = np.nan_to_num(q / sliding_window_view(ahead, gamma)[:size])
        return Starts(reach, m.clip(max=1.0))

    @cached_property
    def _reading(self) -> TextReading:
        return self.shared or TextReading(self.target)

    @torch.inference_mode()
    def rounds(self, clock: Clock) -> Walk:
        """Return the rounds that greedy decoding of the text takes, drafting again from each round's start: exact for
        any structure. Where the replay is "calling", the target is called in each of these rounds, as in decoding.
        """
        led = Led(self.drafter, self._reading, clock)
        steps = led.steps(self.request, self.text, [self.structure])
        offered = Counter(len(proposal.tokens) for _, _, proposal, _ in steps)
        clock.synchronize()
        drafts, commits = ([clock.seconds(*marks) for marks in led.marks[which::2]] for which in (0, 1))
        calls = offered.total() if self.drafter.capabilities.replay == "calling" else 0
        rounds = {size: float(count) for size, count in offered.items()}
        return Walk(rounds, draft_s=sum(drafts), commit_s=sum(commits), calls=calls)

    def expected_rounds(self) -> float | None:
        """Return the rounds that writing the text is expected to take, by the drafter's own form of replay; None where
        it has none, or none without calling the target in each round.
        """
        replay, greedy = self.drafter.capabilities.replay, self.target.sampling.greedy
        if self.structure.branches == 1 and (replay == "position" or (replay == "start" and not greedy)):
            return expected_walk(self.starts(), self.request.max_new_tokens).rounds
        if replay in (None, "calling") or not greedy:
            return None
        if isinstance(self.drafter, Lookup):
            return float(len(walk(self.drafter, [self.structure], self.request, self.text)[0]))
        return self.rounds(CpuClock()).rounds  # on any clock: the times are not used here


def _beta(p: Tensor, q: Tensor, rule: Verifier | None) -> Tensor:
    """Return the chance [...] that a token drawn from q [..., V] passes under p [..., V]."""
    q = q.to(p.dtype)
    return (torch.minimum(p, q) if rule is None else rule.passed(p, q)).sum(-1)


def expected_walk(starts: Starts, max_new_tokens: int) -> Walk:
    """Return the expected rounds of chains along one given text (theory.md 4.2, with m_{t,j} in place of m_{t+j}); one
    offers `reach` tokens, fewer before the limit.
    """
    size, gamma = starts.m.shape
    exactly = np.cumprod(np.column_stack([np.ones(size), starts.m]), axis=1)  # chance that the first k are accepted
    exactly[:, :-1] -= exactly[:, 1:]  # that exactly k are
    begins = np.append(1.0, np.zeros(size + gamma))  # chance that a round begins at a position; beyond the text, unused
    for position in range(size):
        begins[position + 1 : position + gamma + 2] += begins[position] * exactly[position]
    offers = np.minimum(starts.reach, max_new_tokens - 1 - np.arange(size)).clip(0)
    rounds = np.bincount(offers, begins[:size])
    return Walk({tokens: float(rounds[tokens]) for tokens in np.flatnonzero(rounds).tolist()}, None)


def lengths_ahead(
    drafter: Drafter, target: Target, chains: Sequence[Structure], stream: Stream
) -> dict[int, tuple[int, ...]]:
    """Return by gamma, for every token of a greedy text, the most tokens that a round which starts there commits, the
    target's own included: such a round accepts min(length - 1, gamma) (theory.md 4.7).

    The end of the text is no limit of a draft: what lies beyond it is not accepted. Drafters that look tokens up may
    draft other tokens where they draft more; of all others the deepest chain tells those of the shorter ones.
    UsageError for a drafter whose rounds depend on earlier ones, so that a position has no length of its own.
    """
    deepest = max(chains, key=lambda chain: chain.gamma)
    request = Request(stream.prompt, len(stream.generated) + deepest.gamma + 1)
    if isinstance(drafter, Lookup):
        possible = drafter.possible_rounds(stream.prompt, stream.generated, request.max_new_tokens, chains)
        pairs = zip(chains, possible, strict=True)
        accepted = {chain.gamma: rounds.accepted for chain, rounds in pairs if rounds is not None}
        if len(accepted) == len(chains):
            return {gamma: tuple((lengths + 1).tolist()) for gamma, lengths in accepted.items()}
    if drafter.capabilities.replay not in ("position", "start"):
        raise UsageError(
            "Bad value drafter: what this drafter accepts depends on the rounds before, so that it has no accepted "
            "length at each position; use one of another kind, such as ngram, small_model or grounded, or a finished "
            "run of it (study.run)."
        )
    starts = TextReplay(drafter, target, deepest, stream.generated, request).starts()
    lengths = tuple((1 + np.cumprod(starts.m > 0.5, axis=1).sum(axis=1)).tolist())
    return {chain.gamma: lengths for chain in chains}
