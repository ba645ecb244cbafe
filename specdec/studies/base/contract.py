"""The contract of a study: from built parts to tables; what the tables say is `analysis`' business."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import AfterValidator, Field

from specdec.clock import Clock
from specdec.config import DrafterSettings
from specdec.drafters import Drafter, drafters
from specdec.errors import UsageError
from specdec.plan.plan import Plan
from specdec.progress import stage
from specdec.prompts import first_turn
from specdec.records import Request
from specdec.registry import Registry
from specdec.sampling import generator_for
from specdec.session.parts import Parts, prepare
from specdec.targets.replay import Replay
from specdec.text.repetition import loop_share
from specdec.text.streams import Stream, write_streams
from specdec.timing.calls import Shape, tokens_evaluated
from specdec.timing.timer import Timer

N = TypeVar("N")
Ascending = Annotated[list[N], Field(min_length=1), AfterValidator(lambda numbers: sorted(set(numbers)))]
"""One number or several in the YAML of a study, which gets them ascending, each once."""
Positive = Annotated[float, Field(gt=0.0)]


@dataclass(frozen=True)
class Bench:
    """The bench that a study works on: the parts that a run has, and where results go."""

    parts: Parts
    clock: Clock  # measured, or simulated where the target has no model
    folder: Path  # the run's output folder
    heartbeat: Callable[[], None]  # to be called now and then, so that the run is seen to be alive
    # the texts of plain decoding: those of `texts`, or of a study that decodes prompts in its own way
    written: list[Stream] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # categories of the prompts that a study's time budget left out

    @property
    def looping(self) -> float:
        """The share of the prompts with a text among `written` that falls into a loop."""
        measurement = self.plan.measurement
        loops: dict[str, bool] = {}
        for text in self.written:
            share, prompt = loop_share(text.generated, measurement.repetition_period), first_turn(text.id)
            loops[prompt] = loops.get(prompt, False) or share >= measurement.repetition_share
        return fmean(loops.values()) if loops else 0.0

    @property
    def plan(self) -> Plan:
        return self.parts.plan

    @property
    def values(self) -> DrafterSettings:
        """The plain values of drafter, structure and verifier."""
        return self.plan.chosen.values

    @property
    def simulated(self) -> bool:
        """True where times come from a cost model."""
        return self.parts.target.clock() is not None

    def unfit(self, part: str, why: str) -> UsageError:
        """Return the refusal of a part of the run, such as "drafter=none"; `why` goes on behind the study's name."""
        assert self.plan.study is not None
        return UsageError(f"Bad value {part}: study {self.plan.study['name']!r} {why}")

    def needs_model(self, why: str, key: str = "target.name") -> None:
        """Refuse, by a UsageError that says `why`, a target without a model."""
        if self.simulated:
            raise self.unfit(f"{key}=replay", why)

    def needs_halves(self, why: str, calls: str) -> None:
        """Refuse a target that evaluates in rows, and a single prompt, by a UsageError that says what the study does
        with `calls`, and with halves.
        """
        evaluation = self.parts.target.evaluation
        if evaluation != "packed":
            raise self.unfit(f"target.evaluation={evaluation}", f"{calls} packed calls; use target.evaluation=packed.")
        if len(self.parts.prompts.prompts) < 2:
            assert self.plan.study is not None
            raise UsageError(
                f"Study {self.plan.study['name']!r} {why} on one half of the prompts and judges them on the other: it "
                "needs at least 2 prompts (prompts.limit)."
            )

    @contextmanager
    def progress(self, task: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a progress bar; each call of what is yielded advances it by one and tells that the run is alive."""
        with stage(task, total=total, told=False) as under_way:

            def advance() -> None:
                under_way.advance()
                self.heartbeat()

            yield advance

    def texts(self) -> list[Stream]:
        """Return the greedy texts to replay: recorded ones, or those written now, which become `streams.jsonl`."""
        target, prompts = self.parts.target, self.parts.prompts
        if isinstance(target, Replay):
            self.written[:] = [target.stream(prompt.tokens) for prompt in prompts.prompts]
            return self.written
        prepare(self.parts)
        answers: dict[str, tuple[int, ...]] = {}
        with self.progress("decoding", sum(1 + len(prompt.follow_ups) for prompt in prompts.prompts)) as advance:
            for turn in (turn for prompt in prompts.prompts for turn in prompts.turns(prompt, answers)):
                limit = target.limit(turn.tokens, self.parts.limit)
                answer = self.parts.baseline.decode(Request(turn.tokens, limit), self.clock)
                ended = answer.finish == "end_token"
                self.written.append(Stream(turn.id, turn.category, answer.prompt, answer.tokens, ended=ended))
                answers[turn.id] = answer.tokens
                advance()
        write_streams(self.folder / "streams.jsonl", self.written)
        return self.written

    def standardise(self, temperature: float) -> None:
        self.parts.target.standardise(replace(self.parts.target.sampling, temperature=temperature))

    def at_temperature(self, temperature: float, capacity: int) -> Drafter:
        """Set the target to a temperature, and return the run's drafter made again for it; the longest text has
        `capacity` tokens with its draft.
        """
        self.standardise(temperature)
        drafter = drafters.construct(self.plan.chosen.config, target=self.parts.target)
        drafter.prepare(capacity, self.parts.primary.structure)
        return drafter

    def timer(self, purpose: str, calls: int, seconds: float = inf) -> Timer:
        """Return a timer of `calls` passes, which ends after `seconds`; `purpose` seeds its random tokens and order."""
        generator = generator_for(self.plan.seed, purpose, "cost")
        return Timer(self.clock, calls, generator, seconds, self.heartbeat)

    def simulated_times(
        self, shapes: Sequence[Shape], contexts: Sequence[int], arms: Iterable[tuple[Mapping[str, Any], int]]
    ) -> dict[str, pd.DataFrame]:
        """Return times in the seconds of the cost model: `block_times` as `time_shapes` has them, with `repeat`, one
        call of each shape; and `host_times` as `live_runs.host_times` has them, at the middle one of `contexts`, of
        `arms`: keys, and nodes of a draft, which is looked up.
        """
        target = self.parts.target
        assert isinstance(target, Replay)
        cost, calls, host = target.cost, list[dict[str, Any]](), list[dict[str, Any]]()
        for context, (k, w) in itertools.product(contexts, shapes):
            tokens = tokens_evaluated(k, w, target.evaluation)
            cell = {"k": k, "w": w, "context": context, "evaluation": target.evaluation, "rows_evaluated": tokens}
            seconds = cost.seconds(tokens, context, k if target.evaluation == "rows" and w else 1)
            calls.append({**cell, "call": 0, "seconds": seconds, "missing": "", "repeat": 0})
        middle = contexts[len(contexts) // 2]
        for keys, nodes in arms:
            draft = cost.lookup_seconds(cost.seconds(nodes + 1, middle)) if nodes else 0.0
            host.append({"repeat": 0, **keys, "nodes": float(nodes), "draft_s": draft, "overhead_s": cost.overhead_s})
        return {"block_times": pd.DataFrame(calls), "host_times": pd.DataFrame(host)}


class Study(ABC):
    """One kind of study, made by `typed`: its fields are the keys below `study`. Greedy only: it replays texts."""

    @abstractmethod
    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        """Return tables by name; each becomes `<name>.parquet`, and `analysis.sections` reads nothing else. Beside them
        stands `skipped`: reason, category and count of the prompts that were left out. UsageError for a part that the
        study cannot work with.
        """


def halves_of(streams: Sequence[Stream]) -> dict[str, int]:
    """Return the half of each conversation by its id: 0 and 1 alternate, which also splits neighbouring categories."""
    prompts = dict.fromkeys(first_turn(stream.id) for stream in streams)
    return {prompt: number % 2 for number, prompt in enumerate(prompts)}


studies: Registry[Study] = Registry("studies", "study")
