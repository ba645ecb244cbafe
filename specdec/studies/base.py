"""The contract of a study: from built parts to tables; what the tables say is `analysis`' business."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specdec.clock import Clock
from specdec.config import RunConfig
from specdec.decode import generate
from specdec.experiment.experiment import Parts, prepare
from specdec.progress import progress_bar
from specdec.prompts import Prompt
from specdec.records import Generation, Request
from specdec.registry import Registry
from specdec.targets.replay import Replay
from specdec.text.streams import Stream, write_streams


@dataclass(frozen=True)
class Bench:
    """What a study works with: the parts that a run has, and where results go.

    Attributes:
        clock: measured, or simulated where the target has no model.
        folder: the run's output folder.
        heartbeat: to be called now and then, so that the run is seen to be alive.
    """

    config: RunConfig
    parts: Parts
    clock: Clock
    folder: Path
    heartbeat: Callable[[], None]

    @property
    def simulated(self) -> bool:
        """Whether times come from a cost model."""
        return self.parts.target.clock() is not None

    def texts(self) -> list[Stream]:
        """The greedy texts that strategies are replayed on: recorded ones, or those that the target writes now, which
        are kept as `streams.jsonl`.
        """
        target = self.parts.target
        if isinstance(target, Replay):
            return [target.stream(prompt.tokens) for prompt in self.parts.prompts.prompts]
        prompts = self.parts.prompts
        longest = max(prompts.prompts, key=lambda prompt: len(prompt.tokens))
        prepare(self.parts, longest, self.config.measurement)
        streams: list[Stream] = []
        with progress_bar() as progress:
            bar = progress.add_task("decoding", total=sum(1 + len(prompt.follow_ups) for prompt in prompts.prompts))
            for prompt in prompts.prompts:
                current: Prompt | None = prompt
                while current is not None:
                    answer = self._decode(current)
                    ended = answer.finish == "end_token"
                    streams.append(Stream(current.id, current.category, answer.prompt, answer.tokens, ended=ended))
                    progress.advance(bar)
                    self.heartbeat()
                    current = prompts.follow_up(current, answer.tokens)
        write_streams(self.folder / "streams.jsonl", streams)
        return streams

    def _decode(self, prompt: Prompt) -> Generation:
        baseline = self.parts.baseline
        return generate(
            target=self.parts.target,
            drafter=baseline.drafter,
            verifier=baseline.verifier,
            structure=baseline.structure,
            request=Request(
                prompt.tokens, self.parts.target.limit(prompt.tokens, self.config.measurement.max_new_tokens)
            ),
            clock=self.clock,
        )


class Study(ABC):
    """One kind of study. Constructed as `cls(config)`; greedy only, because it replays texts (DESIGN 3)."""

    @abstractmethod
    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        """Tables by name; each becomes `<name>.parquet`, and `analysis.findings` reads nothing else.

        Raises:
            UsageError: a part that the study cannot work with.
        """


studies: Registry[Study] = Registry("studies", "study")
