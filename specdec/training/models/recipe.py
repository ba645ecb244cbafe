"""Typed recipes of `python -m specdec.train`: the only validation that training does.

The classes have types and bounds and no defaults: every value lives in `conf/`. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    model_validator,
)
from pydantic.dataclasses import dataclass

from specdec.config import TrackingConfig

STRICT = ConfigDict(extra="forbid")
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[FiniteFloat, Field(ge=0.0)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")]


@dataclass(frozen=True, config=STRICT)
class CorpusConfig:
    """Which Python sources are read, and what is dropped. Sizes in bytes, shares in [0, 1]."""

    packages: dict[Name, PositiveInt]  # import name -> at most so many bytes of its sources
    vocabulary: Annotated[int, Field(ge=258, le=65536)]  # pieces of the BPE, special token included
    skip_directories: list[str]
    min_file_bytes: PositiveInt
    max_file_bytes: PositiveInt
    max_line_characters: PositiveInt
    max_digit_share: Share  # of a file's characters: tables of numbers are not code
    shingle_lines: PositiveInt
    heldout_overlap: Share  # of a file's shingles, or of a held-out text's: above it, the file is dropped
    same_name_overlap: Share  # the same for a file that has a held-out module's name
    repeat_overlap: Share  # of a file's shingles already seen in kept files: above it, it is dropped


@dataclass(frozen=True, config=STRICT)
class TextCorpusConfig:
    """Any text: a local file, or a data set on the hub in parquet or JSON (no script is ever run)."""

    name: Literal["text"]
    path: Annotated[str, Field(min_length=1)] | None  # a UTF-8 file, gzip or not; or else:
    hub_id: Annotated[str, Field(min_length=1)] | None
    hub_config: str | None
    split: str
    revision: str | None
    field: Annotated[str, Field(min_length=1)]  # of a hub record: its text, one document
    documents: Literal["lines", "paragraphs"]  # of a file: one a line, or with blank lines between them
    max_bytes: PositiveInt | None  # of text taken from the beginning; null: all of it
    heldout_every: Annotated[int, Field(ge=2)]  # the n-th, 2n-th, ... document is held out
    vocabulary: Annotated[int, Field(ge=258, le=65536)]  # pieces of the BPE, special token included


@dataclass(frozen=True, config=STRICT)
class ModelConfig:
    """The shape of a decoder; the vocabulary is the tokenizer's."""

    hidden_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    mlp_size: PositiveInt
    context: PositiveInt
    # The one key with a default: recipes older than the choice are Llamas, and `training_fingerprint` knows it.
    architecture: Literal["llama", "gpt2"] = "llama"

    @model_validator(mode="after")
    def _divisible(self) -> ModelConfig:
        if self.hidden_size % (2 * self.heads):
            raise ValueError("hidden_size must be an even multiple of heads")
        return self


@dataclass(frozen=True, config=STRICT)
class StageConfig:
    """A part of the training, in sequences of one length."""

    share: Share  # of the steps
    sequence_length: PositiveInt


@dataclass(frozen=True, config=STRICT)
class StreamConfig:
    """How documents become batches. All lengths in tokens."""

    tokens: PositiveInt  # trained on in all
    batch_tokens: PositiveInt  # per optimizer step
    micro_batch_tokens: PositiveInt  # per forward pass; gradients accumulate
    stages: Annotated[list[StageConfig], Field(min_length=1)]
    shuffle_window: PositiveInt  # sequences move at most so far, so that a batch mixes documents

    @model_validator(mode="after")
    def _stages_fit(self) -> StreamConfig:
        if abs(sum(stage.share for stage in self.stages) - 1.0) > 1e-9:
            raise ValueError("the shares of data.stages must add up to 1")
        for stage in self.stages:
            if self.batch_tokens % stage.sequence_length:
                raise ValueError(f"batch_tokens={self.batch_tokens} is no multiple of {stage.sequence_length}")
        return self


