"""A stand-in for EAGLE or any other drafter of which only the accepted lengths were recorded: it needs no model."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from specdec.config import Named, NonEmpty, typed
from specdec.cost_model import DraftCost
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.replay import Replay
from specdec.text.streams import Stream, fitting_lengths, read_streams
from specdec.tree_building.lookup_filling import NOTHING, Proposal, copied
from specdec.tree_building.possible_rounds import PossibleRounds, chain_rounds


@typed
class RecordedLengthsConfig(Named):
    path: NonEmpty | None
    field: NonEmpty | None
    fixed_ms: Annotated[float, Field(ge=0.0)] | None
    step_ms: Annotated[float, Field(ge=0.0)] | None
    kind: Literal["lookup", "model"] | None  # what drafted; null: a look-up where the field's name says so

    def __post_init__(self) -> None:
        if (self.fixed_ms is None) != (self.step_ms is None):
            raise UsageError(
                "Set both drafter.fixed_ms and drafter.step_ms, or neither: null takes both of the cost model."
            )


@drafters.register("recorded")
class RecordedLengths(Lookup):
    """Proposes gamma tokens, of which exactly min(length - 1, gamma) are those of the recorded text and the others are
    wrong. `length` was recorded for the position at which the round begins; it counts the target's own token, as in
    public traces. So a replay takes the rounds that `analysis.read.imported.walked` walks.

    Deterministic (q is a point mass). Lengths are those of the streams of target=replay, or of a file of its own. A
    prompt that is not among them gets no proposals. Where time is simulated, a draft takes `cost`, or what the cost
    model charges: that asks whether the recorded drafter `looks_up` tokens, or was a model.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), replay="copying")

    def __init__(self, config: RecordedLengthsConfig, target: Target) -> None:
        super().__init__(target)
        if config.path is not None:
            streams: Sequence[Stream] = read_streams(config.path, target.vocab_size, key="drafter.path").streams
            if isinstance(target, Replay):  # lengths would be replayed where they were not recorded
                texts = {stream.prompt: stream.generated for stream in reversed(streams)}
                absent = sum(stream.prompt not in texts for stream in target.streams)
                others = sum(texts.get(item.prompt, item.generated) != item.generated for item in target.streams)
                if absent or others:
                    raise UsageError(
                        f"Bad value drafter.path={config.path}: of the target's {len(target.streams):,} streams it "
                        f"lacks {absent:,} and has another text for {others:,}; give the file of lengths that were "
                        "recorded beside the texts of target.path."
                    )
        elif isinstance(target, Replay):
            streams = target.streams
        else:
            raise UsageError(
                "Bad value drafter=recorded: it proposes what was recorded beside a text, so it needs the text; use "
                "target=replay target.path=FILE."
            )
        names = sorted(set.intersection(*(set(stream.accepted_lengths) for stream in streams)))
        named = f"those that every stream has are: {', '.join(names)}" if names else "not every stream has any"
        if config.field is None and len(names) != 1:
            raise UsageError(
                "Bad value drafter.field=null: it should say which accepted lengths to replay, such as acc_eagle in "
                f'{{"acc_eagle": {{"acc_len": [...]}}}}; {named}.'
            )
        field = config.field or names[0]
        if field not in names:
            raise UsageError(f"Bad value drafter.field={field}: no accepted lengths of that name; {named}.")
        option = f"target.skip_bad=true and drafter.field={field}" if config.path is None else None
        fitting, self.read_notes = fitting_lengths(streams, field, option)
        self.cost: DraftCost | None = None
        if config.fixed_ms is not None and config.step_ms is not None:
            self.cost = DraftCost(fixed_s=config.fixed_ms / 1000, step_s=config.step_ms / 1000, cached_s=0.0)
        self._field, self._kind = field, config.kind
        # A word of the name may be that of a drafter without a model: acc_ngram, acc_prompt_lookup.
        lookups = ("ngram", "lookup", "pld", "suffix", "sam", "retrieval", "rest")
        words = re.split(r"[^a-z]+", field.lower().replace("n-gram", "ngram").replace("n_gram", "ngram"))
        self.looks_up = self._kind == "lookup" or self._kind is None and any(word in lookups for word in words)
        self._by_prompt = {stream.prompt: stream for stream in reversed(fitting)}  # of equal prompts the first
        self._size = target.vocab_size
        self._stream: Stream | None = None  # of the text, where there is a record of it
        self._position = 0

    @property
    def notes(self) -> tuple[str, ...]:
        if self.cost is not None:
            return (*self.read_notes, f"Drafts of {self._field} are charged drafter.fixed_ms and drafter.step_ms.")
        taken = "a look-up" if self.looks_up else "a draft by a model"
        why = f"drafter.kind={self._kind}" if self._kind else "by its name; drafter.kind says otherwise"
        said = f"Drafts of {self._field} are charged what {taken} takes by the cost model ({why})."
        return (*self.read_notes, said)

    def possible_rounds(
        self, prompt: Sequence[int], text: Sequence[int], limit: int, structures: Sequence[Structure]
    ) -> Sequence[PossibleRounds | None]:
        stream = self._by_prompt.get(tuple(prompt))
        if stream is None or stream.generated[: len(text)] != tuple(text):
            return [None] * len(structures)
        ahead = len(text) - np.arange(len(text))
        agreed = np.minimum(np.asarray(stream.accepted_lengths[self._field][: len(text)]) - 1, ahead)
        room = limit - len(text) - 1 + ahead
        return [chain_rounds(agreed, np.minimum(room, structure.gamma), self._field) for structure in structures]

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._stream, self._position = self._by_prompt.get(tuple(text.prompt)), 0

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._position += len(tokens)

    def propose(self, structure: Structure) -> Proposal:
        gamma, stream = structure.gamma, self._stream
        if gamma == 0 or stream is None or self._position >= len(stream.generated):
            return NOTHING
        right = min(stream.accepted_lengths[self._field][self._position] - 1, gamma)
        recorded = stream.generated[self._position : self._position + gamma]
        # A token shifted by one is always another one; beyond the record any token will do.
        wrong = tuple((token + 1) % self._size for token in recorded[right:])
        tokens = recorded[:right] + wrong
        tokens += (0,) * (gamma - len(tokens))
        return copied(tokens, self._field)
