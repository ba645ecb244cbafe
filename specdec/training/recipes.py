"""Typed recipes of `python -m specdec.train`, for each kind of training: types and bounds, no values and no torch."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PlainValidator

from specdec.config import AtLeastOne, NonEmpty, Probability, TrackingConfig, typed
from specdec.eagle.eagle_config import EagleConfig
from specdec.heads.heads_config import HeadsConfig
from specdec.text.documents import TextCorpusConfig
from specdec.text.python_sources import PythonCorpusConfig
from specdec.training.data_recipes import HeadDataConfig, NonNegative, Positive, SequencesConfig, fingerprint, of_kind

Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]


@typed
class PaceConfig:
    """The pace of measuring, logging and saving on the way; changes no weight."""

    heldout_every_steps: AtLeastOne
    log_every_steps: AtLeastOne  # MLflow batches
    checkpoint_seconds: Positive


@typed
class TrainingConfig:
    """The keys of `conf/train.yaml`, which every recipe is added to."""

    output_dir: NonEmpty | None
    corpus_dir: NonEmpty
    tracking: TrackingConfig
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    device: Literal["auto", "cpu", "cuda"]
    threads: AtLeastOne | None


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
class Ramp:
    """A weight that is 0 before `start`, then runs straight from `first` to `last`, reached at `end` and kept."""

    first: NonNegative
    last: NonNegative
    start: Probability  # a share of the training's steps
    end: Probability  # likewise

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"a weight cannot end its way at {self.end} before it starts at {self.start}")

    def at(self, step: int, steps: int) -> float:
        """Return the weight at step 0..steps-1."""
        begin, end = self.start * steps, self.end * steps
        if step < begin:
            return 0.0
        done = 1.0 if step >= end else (step - begin) / (end - begin)
        return self.first + (self.last - self.first) * done

    def first_step(self, steps: int) -> int | None:
        """Return the first step at which the weight is above 0; None if there is none."""
        return next((step for step in range(steps) if self.at(step, steps) > 0), None)


def _constant(value: Any) -> Any:
    """Turn a plain number into a weight that never changes."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"first": value, "last": value, "start": 0.0, "end": 0.0} if number else value


Weight = Annotated[Ramp, BeforeValidator(_constant)]


@typed
class ModelConfig:
    """The shape of a decoder; the vocabulary is the tokenizer's."""

    hidden_size: AtLeastOne
    layers: AtLeastOne
    heads: AtLeastOne
    mlp_size: AtLeastOne
    context: AtLeastOne
    # The one key with a default: recipes older than the choice are Llamas, and `model_fingerprint` knows it.
    architecture: Literal["llama", "gpt2"] = "llama"

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.heads):
            raise ValueError("hidden_size must be an even multiple of heads")


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

    def __post_init__(self) -> None:
        if abs(sum(stage.share for stage in self.stages) - 1.0) > 1e-9:
            raise ValueError("the shares of data.stages must add up to 1")
        for stage in self.stages:
            if self.batch_tokens % stage.sequence_length:
                raise ValueError(f"batch_tokens={self.batch_tokens} is no multiple of {stage.sequence_length}")


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
class ModelMonitorConfig(PaceConfig):
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
    data: PythonDataConfig | TextDataConfig
    optimizer: OptimizerConfig
    monitor: ModelMonitorConfig
    compile: bool
    bfloat16: bool

    def __post_init__(self) -> None:
        longest = max(stage.sequence_length for stage in self.data.stages)
        if longest > self.model.context:
            raise ValueError(f"sequences of {longest} tokens do not fit model.context={self.model.context}")


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
    """Check a recipe as the kind that `corpus.name` selects."""
    if isinstance(recipe, Recipe):
        return recipe
    corpus = recipe.get("corpus") if isinstance(recipe, Mapping) else None
    is_text = isinstance(corpus, Mapping) and "name" in corpus
    return of_kind(TextRecipe if is_text else PythonRecipe, recipe)


