"""One measured session: every prompt by every method, interleaved, in one process on one model.

Writes each finished prompt to disk before the next begins. Knows no method by name and no statistics.
"""

import random
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import pyarrow as pa
import torch

from specdec.analysis.busy_machine import undisturbed
from specdec.analysis.findings.run_metrics import SAMPLED
from specdec.batching.batch_parts import BatchTarget
from specdec.clock import Clock, SimulatedClock
from specdec.drafters import Drafter
from specdec.errors import NumericsError
from specdec.folder.results import DonePrompt, Kept, ResultsFolder
from specdec.folder.rounds_table import GenerationKey, disturbed_rounds, generation_line, round_table
from specdec.folder.session_files import Collected
from specdec.peers import Peer
from specdec.prompts import Prompt
from specdec.prompts.base.contract import turn_id
from specdec.records import Generation, Request
from specdec.replay.walk import TextReading
from specdec.session.arm import Arm, Forced
from specdec.session.parts import SAMPLED_EVERY, Parts
from specdec.session.recorded_walk import decode_by_walking
from specdec.session.rescoring import answers, expert_reads, explain, log_likelihood
from specdec.session.tracing import trace
from specdec.targets import Target
from specdec.targets.causal import Causal
from specdec.timing.calls import Calibration

Answers = dict[str, tuple[int, ...]]
"""The baseline's first output by the id of a turn, which the next turn continues for every method and repeat alike."""


@dataclass(frozen=True)
class Conversation:
    """A prompt with its later turns, in one repeat: what one process decodes."""

    repeat: int
    number: int  # of the prompt among all, from 0
    prompt: Prompt
    place: int  # of its first turn in the order of the run; later turns follow

    @property
    def turns(self) -> list[str]:
        """The ids of all turns."""
        later = range(2, 2 + len(self.prompt.follow_ups))
        return [self.prompt.id, *(turn_id(self.prompt.id, number) for number in later)]


def conversations(prompts: Sequence[Prompt], repeats: int, seed: int | None = None) -> list[Conversation]:
    """Return all that a run decodes, in its order: that of a `seed` where prompts may be left out, else their own."""
    found: list[Conversation] = []
    place, numbered = 0, list(enumerate(prompts))
    if seed is not None:
        random.Random(f"{seed}/order").shuffle(numbered)
    for repeat in range(repeats):
        for number, prompt in numbered:
            found.append(Conversation(repeat, number, prompt, place))
            place += 1 + len(prompt.follow_ups)
    return found


