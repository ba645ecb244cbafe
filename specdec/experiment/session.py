"""One measured session: every prompt by every method, interleaved, in one process on one model.

Yields finished prompts; writes each to disk before the next begins. Knows no method by name and no statistics.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specdec.clock import Clock
from specdec.decode import generate
from specdec.drafters.base import Drafter
from specdec.errors import NumericsError
from specdec.experiment.divergence import Divergence, explain
from specdec.experiment.forced import Forced
from specdec.experiment.quality import answers, log_likelihood
from specdec.experiment.repetition import repeated_share
from specdec.experiment.results import Cell, ResultsFolder, generation_row, round_rows
from specdec.prompts import Prompt
from specdec.records import Generation, Request
from specdec.replay.expected_rounds import Agreement, agreement, expected_rounds
from specdec.sampling import generator_for
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.verifiers.base.contract import Verifier


@dataclass(frozen=True)
class Arm:
    """One method of the comparison: a drafter filling one structure under one acceptance rule.

    Attributes:
        target: None is the session's; another one is plain decoding that outputs are not compared with.
    """

    method: str
    gamma: int
    drafter: Drafter
    structure: Structure
    verifier: Verifier
    target: Target | None = None


@dataclass
class Replayed:
    """What replays gave, one row per (prompt, repeat).

    Attributes:
        own: per gamma, along the arm's own texts: prompt, repeat, tokens, rounds (for the account).
        baseline: per gamma, along the baseline's texts (for the curve, which needs no speculation).
        alpha: prompt, repeat, numerator and denominator of `alpha.text` (sum of beta, positions with a proposal).
    """

    own: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    baseline: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    alpha: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Outcome:
    """What a session leaves in memory besides the tables on disk.

    Attributes:
        cache_bytes: of the target's largest key-value cache.
        quality: where outputs are judged, a row for each: which generation, tokens, log_likelihood under the original
            target's law at temperature 1 (nats, of the whole output), correct (None without a reference answer).
    """

    replayed: Replayed = field(default_factory=Replayed)
    divergences: list[Divergence] = field(default_factory=list)
    compared: int = 0
    identical: int = 0
    cache_bytes: int = 0
    quality: list[dict[str, Any]] = field(default_factory=list)
    traced: list[tuple[Prompt, Arm, Generation]] = field(default_factory=list)


class Session:
    """Decodes a prompt set. `forced` commits the recorded baseline (see `targets.forced`)."""

    def __init__(
        self,
        *,
        cell: str,
        target: Target,
        baseline: Arm,
        arms: Sequence[Arm],
        clock: Clock,
        results: ResultsFolder,
        seed: int,
        max_new_tokens: int,
        repetition: tuple[int, float],
        forced: bool,
        trace: tuple[int, int],
        peers: Sequence[Callable[[Prompt], Mapping[str, Any] | None]] = (),
        judge: Target | None = None,
        original: Arm | None = None,
    ) -> None:
        """
        Args:
            repetition: longest period in tokens, and the share of an output from which it is flagged.
            trace: the gamma to trace, and how many generations of it.
            peers: other engines, called once per prompt and repeat between our own methods; None is a failure.
            original: plain decoding by the model that the target was before it was trained, if that is to be timed.
            judge: the target under whose law outputs are judged; None where they are the target's own by the rules.
        """
        self._cell, self._target, self._clock, self._results = cell, target, clock, results
        self._baseline, self._arms = baseline, list(arms)
        self._plain = [baseline] if original is None else [baseline, original]
        self._seed, self._limit = seed, max_new_tokens
        self._repetition, self._forced, self._trace = repetition, forced, trace
        self._peers, self._judge = list(peers), judge
        self.peer_rows: list[dict[str, Any]] = []
        self.outcome = Outcome()

    def warm_up(self, prompt: Prompt, tokens: int) -> None:
        """Decode a little with every method of ours, untimed; peers warm up when they are tuned."""
        first = self._decode(self._baseline, prompt, 0, None, limit=tokens)
        for arm in (*self._plain[1:], *self._arms):
            self._decode(arm, prompt, 0, first.tokens, limit=len(first.tokens))
        self._clock.synchronize()

    def run_prompt(self, prompt: Prompt, repeat: int) -> Generation:
        """Every method on one prompt; returns the baseline's generation, on which a next turn is built.

        Raises:
            NumericsError: after the rounds so far are on disk.
        """
        order = [*self._plain, *self._arms]
        dice = random.Random(f"{self._seed}/{repeat}/{prompt.id}")
        dice.shuffle(order)
        peers_first = dice.random() < 0.5  # neither side always meets the warmer caches
        if any(arm.drafter.capabilities.needs_reference for arm in self._arms):
            # The recorded text must exist before a drafter can read it.
            order.sort(key=lambda arm: arm is not self._baseline)
        done: dict[int, Generation] = {}
        reference: tuple[int, ...] | None = None
        try:
            if peers_first:
                self._run_peers(prompt, repeat, dice)
            for arm in order:
                done[id(arm)] = self._decode(arm, prompt, repeat, reference)
                if arm is self._baseline:
                    reference = done[id(arm)].tokens
            if not peers_first:
                self._run_peers(prompt, repeat, dice)
        except NumericsError as error:
            if error.partial is not None:
                done[id(arm)] = error.partial
            self._write(prompt, repeat, done)
            raise
        self._write(prompt, repeat, done)
        self.outcome.cache_bytes = max(self.outcome.cache_bytes, self._target.cache_bytes)
        baseline = done[id(self._baseline)]
        for arm in self._arms:
            self._compare(prompt, repeat, arm, done[id(arm)], baseline)
        self._replay_baseline(prompt, repeat, baseline)
        return baseline

    def _run_peers(self, prompt: Prompt, repeat: int, dice: random.Random) -> None:
        for peer in dice.sample(self._peers, len(self._peers)):
            row = peer(prompt)
            if row is not None:
                self.peer_rows.append({"repeat": repeat, "prompt": prompt.id, **row})

    def _decode(
        self, arm: Arm, prompt: Prompt, repeat: int, reference: tuple[int, ...] | None, limit: int | None = None
    ) -> Generation:
        target = arm.target or self._target
        if self._forced and not any(arm is plain for plain in self._plain):
            assert reference is not None
            target = Forced(target, reference)
        return generate(
            target=target,
            drafter=arm.drafter,
            verifier=arm.verifier,
            structure=arm.structure,
            request=Request(
                prompt.tokens,
                self._target.limit(prompt.tokens, limit or self._limit),
                draft_generator=self._draft_generator(prompt, repeat),
                accept_generator=generator_for(
                    self._seed, prompt.id, f"accept/{arm.method}/{arm.gamma}/{repeat}", self._target.device
                ),
                reference=reference,
            ),
            clock=self._clock,
        )

    def _draft_generator(self, prompt: Prompt, repeat: int) -> torch.Generator:
        # The same at every gamma, so that an oracle's coins belong to positions and curves share their noise.
        return generator_for(self._seed, prompt.id, f"draft/{repeat}")

    def _write(self, prompt: Prompt, repeat: int, done: dict[int, Generation]) -> None:
        self._clock.synchronize()
        rounds: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        period, share = self._repetition
        for arm in (*self._plain, *self._arms):
            generation = done.get(id(arm))
            if generation is None:
                continue
            cell = Cell(self._cell, arm.method, arm.gamma, repeat, prompt.id, prompt.category)
            rounds += round_rows(cell, generation, self._clock)
            flagged = repeated_share(generation.tokens, period) >= share
            lines.append(generation_row(cell, generation, self._clock, self._text(generation), flagged))
            if self._judge is not None:
                self.outcome.quality.append(self._judged(self._judge, cell, prompt, generation))
        self._results.append(rounds, lines)

    def _judged(self, judge: Target, cell: Cell, prompt: Prompt, generation: Generation) -> dict[str, Any]:
        right = None if prompt.reference is None else answers(self._text(generation), prompt.reference)
        return {
            **vars(cell),
            "tokens": len(generation.tokens),
            "log_likelihood": log_likelihood(judge, generation.prompt, generation.tokens),
            "correct": right,
        }

    def _text(self, generation: Generation) -> str:
        tokenizer = self._target.tokenizer
        return "" if tokenizer is None else tokenizer.decode(generation.tokens)

    def _compare(self, prompt: Prompt, repeat: int, arm: Arm, output: Generation, baseline: Generation) -> None:
        """Losslessness of a greedy run, the trace, and the replay along the arm's own text."""
        gamma, count = self._trace
        if arm.gamma == gamma and len(self.outcome.traced) < count:
            self.outcome.traced.append((prompt, arm, output))
        if self._target.sampling.greedy and not self._forced and arm.verifier.capabilities.lossless:
            self.outcome.compared += 1
            divergence = explain(self._target, (prompt.id, arm.gamma), baseline.prompt, baseline.tokens, output.tokens)
            if divergence is None:
                self.outcome.identical += 1
            else:
                self.outcome.divergences.append(divergence)
        self._replay(self.outcome.replayed.own, arm, prompt, repeat, output.tokens, baseline.tokens)

    def _replay_baseline(self, prompt: Prompt, repeat: int, baseline: Generation) -> None:
        for arm in self._arms:
            self._replay(self.outcome.replayed.baseline, arm, prompt, repeat, baseline.tokens, baseline.tokens)
        if not (self._arms[0].verifier.capabilities.lossless and self._has_replay(self._arms[0])):
            return  # a lossy rule accepts more than sum min(p, q): its alpha is the measured one
        along = self._agreement(self._arms[0], prompt, repeat, baseline.tokens, baseline.tokens)
        self.outcome.replayed.alpha.append(
            {
                "prompt": prompt.id,
                "repeat": repeat,
                "numerator": sum(along.beta),
                "denominator": sum(along.proposed),
            }
        )

    def _has_replay(self, arm: Arm) -> bool:
        """Whether what a round accepts follows from the text: under greedy, where all lossless rules are one; with a
        temperature for chains that are tested token by token.
        """
        return (self._target.sampling.greedy and arm.verifier.capabilities.lossless) or (
            arm.verifier.capabilities.token_by_token and arm.structure.branches == 1
        )

    def _agreement(
        self, arm: Arm, prompt: Prompt, repeat: int, text: Sequence[int], reference: Sequence[int]
    ) -> Agreement:
        generator = self._draft_generator(prompt, repeat)
        return agreement(arm.drafter, self._target, arm.structure, prompt.tokens, text, generator, reference)

    def _replay(
        self,
        table: dict[int, list[dict[str, Any]]],
        arm: Arm,
        prompt: Prompt,
        repeat: int,
        text: Sequence[int],
        reference: Sequence[int],
    ) -> None:
        if arm.drafter.capabilities.replay is None or not self._has_replay(arm):
            return
        along = None
        if arm.drafter.capabilities.replay == "position" and arm.structure.branches == 1:
            along = self._agreement(arm, prompt, repeat, text, reference)
        rounds = expected_rounds(
            arm.drafter,
            self._target,
            arm.structure,
            prompt.tokens,
            text,
            self._target.limit(prompt.tokens, self._limit),
            self._draft_generator(prompt, repeat),
            reference,
            along,
        )
        if rounds is not None:
            row = {"prompt": prompt.id, "repeat": repeat, "tokens": len(text), "rounds": rounds}
            table.setdefault(arm.gamma, []).append(row)
