"""Typed recipes of `python -m specdec.train +recipe=NAME`: the only validation that training does.

The classes have types and bounds; the values are in `conf/`. Nothing here imports torch.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, TypeAdapter, model_validator

from specdec.config import AtLeastOne, Probability, typed
from specdec.text.documents import TextCorpusConfig
from specdec.text.python_sources import PythonCorpusConfig
from specdec.training.recipe_parts import NonNegative, PaceConfig, Positive, TrainingConfig, fingerprint

Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]


@typed
class ModelConfig:
    """The shape of a decoder; the vocabulary is the tokenizer's."""

    hidden_size: AtLeastOne
    layers: AtLeastOne
    heads: AtLeastOne
    mlp_size: AtLeastOne
    context: AtLeastOne
    # The one key with a default: recipes older than the choice are Llamas, and `training_fingerprint` knows it.
    architecture: Literal["llama", "gpt2"] = "llama"

    @model_validator(mode="after")
    def _divisible(self) -> "ModelConfig":
        if self.hidden_size % (2 * self.heads):
            raise ValueError("hidden_size must be an even multiple of heads")
        return self


@typed
class StageConfig:
    """A part of the training, in sequences of one length."""

    share: Probability  # of the steps
    sequence_length: AtLeastOne


@typed
class StreamConfig:
    """The cutting of documents into batches. All lengths in tokens."""

    tokens: AtLeastOne  # trained on in all
    batch_tokens: AtLeastOne  # per optimizer step
    micro_batch_tokens: AtLeastOne  # per forward pass; gradients accumulate
    stages: Annotated[list[StageConfig], Field(min_length=1)]
    shuffle_window: AtLeastOne  # the most places that a sequence moves, so that a batch mixes documents

    @model_validator(mode="after")
    def _stages_fit(self) -> "StreamConfig":
        if abs(sum(stage.share for stage in self.stages) - 1.0) > 1e-9:
            raise ValueError("the shares of data.stages must add up to 1")
        for stage in self.stages:
            if self.batch_tokens % stage.sequence_length:
                raise ValueError(f"batch_tokens={self.batch_tokens} is no multiple of {stage.sequence_length}")
        return self


@typed
class PythonDataConfig(StreamConfig):
    """The order of Python sources: the standard library several times, packages once."""

    stdlib_passes: Positive  # how often the standard library is read; packages fill the rest
    stdlib_lateness: Positive  # 1 spreads it evenly, below 1 puts more of it near the end


@typed
class TextDataConfig(StreamConfig):
    """The order of any other text: all of it in a new order, again and again until `tokens` are read."""

    max_passes: AtLeastOne  # a text that would be read more often than this is refused


@typed
class OptimizerConfig:
    """Muon for the hidden matrices, AdamW for embeddings and norms; trapezoidal schedule."""

    muon_lr: Positive
    muon_momentum: Probability
    adam_lr: Positive
    adam_beta1: Probability
    adam_beta2: Probability
    weight_decay: NonNegative
    grad_clip: Positive
    warmup_share: Probability  # of the steps, linear from zero
    decay_share: Probability  # of the steps, at the end, linear to zero


@typed
class MonitorConfig(PaceConfig):
    """The measurements on the way."""

    heldout_tokens: AtLeastOne  # size of the held-out slice scored on the way
    heldout_window: AtLeastOne  # tokens


@typed
class Recipe:
    """The keys of both kinds of recipe; `corpus` and `data` are of one kind."""

    name: Name
    role: Name  # target or drafter; the file name of a shipped model
    corpus: PythonCorpusConfig | TextCorpusConfig
    model: ModelConfig
    data: StreamConfig
    optimizer: OptimizerConfig
    monitor: MonitorConfig
    compile: bool
    bfloat16: bool

    @model_validator(mode="after")
    def _lengths_fit(self) -> "Recipe":
        longest = max(stage.sequence_length for stage in self.data.stages)
        if longest > self.model.context:
            raise ValueError(f"sequences of {longest} tokens do not fit model.context={self.model.context}")
        return self


@typed
class PythonRecipe(Recipe):
    """A recipe on Python sources."""

    corpus: PythonCorpusConfig
    data: PythonDataConfig


@typed
class TextRecipe(Recipe):
    """A recipe on any other text."""

    corpus: TextCorpusConfig
    data: TextDataConfig


def _by_corpus(recipe: Any) -> Recipe:
    """Check a recipe as the kind that `corpus.name` selects; a pydantic union would put its labels into messages."""
    if isinstance(recipe, Recipe):
        return recipe
    corpus = recipe.get("corpus") if isinstance(recipe, Mapping) else None
    is_text = isinstance(corpus, Mapping) and "name" in corpus
    kind: type[Recipe] = TextRecipe if is_text else PythonRecipe
    # As JSON: strict validation takes mappings for dataclasses there.
    return TypeAdapter(kind).validate_json(json.dumps(recipe))


@typed
class TrainConfig(TrainingConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/recipe/`."""

    recipe: Annotated[Recipe, PlainValidator(_by_corpus)]


def training_fingerprint(config: TrainConfig, corpus_hash: str) -> str:
    """Hash what must not change when a training is resumed: all that touches the weights, not logging or paths."""
    recipe = config.recipe
    model = asdict(recipe.model)
    if recipe.model.architecture == "llama":
        del model["architecture"]  # checkpoints older than the choice go on
    return fingerprint(model, recipe.data, recipe.optimizer, recipe.bfloat16, config.seed, corpus_hash)
