"""Recorded streams in place of a model: greedy decoding of outputs that another engine wrote, in simulated time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.clock import SimulatedClock
from specdec.config import AtLeastOne, config_dir, typed
from specdec.cost_model import load_cost
from specdec.errors import UsageError
from specdec.records import Draft, TextStart
from specdec.sampling import SamplingConfig, one_hot
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Target, TargetCapabilities, targets
from specdec.text.streams import Recording, Stream, open_recording

_UNBOUNDED = 1 << 30  # tokens of context: there is no model to hold them


@typed
class ReplayConfig(Recording):
    name: Literal["replay"]
    vocab_size: AtLeastOne | None  # null: the tokenizer's, or the largest id of the streams and one more
    end_tokens: list[Annotated[int, Field(ge=0)]]  # besides those that end a stream which says that it ended
    cost: Annotated[str, Field(min_length=1)]  # a name in conf/cost, a YAML of that form, or a run's output folder
    evaluation: Literal["packed", "rows"]


@targets.register("replay")
class Replay(Target):
    """Chooses the recorded token at every position, so that greedy decoding writes the recorded text in exactly the
    rounds that the model which wrote it would have taken. A recording without an end token ends as at a
    limit.

    Greedy only. No call takes time: `clock` shows what calls would have taken by a cost model. A stream is found by its
    prompt; of several with the same prompt the first is used, because greedy decoding writes one text.

    Attributes:
        streams: one per prompt, in the order of the file.
        cost: the cost model.
    """

    capabilities = TargetCapabilities(structures=EVERY_STRUCTURE, recorded=True)

    def __init__(self, config: ReplayConfig, sampling: SamplingConfig) -> None:
        """
        Raises:
            UsageError: a temperature above 0; and see `open_recording` and `load_cost`.
        """
        if not sampling.greedy:
            raise UsageError(
                f"Bad value sampling.temperature={sampling.temperature}: target=replay knows the tokens that were "
                "chosen and not their probabilities, so it is greedy only; use sampling=greedy."
            )
        recorded = open_recording(config, "target", config.vocab_size)
        self._config, self._recorded = config, recorded
        self.evaluation = config.evaluation
        self.streams = recorded.streams
        self._by_prompt = {stream.prompt: stream for stream in self.streams}
        self.tokenizer = recorded.tokenizer
        known = recorded.largest + 1
        self.vocab_size = config.vocab_size or max(known, 0 if self.tokenizer is None else len(self.tokenizer))
        self.context_length = _UNBOUNDED
        self.end_tokens = frozenset(config.end_tokens) | {each.generated[-1] for each in self.streams if each.ended}
        self.device = torch.device("cpu")
        self.sampling = sampling
        self.cost = load_cost(config.cost, Path(config_dir()) / "cost")
        self._clock = SimulatedClock()
        self._text: tuple[int, ...] = ()
        self._context, self._position = 0, 0

    def stream(self, prompt: Sequence[int]) -> Stream:
        """Return the stream that begins with `prompt`.

        Raises:
            UsageError: no stream does.
        """
        found = self._by_prompt.get(tuple(prompt))
        if found is None:
            raise UsageError(
                f"No stream of target.path={self._config.path} has this prompt of {len(prompt)} tokens: target=replay "
                "decodes its own prompts only; use prompts=recorded."
            )
        return found

    def limit(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        return self.stream(prompt).limit(max_new_tokens)

    def clock(self) -> SimulatedClock:
        return self._clock

    def start(self, text: TextStart) -> None:
        self._text = self.stream(text.prompt).generated
        self._context, self._position = len(text.prompt) - 1, 0
        if self._context:
            self._clock.advance(self.cost.seconds(self._context, 0))

    def verify(self, draft: Draft) -> Tensor:
        """Return point masses [N+1, V] on the recorded tokens, for each node the one that follows at its depth.

        After a node that differs from the record, the model would have chosen something else. It does not matter:
        greedy acceptance comes to a node only through the recorded tokens.
        """
        if self._position >= len(self._text):
            raise ValueError(f"decoded beyond the {len(self._text)} recorded tokens; see `limit`")
        recorded = torch.tensor(self._text[self._position : self._position + draft.tree.depth + 1])
        # Beyond the record nothing is committed; its last token keeps the shapes right.
        places = draft.tree.offsets.clamp_max(len(recorded) - 1)
        self._clock.advance(self.cost.seconds(*self._evaluated(draft)))
        return one_hot(recorded[places], self.vocab_size)

    def _evaluated(self, draft: Draft) -> tuple[int, int, int]:
        """Return the tokens of the call, the tokens in the cache, and the copies of the cache that the call reads."""
        branches = len(draft.tree.leaves)
        if self.evaluation == "packed" or branches < 2:
            return len(draft) + 1, self._context, 1
        return branches * (draft.tree.depth + 1), self._context, branches

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self._clock.advance(self.cost.overhead_s)
        self._position += len(path) + 1
        self._context += len(path) + 1

    def discard(self) -> None:
        pass  # verifying changed nothing but the time

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Return the recorded choices as logits of 1 against 0, for the recorded text or a beginning of it."""
        recorded = self.stream(prompt).generated
        places = torch.arange(len(text) + 1).clamp_max(len(recorded) - 1)
        return one_hot(torch.tensor(recorded)[places], self.vocab_size)

    def describe(self) -> dict[str, Any]:
        return {
            "streams": len(self.streams),
            "streams_left_out": sum(sum(counts.values()) for counts in self._recorded.left_out.values()),
            "sha256": self._recorded.sha256,
            "dtype": "none",
            "evaluation": self.evaluation,
            "time": "simulated",
            "cost_model": self.cost.name,
            "cost_source": self.cost.source,
        }
