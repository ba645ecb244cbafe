"""Typed configuration of the text that trainings read (`conf/head_data/` above all): no values and no torch."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainValidator, TypeAdapter

from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.errors import UsageError
from specdec.prompts import prompts
from specdec.prompts.base.contract import SetConfig
from specdec.text.conversations import ConversationsConfig
from specdec.text.documents import TextCorpusConfig
from specdec.text.python_sources import PythonCorpusConfig
from specdec.text.sources import Part

Kind = TypeVar("Kind")
NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


def fingerprint(*parts: Any) -> str:
    """Return the sha256 of the parts as JSON (dataclasses allowed): equal parts have equal fingerprints."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=asdict).encode()).hexdigest()


def of_kind(kind: type[Kind], values: Any) -> Kind:
    """Check values as one kind of config; a pydantic union of all kinds would put its labels into messages."""
    return TypeAdapter(kind).validate_json(json.dumps(values))  # in JSON, mappings may be dataclasses


@typed
class SelfDistillationConfig:
    """The text that the target writes for heads to be trained on."""

    # "always", or "chat_model": where the tokenizer of the target has a chat template. Such a target answers what users
    # ask; any other goes on with a text.
    when: Literal["always", "chat_model"]
    texts: AtLeastOne  # training documents that it continues
    heldout_texts: AtLeastOne  # held-out ones
    # Tokens of a text that it is shown; a conversation is shown up to one of the answers, a prompt of a set whole.
    prefix_tokens: AtLeastOne
    new_tokens: AtLeastOne  # the most tokens that it writes after them
    temperature: NonNegative  # the temperature of its sampling; 0 is greedy
    batch: AtLeastOne  # texts that it writes at a time

    @property
    def counts(self) -> dict[Part, int]:
        """The documents of each part that it continues."""
        return {"train": self.texts, "heldout": self.heldout_texts}


@typed
class StatesConfig:
    """The computing and keeping of hidden states."""

    # "disk": computed once and kept, unless they take more than `limit_gib`; "none": computed in every step.
    cache: Literal["disk", "none"]
    limit_gib: Positive
    # The dtype that states are rounded to, kept or not; "auto" is the target's own.
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    folder: NonEmpty  # the place below which they are kept
    batch: AtLeastOne  # sequences of one call of the target while the cache is filled
    shard_mib: AtLeastOne  # about the size of a file; an interruption loses at most one file


@typed
class SelfSynthesisConfig(Named):
    """Questions that a chat model makes up, for it to answer. As many are asked as `generated` has texts, held-out ones
    too; those that are left out are not asked again.
    """

    new_tokens: AtLeastOne  # the most tokens of a question; one that has not ended by then is left out
    temperature: Positive  # the temperature of the questions' sampling; 0 would always ask the same
    words: AtLeastOne  # a question that has as many words in a row in common with an earlier one is left out
    # Files of prompts, JSON lines or text; a question or answer with as many words in a row of theirs is left out.
    keep_out: list[NonEmpty]
    repetition_period: AtLeastOne  # see `conf/measurement/default.yaml`; a text that loops is left out
    repetition_share: Positive


SourceConfig = PythonCorpusConfig | TextCorpusConfig | ConversationsConfig | SelfSynthesisConfig | SetConfig
_SOURCES: dict[Any, Any] = {
    None: PythonCorpusConfig,
    "text": TextCorpusConfig,
    "conversations": ConversationsConfig,
    "self_synthesis": SelfSynthesisConfig,
}


@contextmanager
def as_data_source() -> Iterator[None]:
    """Name keys of a prompt set as they are called in a training."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace("prompts.", "data.source.")) from None


def _by_name(source: Any) -> SourceConfig:
    """Check a source as the kind that its name selects."""
    if isinstance(source, SourceConfig):
        return source
    if not isinstance(source, Mapping):
        raise ValueError("source should be a group of keys")
    name = source.get("name")
    if name in prompts.all_names():
        with as_data_source():
            return prompts.config(source)
    if name not in _SOURCES:
        raise ValueError(
            f"source.name={name} is none of text, conversations, self_synthesis, a prompt set, or no name for Python "
            "sources"
        )
    return of_kind(_SOURCES[name], source)


@typed
class SequencesConfig:
    """The text of a training that reads it in the tokens of a model that is there already."""

    # Conversations, Python sources, another text, a prompt set or what the model makes up. The second and third are
    # groups of `conf/corpus`; their `vocabulary` has no meaning here: the tokens are the model's.
    source: Annotated[SourceConfig, PlainValidator(_by_name)]
    sequence_length: Annotated[int, Field(ge=4)]  # tokens of a sequence
    packed: bool  # joins documents and cuts them anywhere; otherwise a sequence is one document, its end cut off
    batch: AtLeastOne  # sequences of an optimizer step
    sequences: AtLeastOne | None  # the most sequences of the training text; None is all
    # How often all sequences are read, or how many steps are made; one of them is None.
    passes: Positive | None
    steps: AtLeastOne | None
    heldout: AtLeastOne  # the most sequences of held-out documents
    folder: NonEmpty  # the place of tokens and generated text, shared by recipes

    def __post_init__(self) -> None:
        if (self.passes is None) == (self.steps is None):
            raise ValueError("set one of passes and steps, and leave the other null")


@typed
class HeadDataConfig(SequencesConfig):
    """The data that heads are trained on (`conf/head_data/`). Heads need less text than a model does, and the states of
    few sequences, read several times, are kept more easily.
    """

    # Heads are trained on what the target writes after the source or in answer to it; None: on the source itself.
    generated: SelfDistillationConfig | None
    states: StatesConfig  # the computing and keeping of the target's hidden states