@dataclass(frozen=True, config=STRICT)
class DataConfig(StreamConfig):
    """Order of Python sources: the standard library several times, packages once."""

    stdlib_passes: PositiveFloat  # how often the standard library is read; packages fill the rest
    stdlib_lateness: PositiveFloat  # 1 spreads it evenly, below 1 puts more of it near the end


@dataclass(frozen=True, config=STRICT)
class TextDataConfig(StreamConfig):
    """Order of any other text: all of it in a new order, again and again until `tokens` are read."""

    max_passes: PositiveInt  # a text that would be read more often than this is refused


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig:
    """Muon for the hidden matrices, AdamW for embeddings and norms; trapezoidal schedule."""

    muon_lr: PositiveFloat
    muon_momentum: Share
    adam_lr: PositiveFloat
    adam_beta1: Share
    adam_beta2: Share
    weight_decay: NonNegative
    grad_clip: PositiveFloat
    warmup_share: Share  # of the steps, linear from zero
    decay_share: Share  # of the steps, at the end, linear to zero


@dataclass(frozen=True, config=STRICT)
class PaceConfig:
    """How often something is measured, logged and saved on the way; it changes no weight."""

    heldout_every_steps: PositiveInt
    log_every_steps: PositiveInt  # MLflow batches
    checkpoint_seconds: PositiveFloat


@dataclass(frozen=True, config=STRICT)
class MonitorConfig(PaceConfig):
    """What is measured on the way, and how often."""

    heldout_tokens: PositiveInt  # size of the held-out slice scored on the way
    heldout_window: PositiveInt  # tokens


@dataclass(frozen=True, config=STRICT)
class Recipe:
    """What both kinds of recipe have; `corpus` and `data` are of one kind."""

    name: Name
    role: Name  # target or drafter; the file name of a shipped model
    corpus: CorpusConfig | TextCorpusConfig
    model: ModelConfig
    data: StreamConfig
    optimizer: OptimizerConfig
    monitor: MonitorConfig
    compile: bool
    bfloat16: bool

    @model_validator(mode="after")
    def _lengths_fit(self) -> Recipe:
        longest = max(stage.sequence_length for stage in self.data.stages)
        if longest > self.model.context:
            raise ValueError(f"sequences of {longest} tokens do not fit model.context={self.model.context}")
        return self


@dataclass(frozen=True, config=STRICT)
class PythonRecipe(Recipe):
    """A recipe on Python sources."""

    corpus: CorpusConfig
    data: DataConfig


@dataclass(frozen=True, config=STRICT)
class TextRecipe(Recipe):
    """A recipe on any other text."""

    corpus: TextCorpusConfig
    data: TextDataConfig


def _by_corpus(recipe: Any) -> Recipe:
    """The kind that `corpus.name` selects; a pydantic union would put its own labels into the keys of messages."""
    if isinstance(recipe, Recipe):
        return recipe
    corpus = recipe.get("corpus") if isinstance(recipe, Mapping) else None
    is_text = isinstance(corpus, Mapping) and "name" in corpus
    kind: type[Recipe] = TextRecipe if is_text else PythonRecipe
    return TypeAdapter(kind).validate_python(recipe)


@dataclass(frozen=True, config=STRICT)
class TrainConfig:
    """The root of `conf/train.yaml`."""

    recipe: Annotated[Recipe, PlainValidator(_by_corpus)]
    output_dir: Annotated[str, Field(min_length=1)] | None
    corpus_dir: Annotated[str, Field(min_length=1)]
    tracking: TrackingConfig
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt | None


def fingerprint(*parts: Any) -> str:
    """sha256 of the parts as JSON (dataclasses allowed): equal parts, equal fingerprint."""
    plain = [asdict(part) if hasattr(part, "__dataclass_fields__") else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def training_fingerprint(config: TrainConfig, corpus_hash: str) -> str:
    """What must not change when a run is resumed: all that touches the weights, not logging or paths."""
    recipe = config.recipe
    model = asdict(recipe.model)
    if recipe.model.architecture == "llama":
        del model["architecture"]  # checkpoints older than the choice go on
    return fingerprint(model, recipe.data, recipe.optimizer, recipe.bfloat16, config.seed, corpus_hash)