@typed
class ModelTrainConfig(TrainingConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/recipe/`."""

    recipe: Annotated[Recipe, PlainValidator(_by_corpus)]


def model_fingerprint(config: ModelTrainConfig, corpus_hash: str) -> str:
    """Hash what must not change when a training is resumed: all that touches the weights, not logging or paths."""
    recipe = config.recipe
    model = asdict(recipe.model)
    if recipe.model.architecture == "llama":
        del model["architecture"]  # checkpoints older than the choice go on
    return fingerprint(model, recipe.data, recipe.optimizer, recipe.bfloat16, config.seed, corpus_hash)


@typed
class MonitorConfig(PaceConfig):
    """The measurements on the way."""

    heldout_batches: AtLeastOne  # the most batches of held-out text; the end scores all of it


@typed
class SequenceTrainConfig(TrainingConfig):
    """The text that is learned from, and the arithmetic."""

    data: SequencesConfig
    micro_batch: AtLeastOne  # sequences of a forward pass on a device; gradients accumulate over `data.batch`
    # Forward and backward passes in bfloat16 over float32 weights where the device computes in it, else in float32.
    bfloat16: bool
    monitor: MonitorConfig

    def __post_init__(self) -> None:
        if self.data.batch % self.micro_batch:
            raise ValueError(f"data.batch={self.data.batch} is no multiple of micro_batch={self.micro_batch}")


def recipe_values(config: SequenceTrainConfig) -> dict[str, Any]:
    """Return the keys of a recipe that say what is trained and how, not where, how fast or how often it is watched."""
    left_out = {field.name for field in fields(TrainingConfig)} | {"monitor", "compile"}
    return {key: value for key, value in asdict(config).items() if key not in left_out}


@typed
class StateTrainConfig(SequenceTrainConfig):
    """The keys of modules that are trained on the states of a target."""

    target: dict[str, Any]  # the keys of a `conf/target/` file; checked by the target that they name
    data: HeadDataConfig
    init: NonEmpty | None  # a file of an earlier training to go on from
    save_dtype: Literal["float32", "bfloat16", "float16"]  # the dtype of the file


@typed
class HeadLossConfig:
    """L = w_heads sum_k decay^k CE_k + w_backbone CE_0 (Medusa 2401.10774, section 2.2); both weights may change."""

    heads: Weight  # weight of the heads' loss; a number, or a ramp over the steps
    # Weight of the backbone's own loss; while it is 0, the backbone stands still. A ramp that starts late trains heads
    # first, then both (two-stage); one that starts at 0 is the gradual strategy.
    backbone: Weight
    decay: Annotated[float, Field(gt=0.0, le=1.0)]  # head k has the weight decay^k
    teacher: Probability  # share of the heads' loss against the original target's law instead of the text's token
    self_distillation: Probability  # the same share of the backbone's loss


@typed
class RateConfig:
    """The course of the learning rate over a training of heads."""

    # After the warm-up; cosine falls to 0 over all other steps, trapezoid in a line over `decay_share`.
    schedule: Literal["cosine", "constant", "trapezoid"]
    # Steps in which the rate grows linearly from 0; a backbone that starts later warms up from its own first step on.
    warmup_steps: NonNegativeInt
    decay_share: Probability  # the share of the steps, at the end, in which a trapezoid falls


@typed
class HeadOptimizerConfig:
    """Adam, or with decoupled weight decay AdamW."""

    name: Literal["adam", "adamw"]
    learning_rate: Positive  # the backbone's; the heads' rate is `heads_multiplier` times it
    heads_multiplier: Positive
    beta1: Probability
    beta2: Probability
    weight_decay: NonNegative
    grad_clip: Positive  # the largest norm of the whole gradient
    rate: RateConfig


@typed
class LoraConfig:
    """Low-rank adapters (peft) on the backbone, instead of all of its weights."""

    rank: AtLeastOne
    alpha: AtLeastOne
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)]
    targets: list[str] | Literal["all-linear"]  # names of the layers that get an adapter, or "all-linear"


@typed
class HeadTrainConfig(StateTrainConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/heads/`."""

    heads: HeadsConfig
    loss: HeadLossConfig
    optimizer: HeadOptimizerConfig
    backbone: Literal["frozen", "joint"]  # frozen (Medusa-1), or trained together with the heads (Medusa-2)
    lora: LoraConfig | None

    def __post_init__(self) -> None:
        super().__post_init__()
        trained = max(self.loss.backbone.first, self.loss.backbone.last) > 0
        if self.backbone == "frozen" and trained:
            raise ValueError("loss.backbone weighs a backbone that is frozen: set it to 0, or backbone=joint")
        if self.backbone == "joint" and not trained:
            raise ValueError("loss.backbone is 0, so backbone=joint trains nothing: raise it, or set backbone=frozen")
        if max(self.loss.heads.first, self.loss.heads.last) == 0:
            raise ValueError("loss.heads is 0, so no head is trained: raise it")
        if self.lora is not None and self.backbone == "frozen":
            raise ValueError("lora adapts a backbone that is frozen: set lora to null, or backbone=joint")
        if self.loss.self_distillation and self.lora is None:
            raise ValueError(
                "loss.self_distillation needs the original beside the trained backbone, which adapters keep: set lora"
            )
        if self.loss.teacher and self.backbone == "joint" and self.lora is None:
            raise ValueError(
                "loss.teacher needs the original beside the trained backbone, which adapters keep: set lora, or the "
                "share to 0"
            )


@typed
class EagleLossConfig:
    """L = sum_j decay^j (cross_entropy CE_j + regression R_j) over the steps j = 0, ..., steps - 1 of a training-time
    test (EAGLE-3, 2503.01840, section 3.2); with one step and both terms it is the loss of EAGLE-1 (2401.15077, 3.2).
    """

    steps: Annotated[int, Field(ge=1, le=16)]  # readings of its own states in training; a draft may be longer
    # Weight of the later steps, a number or a ramp over the training; at 0 they are not computed, which is much faster.
    later: Weight
    decay: Annotated[float, Field(gt=0.0, le=1.0)]  # step j has the weight decay^j
    teacher: Probability  # share of the cross entropy that is against the target's law instead of the text's token
    cross_entropy: Positive  # weight of CE_j, which is averaged over positions, in nats
    # Weight of R_j, the smooth L1 distance between a carried state and the target's state that it stands for, averaged
    # over positions and dimensions; only in the form of EAGLE-1, whose states stand for the target's.
    regression: NonNegative
    noise: NonNegative  # width of the uniform noise on the features, against an overfit to exact ones


@typed
class EagleTrainConfig(StateTrainConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/eagle/`."""

    eagle: EagleConfig
    loss: EagleLossConfig
    optimizer: OptimizerConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eagle.mask_token is not None or self.eagle.form == "dflash":
            raise ValueError(
                "eagle.mask_token and eagle.form=dflash make networks that draft all tokens in one pass, which this "
                "training does not teach: set the first to null, and form to eagle3 or eagle1"
            )
        if self.loss.regression and self.eagle.form != "eagle1":
            raise ValueError(
                "loss.regression draws carried states to the target's, which eagle.form=eagle3 does not stand for: set "
                "it to 0, or form to eagle1"
            )


@typed
class AdaptedModelConfig:
    """The model that goes on learning: a folder or a hub id, or pocket, one that comes with specdec."""

    model: NonEmpty


@typed
class AdaptationConfig(SequenceTrainConfig):
    """The keys of a model that is there already and goes on learning."""

    target: AdaptedModelConfig
    optimizer: OptimizerConfig
    compile: bool  # the loss is compiled


@typed
class SubtasksConfig:
    """The subtasks of the training, and how many positions of the text get each (PARD, 2504.18583, section 3.2).
    Subtask k predicts the token k + 1 places ahead from the text up to a position and k masks behind it. Subtask 0 is
    the model's own task; every position has it.
    """

    name: Name
    ahead: Annotated[int, Field(ge=2, le=64)]  # K, the number of subtasks; a draft may be longer
    # Subtask k is kept behind the share max(keep^k, keep_least) of the positions (the paper's conditional drop).
    keep: Probability
    keep_least: Probability
    # A token that no text holds; None takes the first one beyond the tokenizer's, and adds one where there is none.
    mask_token: NonNegativeInt | None

    def counts(self, positions: int) -> list[int]:
        """Return how many of the positions have subtask 1, ..., K - 1: one at least, no more than the one before."""
        shares = (max(self.keep**k, min(self.keep, self.keep_least)) for k in range(1, self.ahead))
        return [max(round(share * positions), 1) for share in shares]


@typed
class ParallelTrainConfig(AdaptationConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/parallel/`; pocket is the drafter that comes with specdec. A
    model that drafts in parallel already goes on with its mask token.
    """

    parallel: SubtasksConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data.sequence_length <= self.parallel.ahead:
            raise ValueError(
                f"parallel.ahead={self.parallel.ahead} tokens do not fit into sequences of "
                f"data.sequence_length={self.data.sequence_length}"
            )


@typed
class UnlikelihoodConfig:
    """The text that a model writes in a step, and what of it is made unlikely (Welleck et al., 1908.04319)."""

    name: Name
    prefix_tokens: AtLeastOne  # tokens of a sequence that the model is shown; it writes the rest greedily
    weight: Positive  # of the unlikelihood, beside 1 for the cross entropy of the text
    repetition_period: AtLeastOne  # the longest period of an exact loop, in tokens
    repetition_tokens: AtLeastOne  # the least tokens of a loop that is made unlikely; see `text.repetition.loop_marks`
    # A text of which at least this share lies in one exact loop counts as looping; a run, which sees near repeats as
    # well, finds more (`text.repetition`).
    repetition_share: Probability


@typed
class UnlikelihoodTrainConfig(AdaptationConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/unlikelihood/`; pocket is the target of specdec."""

    unlikelihood: UnlikelihoodConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data.packed:
            raise ValueError("data.packed=False: the model goes on with texts that fill a sequence; use true")
        if self.unlikelihood.prefix_tokens >= self.data.sequence_length:
            raise ValueError(
                f"unlikelihood.prefix_tokens={self.unlikelihood.prefix_tokens} leaves nothing to write in sequences of "
                f"data.sequence_length={self.data.sequence_length}"
            )


RECIPES: Mapping[str, type[TrainingConfig]] = {  # the typed recipe of each kind of training, by its config group
    "recipe": ModelTrainConfig,
    "heads": HeadTrainConfig,
    "eagle": EagleTrainConfig,
    "parallel": ParallelTrainConfig,
    "unlikelihood": UnlikelihoodTrainConfig,
}