class Session:
    """Decodes prompts by every arm and keeps what the analysis needs besides rounds and generations."""

    group = 1  # the number of prompts that `decode_ahead` is given at a time

    def __init__(
        self, parts: Parts, cell: str, results: ResultsFolder, clock: Clock, peers: Sequence[Peer] = ()
    ) -> None:
        self.parts, self.cell = parts, cell  # the cell, for the tables, makes two runs the same measurement
        self._results, self.clock, self._peers = results, clock, list(peers)
        self._target, self._measurement, self._seed = parts.target, parts.plan.measurement, parts.plan.seed
        self.collected = Collected()  # of all prompts that are done
        self._prompt = Collected()  # of the prompt at hand
        self._cache: Target | BatchTarget = parts.target  # holds the key-value cache

    def warm_up(self, prompt: Prompt, tokens: int, done: Callable[[int], None] = lambda _: None) -> None:
        """Decode a little with every method of ours, untimed; peers warm up when they are tuned. `done` is called with
        the number of methods that were done since; a line at a temperature is one.
        """
        if self.parts.walks:
            return  # no time is measured, and nothing is compiled
        baseline, *others = self.parts.plain
        first = self._decode(baseline, prompt, 0, None, tokens)
        for number, arm in enumerate((*self.parts.speculative, *others)):
            self._decode(arm, prompt, 0, first.tokens, len(first.tokens))
            done(1 if number else 2)  # plain decoding alone says little of how long drafts take
        if self.parts.sampled is not None:
            self._sample(prompt, 0, random.Random(0), tokens)
            done(1)
        self.clock.synchronize()

    def decode_ahead(self, prompts: Sequence[Prompt], repeat: int, place: int) -> None:
        """Prepare for the prompts that `run_prompt` is given next; nothing to do where they are decoded one by one.
        `place` is that of the first of the group in the order of the run, which may be done already.
        """

    def calibrated(self, measure: Callable[[Target, Drafter], Calibration]) -> Calibration:
        """Return the times that `measure` finds of single calls and drafts, as decoding makes them here."""
        return measure(self._target, self.parts.primary.drafter)

    def run_prompt(self, prompt: Prompt, repeat: int, place: int) -> Generation:
        """Decode one prompt, at its place in the order of the run, by every method; return the baseline's generation,
        on which a next turn is built. A NumericsError comes after the rounds so far are on disk.
        """
        parts, dice = self.parts, random.Random(f"{self._seed}/{repeat}/{prompt.id}")
        order = self._order(dice, place)
        peers_first = dice.random() < 0.5  # neither side always meets the warmer caches
        found = self._prompt = Collected()
        done: dict[int, Generation] = {}
        reference: tuple[int, ...] | None = None
        try:
            if peers_first:
                self._run_peers(prompt, repeat, dice)
            if parts.walks:
                assert isinstance(self.clock, SimulatedClock)
                asked, traced = self._asked(order[0], prompt, repeat, None), parts.primary if self._tracing else None
                walked = decode_by_walking(order, asked, self.clock, traced)
                done = {id(arm): generation for arm, generation in zip(order, walked, strict=True)}
            for arm in () if parts.walks else order:
                done[id(arm)] = self._decode(arm, prompt, repeat, reference)
                if arm is parts.baseline:
                    reference = done[id(arm)].tokens
            if not peers_first:
                self._run_peers(prompt, repeat, dice)
            if place % SAMPLED_EVERY == 0:
                self._sample(prompt, repeat, dice)
        except NumericsError as error:
            if error.partial is not None and id(arm) not in done:  # a sampled text is in no table of rounds
                done[id(arm)] = error.partial
            self._results.append(*self._lines(prompt, repeat, done))
            raise
        lines = self._lines(prompt, repeat, done)
        baseline = done[id(parts.baseline)]
        for arm in parts.speculative:
            self._examine(prompt, arm, done[id(arm)], baseline)
        self._replay(prompt, repeat, done)
        found.cache_bytes, found.peak_mb = self._cache.cache_bytes, peak_mb(self._target.device)
        target = self._target
        if isinstance(target, Causal) and target.mixture is not None and self._measurement.batch_size == 1:
            for arm in (each.primary for each in parts.drafters):
                named = {"method": arm.method, "gamma": arm.gamma, "prompt": prompt.id, "repeat": repeat}
                found.experts += expert_reads(target, target.mixture, done[id(arm)], named)
        clock = self.clock.mark() if isinstance(self.clock, SimulatedClock) else None
        self._results.append(*lines, DonePrompt(prompt.id, repeat, place, baseline.tokens, vars(found), clock))
        self.collected.add(vars(found))
        self._remember(prompt, baseline.tokens)
        return baseline

    def _replay(self, prompt: Prompt, repeat: int, done: Mapping[int, Generation]) -> None:
        """Collect the rounds that each arm is expected to take along the baseline's text and along its own, and the
        sums of each drafter's alpha. One text after the other: what the target makes of it is kept until the next.
        """
        baseline, work = done[id(self.parts.baseline)].tokens, {"prompt": prompt.id, "repeat": repeat}
        reading, first = TextReading(self._target), [id(each.arms[0]) for each in self.parts.drafters]
        for kind, arm in product(("baseline", "own"), self.parts.speculative):
            text = done[id(arm)].tokens if kind == "own" else baseline
            rounds: float | None = len(done[id(arm)].rounds)  # of a walk along recorded text, which every method writes
            if not self.parts.walks:
                rounds = arm.replayed_rounds(self._asked(arm, prompt, repeat, baseline), text, reading)
            if rounds is not None:
                line = {"method": arm.method, "gamma": arm.gamma, "kind": kind, **work}
                self._prompt.replays.append({**line, "tokens": len(text), "rounds": float(rounds)})
            if kind == "baseline" and id(arm) in first:
                sums = arm.alpha_sums(self._asked(arm, prompt, repeat, baseline), text, reading)
                if sums is not None:
                    self._prompt.alpha.append({"method": arm.method, **work, **sums})

    def decode_conversation(
        self, conversation: Conversation, kept: Kept, answers: Answers, advance: Callable[[bool], None]
    ) -> None:
        """Decode the turns of a prompt, but those that are kept: drafters remember them as if just decoded, and
        simulated time goes on from where they ended. To be called in the order of the run. This prompt's `answers` join
        those of earlier repeats; `advance` is called after every turn, False for a kept one.
        """
        turns = self.parts.prompts.turns(conversation.prompt, answers)
        for place, turn in enumerate(turns, conversation.place):
            done = kept.get((conversation.repeat, turn.id))
            if done is None:
                output = self.run_prompt(turn, conversation.repeat, place).tokens
            else:
                output = done.baseline
                self.collected.add(done.collected)
                if isinstance(self.clock, SimulatedClock) and done.clock is not None:
                    self.clock.reach(done.clock)
                self._remember(turn, output)
            advance(done is None)
            answers.setdefault(turn.id, output)

    def finish(self, left_out: Sequence[str] = ()) -> None:
        """Write what was collected of the prompts that are done, and the ids of those that there was no time for.
        Memory is read here, before anything that is no part of the decoding allocates.
        """
        self.collected.peak_mb = max(self.collected.peak_mb, peak_mb(self._target.device))
        del self.collected.traces[self._measurement.traced :]  # every process has traced as many
        self.collected.write(self._results, [each.name for each in self.parts.drafters], left_out)

    def _order(self, dice: random.Random, place: int) -> list[Arm]:
        """Return the arms that decode the prompt at a place of the run, in random order: all, but for the control."""
        parts = self.parts
        order = list(parts.arms)
        # From the first prompt on, as there may be no time for the last ones; in a short run once.
        controls, rest = divmod(place // self.group, parts.control_every)
        if rest or controls >= max(1, -(-parts.turns // self.group) // parts.control_every):
            order = [arm for arm in order if arm is not parts.null]
        dice.shuffle(order)
        if any(arm.drafter.capabilities.needs_reference for arm in parts.speculative):
            # The recorded text must exist before a drafter can read it.
            order.sort(key=lambda arm: arm is not parts.baseline)
        return order

    def _remember(self, prompt: Prompt, output: Sequence[int]) -> None:
        for each in self.parts.drafters:
            each.drafter.remember(prompt.tokens, output)

    def _run_peers(self, prompt: Prompt, repeat: int, dice: random.Random) -> None:
        for peer in dice.sample(self._peers, len(self._peers)):
            line = peer(prompt)
            if line is not None:
                self._prompt.peers.append({"repeat": repeat, "prompt": prompt.id, **line})

    def _sample(self, prompt: Prompt, repeat: int, dice: random.Random, limit: int | None = None) -> None:
        """Decode a prompt with sampling, plainly and with the drafter, where the run has a line at a temperature."""
        pair = self.parts.sampled
        if pair is None:
            return
        greedy = self._target.sampling
        for arm in dice.sample(pair.arms, 2):
            self._target.standardise(pair.sampling)
            try:
                generation = arm.decode(self._asked(arm, prompt, repeat, None, limit), self.clock)
            finally:
                self._target.standardise(greedy)
            self.clock.synchronize()
            key = GenerationKey(self.cell, arm.method, arm.gamma, repeat, prompt.id, prompt.category)
            line = generation_line(key, generation, self.clock, *self.parts.read(generation.tokens))
            line["temperature"] = pair.sampling.temperature
            line["accepted"] = sum(each.accepted for each in generation.rounds)
            line["rejected"] = sum(each.rejected for each in generation.rounds)
            seconds = undisturbed(round_table(key, generation, self.clock).to_pandas())["round_s"]
            line["decode_s"] = float(seconds.sum())  # of an undisturbed machine
            self._prompt.sampled.append({name: line[name] for name in SAMPLED})

    def _decode(
        self, arm: Arm, prompt: Prompt, repeat: int, reference: tuple[int, ...] | None, limit: int | None = None
    ) -> Generation:
        request = self._asked(arm, prompt, repeat, reference, limit)
        if self.parts.plan.forced and not any(arm is plain for plain in self.parts.plain):
            assert reference is not None
            arm = replace(arm, target=Forced(arm.target, reference))
        return arm.decode(request, self.clock)

    def _asked(
        self, arm: Arm, prompt: Prompt, repeat: int, reference: Sequence[int] | None, limit: int | None = None
    ) -> Request:
        return arm.request(prompt, limit or self.parts.limit, self._seed, repeat, reference)

    def _lines(
        self, prompt: Prompt, repeat: int, done: dict[int, Generation]
    ) -> tuple[list[pa.Table], list[dict[str, Any]]]:
        """Return the rounds and the generations of a prompt as its tables have them; judge the outputs."""
        self.clock.synchronize()
        rounds: list[pa.Table] = []
        lines: list[dict[str, Any]] = []
        judge = self.parts.judge
        read = cache(self.parts.read)  # outputs: mostly the same one by every method
        for arm in self.parts.arms:
            generation = done.get(id(arm))
            if generation is None:
                continue
            key = GenerationKey(self.cell, arm.method, arm.gamma, repeat, prompt.id, prompt.category)
            text, flagged = read(generation.tokens)
            rounds.append(round_table(key, generation, self.clock))
            lines.append(generation_line(key, generation, self.clock, text, flagged))
            if judge is not None:
                likelihood = log_likelihood(judge, generation.prompt, generation.tokens)
                correct = None if prompt.reference is None else answers(text, prompt.reference)
                line = {"tokens": len(generation.tokens), "log_likelihood": likelihood, "correct": correct}
                self._prompt.quality.append(vars(key) | line)
        return rounds, lines

    @property
    def _tracing(self) -> bool:
        """True as long as there are fewer traces than asked for."""
        return len(self.collected.traces) < self._measurement.traced

    def _examine(self, prompt: Prompt, arm: Arm, output: Generation, baseline: Generation) -> None:
        """Trace an output, and compare it with the baseline's where it should be the same."""
        parts = self.parts
        lossless = arm.verifier.capabilities.lossless and not parts.plan.forced
        if arm is parts.primary and self._tracing:
            tokenizer = self._target.tokenizer
            decode = None if tokenizer is None else tokenizer.decode
            busy = [False] * len(output.rounds) if parts.walks else disturbed_rounds(output.rounds, self.clock)
            header = {"drafter": arm.method, "structure": arm.structure.label, "lossless": lossless}
            self._prompt.traces.append(asdict(trace(output, decode, busy, prompt=prompt.id, **header)))
        if self._target.sampling.greedy and lossless:
            self._prompt.compared.append(arm.method)
            divergence = explain(self._target, (prompt.id, arm.gamma), baseline.prompt, baseline.tokens, output.tokens)
            if divergence is not None:
                self._prompt.divergences.append({"method": arm.method, **asdict(divergence)})


def peak_mb(device: torch.device) -> float:
    """Return the largest memory so far: the allocator's on a GPU, the process's resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
