"""One measured session: every prompt by every method, interleaved, in one process on one model.

Writes each finished prompt to disk before the next begins. Knows no method by name and no statistics.
"""

import random
import resource
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import torch

from specdec.analysis.pages.trace import Trace
from specdec.analysis.read.facts import SessionFacts
from specdec.analysis.runs.quality import OUTPUTS
from specdec.clock import Clock, SimulatedClock
from specdec.config import RunConfig
from specdec.errors import NumericsError
from specdec.experiment.arm import Arm
from specdec.experiment.divergence import Divergence, explain
from specdec.experiment.forced import Forced
from specdec.experiment.judging import judged, repeated_share
from specdec.experiment.parts import Parts
from specdec.experiment.replays import Replays
from specdec.experiment.results import GenerationKey, ResultsFolder, generation_line, round_table
from specdec.experiment.tracing import trace
from specdec.experiment.walking import decode_by_walking
from specdec.prompts import Prompt
from specdec.records import Generation, Request
from specdec.sampling import generator_for
from specdec.timing.calls import Calibration, calibrate
from specdec.timing.timer import Timer

Peer = Callable[[Prompt], Mapping[str, Any] | None]
"""Another engine, called once per prompt and repeat between our own methods; None is a failure."""


class Session:
    """Decodes prompts by every arm and keeps what the analysis needs besides rounds and generations."""

    def __init__(
        self,
        config: RunConfig,
        parts: Parts,
        cell: str,
        results: ResultsFolder,
        clock: Clock,
        peers: Sequence[Peer] = (),
    ) -> None:
        """
        Args:
            cell: what makes two runs the same measurement, for the tables.
        """
        self._config, self._parts, self._cell = config, parts, cell
        self._results, self._clock, self._peers = results, clock, list(peers)
        self._target = parts.target
        self._replays = Replays(parts.target)
        self._divergences: list[tuple[str, Divergence]] = []  # by the method whose output parted
        self._traces: list[Trace] = []
        self._quality: list[dict[str, Any]] = []
        self._compared: Counter[str] = Counter()  # outputs by method
        self._cache_bytes = 0
        self.peer_lines: list[dict[str, Any]] = []

    def warm_up(self, prompt: Prompt, tokens: int) -> None:
        """Decode a little with every method of ours, untimed; peers warm up when they are tuned."""
        if self._parts.walks:
            return  # no time is measured, and nothing is compiled
        baseline, *others = self._parts.plain
        first = self._decode(baseline, prompt, 0, None, tokens)
        for arm in (*others, *self._parts.speculative):
            self._decode(arm, prompt, 0, first.tokens, len(first.tokens))
        self._clock.synchronize()

    @property
    def group(self) -> int:
        """The number of prompts that `decode_ahead` is given at a time."""
        return 1

    def decode_ahead(self, prompts: Sequence[Prompt], repeat: int) -> None:
        """Prepare for the prompts that `run_prompt` is given next; nothing to do where they are decoded one by one."""

    def calibrate(self, arm: Arm, prompt: Prompt, timer: Timer) -> Calibration:
        """Time single calls and drafts on a prompt's context."""
        trees = [each.structure.tree for each in self._parts.arms]
        return calibrate(self._target, arm.drafter, arm.structure, prompt.tokens, trees, timer)

    def run_prompt(self, prompt: Prompt, repeat: int) -> Generation:
        """Decode one prompt by every method; return the baseline's generation, on which a next turn is built.

        Raises:
            NumericsError: after the rounds so far are on disk.
        """
        parts = self._parts
        dice = random.Random(f"{self._config.seed}/{repeat}/{prompt.id}")
        order = self._order(dice)
        peers_first = dice.random() < 0.5  # neither side always meets the warmer caches
        done: dict[int, Generation] = {}
        reference: tuple[int, ...] | None = None
        try:
            if peers_first:
                self._run_peers(prompt, repeat, dice)
            if parts.walks:
                done = self._walk(order, prompt, repeat)
            for arm in () if parts.walks else order:
                done[id(arm)] = self._decode(arm, prompt, repeat, reference)
                if arm is parts.baseline:
                    reference = done[id(arm)].tokens
            if not peers_first:
                self._run_peers(prompt, repeat, dice)
        except NumericsError as error:
            if error.partial is not None:
                done[id(arm)] = error.partial
            self._write(prompt, repeat, done)
            raise
        self._write(prompt, repeat, done)
        self._cache_bytes = max(self._cache_bytes, self._held_bytes)
        baseline = done[id(parts.baseline)]
        for arm in parts.speculative:
            self._examine(prompt, repeat, arm, done[id(arm)], baseline)
        self._replay_baseline(prompt, repeat, baseline)
        self._remember(prompt, baseline.tokens)
        return baseline

    def _order(self, dice: random.Random) -> list[Arm]:
        """Return all arms in random order."""
        parts = self._parts
        order = [*parts.plain, *parts.speculative]
        dice.shuffle(order)
        if any(arm.drafter.capabilities.needs_reference for arm in parts.speculative):
            # The recorded text must exist before a drafter can read it.
            order.sort(key=lambda arm: arm is not parts.baseline)
        return order

    def _remember(self, prompt: Prompt, output: Sequence[int]) -> None:
        for each in self._parts.drafters:
            each.drafter.remember(prompt.tokens, output)

    @property
    def _held_bytes(self) -> int:
        """Size of the key-value cache that the target holds at present."""
        return self._target.cache_bytes

    def finish(self) -> None:
        """Write what was collected. Memory is read here, before anything that is no part of the decoding allocates."""
        chosen, *others = (each.name for each in self._parts.drafters)
        facts = SessionFacts(
            drafter=chosen,
            **self._counts(chosen),
            cache_bytes=self._cache_bytes,
            peak_mb=peak_mb(self._target.device),
            beside={name: self._counts(name) for name in others},
        )
        self._results.write_json("session.json", asdict(facts))
        self._results.write_json("traces.json", [asdict(item) for item in self._traces])
        self._replays.write(self._results)
        if self._quality:
            self._results.write_table("quality", self._quality, OUTPUTS)
        if self._divergences:
            lines = [{"method": method, **vars(item)} for method, item in self._divergences]
            self._results.write_json("divergences.json", lines)

    def _counts(self, method: str) -> dict[str, int]:
        """Return how the outputs of one drafter compare with the baseline's, as `SessionFacts` names it."""
        parted = [item for name, item in self._divergences if name == method]
        compared = self._compared[method]
        return {
            "compared": compared,
            "identical": compared - len(parted),
            "unexplained": sum(not item.explained for item in parted),
        }

    def _run_peers(self, prompt: Prompt, repeat: int, dice: random.Random) -> None:
        for peer in dice.sample(self._peers, len(self._peers)):
            line = peer(prompt)
            if line is not None:
                self.peer_lines.append({"repeat": repeat, "prompt": prompt.id, **line})

    def _decode(
        self, arm: Arm, prompt: Prompt, repeat: int, reference: tuple[int, ...] | None, limit: int | None = None
    ) -> Generation:
        plain = any(arm is other for other in self._parts.plain)
        if self._parts.forced and not plain:
            assert reference is not None
            arm = replace(arm, target=Forced(arm.target, reference))
        return arm.decode(self._asked(arm, prompt, repeat, reference, limit), self._clock)

    def _asked(
        self, arm: Arm, prompt: Prompt, repeat: int, reference: Sequence[int] | None, limit: int | None = None
    ) -> Request:
        """Return what an arm is asked to decode, with generators that are new at each call."""
        purpose = f"accept/{arm.method}/{arm.gamma}/{repeat}"
        accept_generator = generator_for(self._config.seed, prompt.id, purpose, self._target.device)
        return replace(self._request(prompt, repeat, reference, limit), accept_generator=accept_generator)

    def _walk(self, order: Sequence[Arm], prompt: Prompt, repeat: int) -> dict[int, Generation]:
        """Decode by every arm at once, where they walk along recorded text."""
        assert isinstance(self._clock, SimulatedClock)
        keep = self._parts.primary if self._tracing else None
        written = decode_by_walking(order, self._request(prompt, repeat, None), self._clock, keep)
        return {id(arm): generation for arm, generation in zip(order, written, strict=True)}

    def _request(
        self, prompt: Prompt, repeat: int, reference: Sequence[int] | None, limit: int | None = None
    ) -> Request:
        # Drafts draw the same numbers at every gamma, so that an oracle's coins belong to positions and curves share
        # their noise.
        return Request(
            prompt.tokens,
            self._target.limit(prompt.tokens, limit or self._config.measurement.limit),
            draft_generator=generator_for(self._config.seed, prompt.id, f"draft/{repeat}"),
            reference=reference,
        )

    def _write(self, prompt: Prompt, repeat: int, done: dict[int, Generation]) -> None:
        self._clock.synchronize()
        rounds: list[pa.Table] = []
        lines: list[dict[str, Any]] = []
        judge = self._parts.judge
        read: dict[tuple[int, ...], tuple[str, bool]] = {}  # outputs: mostly the same one by every method
        for arm in (*self._parts.plain, *self._parts.speculative):
            generation = done.get(id(arm))
            if generation is None:
                continue
            key = GenerationKey(self._cell, arm.method, arm.gamma, repeat, prompt.id, prompt.category)
            if generation.tokens not in read:
                read[generation.tokens] = self._read(generation.tokens)
            text, flagged = read[generation.tokens]
            rounds.append(round_table(key, generation, self._clock))
            lines.append(generation_line(key, generation, self._clock, text, flagged))
            if judge is not None:
                self._quality.append({**vars(key), **judged(judge, generation, text, prompt.reference)})
        self._results.append(rounds, lines)

    def _read(self, tokens: tuple[int, ...]) -> tuple[str, bool]:
        """Return an output in words, and True if it fell into repetition."""
        tokenizer, measurement = self._target.tokenizer, self._config.measurement
        flagged = repeated_share(tokens, measurement.repetition_period) >= measurement.repetition_share
        return "" if tokenizer is None else tokenizer.decode(tokens), flagged

    @property
    def _tracing(self) -> bool:
        """True as long as there are fewer traces than asked for."""
        return len(self._traces) < self._config.measurement.traced

    def _examine(self, prompt: Prompt, repeat: int, arm: Arm, output: Generation, baseline: Generation) -> None:
        """Trace an output, compare it with the baseline's where it should be the same, and replay along it."""
        parts = self._parts
        lossless = arm.verifier.capabilities.lossless and not parts.forced
        if arm is parts.primary and self._tracing:
            tokenizer = self._target.tokenizer
            decode = None if tokenizer is None else tokenizer.decode
            about = {"prompt": prompt.id, "drafter": arm.method, "structure": arm.structure.label}
            self._traces.append(trace(output, decode, **about, lossless=lossless))
        if self._target.sampling.greedy and lossless:
            self._compared[arm.method] += 1
            divergence = explain(self._target, (prompt.id, arm.gamma), baseline.prompt, baseline.tokens, output.tokens)
            if divergence is not None:
                self._divergences.append((arm.method, divergence))
        work = {"prompt": prompt.id, "repeat": repeat}
        if parts.walks:
            self._replays.walked(arm, output, work)
            return
        self._replays.rounds("own", arm, self._request(prompt, repeat, baseline.tokens), output.tokens, work)

    def _replay_baseline(self, prompt: Prompt, repeat: int, baseline: Generation) -> None:
        work = {"prompt": prompt.id, "repeat": repeat}
        for arm in () if self._parts.walks else self._parts.speculative:
            self._replays.rounds("baseline", arm, self._request(prompt, repeat, baseline.tokens), baseline.tokens, work)
        request = self._request(prompt, repeat, baseline.tokens)
        for each in self._parts.drafters:
            self._replays.alpha(each.arms[0], request, baseline.tokens, work)


def peak_mb(device: torch.device) -> float:
    """Return the largest memory so far: the allocator's on a GPU, the process's resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
