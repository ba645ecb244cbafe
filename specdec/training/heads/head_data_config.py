"""Typed configuration of what heads are trained on (`conf/head_data/`): types and bounds, no values and no torch."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, TypeAdapter, model_validator

from specdec.config import AtLeastOne, typed
from specdec.training.models.recipe import CorpusConfig, TextCorpusConfig


@typed
class ConversationsConfig:
    """Records `{"conversations": [{"from": "human" | "gpt", "value": TEXT}, ...]}` (ShareGPT's form).

    Attributes:
        path: a JSON list of them, or JSON lines, gzip or not; or else:
        hub_id: a data set on the hub in parquet or JSON (no script is ever run).
        chat_template: Jinja, for a tokenizer that has no template of its own.
        max_conversations: as many from the beginning; None is all.
        heldout_every: the n-th, 2n-th, ... conversation is held out.
    """

    name: Literal["conversations"]
    path: Annotated[str, Field(min_length=1)] | None
    hub_id: Annotated[str, Field(min_length=1)] | None
    hub_config: str | None
    split: str
    revision: str | None
    chat_template: Annotated[str, Field(min_length=1)]
    max_conversations: AtLeastOne | None
    heldout_every: Annotated[int, Field(ge=2)]


@typed
class SelfDistillationConfig:
    """What the target writes.

    Attributes:
        texts, heldout_texts: how many it goes on with, of the training and of the held-out documents.
        prefix_tokens: how much of a text it is shown; of a conversation, all up to one of the answers.
        new_tokens: at most so many that it writes.
        temperature: of its sampling; 0 is greedy.
        batch: texts at a time.
    """

    texts: AtLeastOne
    heldout_texts: AtLeastOne
    prefix_tokens: AtLeastOne
    new_tokens: AtLeastOne
    temperature: Annotated[float, Field(ge=0.0)]
    batch: AtLeastOne


@typed
class StatesConfig:
    """How hidden states come about.

    Attributes:
        cache: "disk": each is computed once and kept, unless that takes more than `limit_gib`; "none": always computed
            on the way.
        dtype: that they are rounded to, kept or not; "auto" is the target's own.
        folder: below which they are kept.
        batch: sequences of one call of the target while the cache is filled.
        shard_mib: about the size of a file; an interruption loses one at most.
    """

    cache: Literal["disk", "none"]
    limit_gib: Annotated[float, Field(gt=0.0)]
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    folder: Annotated[str, Field(min_length=1)]
    batch: AtLeastOne
    shard_mib: AtLeastOne


SourceConfig = CorpusConfig | TextCorpusConfig | ConversationsConfig
_KINDS: dict[Any, Any] = {
    None: CorpusConfig,
    "text": TextCorpusConfig,
    "conversations": ConversationsConfig,
}


def _by_name(source: Any) -> SourceConfig:
    """The kind that `source.name` selects (Python sources have none); a union would put its labels into messages."""
    if isinstance(source, CorpusConfig | TextCorpusConfig | ConversationsConfig):
        return source
    if not isinstance(source, Mapping):
        raise ValueError("source should be a group of keys")
    name = source.get("name")
    if name not in _KINDS:
        raise ValueError(f"source.name={name} is none of text, conversations, or no name for Python sources")
    # As JSON: strict validation takes mappings for dataclasses there.
    checked: SourceConfig = TypeAdapter(_KINDS[name]).validate_json(json.dumps(dict(source)))
    return checked


@typed
class HeadDataConfig:
    """What heads are trained on (`conf/head_data/`).

    Attributes:
        source: Python sources or another text (groups of `conf/corpus`, whose `vocabulary` is that of models trained
            from scratch and means nothing here: the tokens are the target's), or conversations.
        generated: the target goes on with the source's documents, and what it writes is trained on; None: the
            documents themselves.
        sequence_length: tokens of a sequence.
        packed: documents one after another, cut without regard to where they begin; otherwise one document a sequence,
            its end cut off.
        batch: sequences of an optimizer step.
        sequences: of the training text, at most; None is all of it. Heads need less of it than a model does, and fewer
            states read several times are kept more easily.
        passes, steps: how often all sequences are read, or how many steps are made; one of them is None.
        heldout: sequences of held-out documents, at most.
        folder: where tokens and generated text are kept, shared by recipes.
    """

    source: Annotated[SourceConfig, PlainValidator(_by_name)]
    generated: SelfDistillationConfig | None
    sequence_length: Annotated[int, Field(ge=4)]
    packed: bool
    batch: AtLeastOne
    sequences: AtLeastOne | None
    passes: Annotated[float, Field(gt=0.0)] | None
    steps: AtLeastOne | None
    heldout: AtLeastOne
    states: StatesConfig
    folder: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _one_length(self) -> "HeadDataConfig":
        if (self.passes is None) == (self.steps is None):
            raise ValueError("set one of passes and steps, and leave the other null")
        return self
