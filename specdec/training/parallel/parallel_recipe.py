"""Typed recipes of `python -m specdec.train +parallel=NAME` (`conf/parallel/`): types and bounds, no values and no
torch.
"""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, model_validator

from specdec.config import AtLeastOne, Probability, typed
from specdec.training.heads.head_data_config import SequencesConfig
from specdec.training.models.recipe import Name, OptimizerConfig
from specdec.training.recipe_parts import TrainingConfig, fingerprint
from specdec.training.state_recipe import StateMonitorConfig


@typed
class SubtasksConfig:
    """The subtasks of the training, and how many positions of the text get each (PARD, 2504.18583, section 3.2).

    Subtask k predicts the token k + 1 places ahead from the text up to a position and k masks behind it. Subtask 0 is
    the model's own task; every position has it.

    Attributes:
        ahead: K, the number of subtasks; a draft may be longer.
        keep, keep_least: subtask k is kept behind the share max(keep^k, keep_least) of the positions (the paper's
            conditional drop of tokens).
        mask_token: a token that no text holds; None takes the first one beyond the tokenizer's, and adds one where
            there is none.
    """

    name: Name
    ahead: Annotated[int, Field(ge=2, le=64)]
    keep: Probability
    keep_least: Probability
    mask_token: NonNegativeInt | None

    def counts(self, positions: int) -> list[int]:
        """Return how many of the positions have subtask 1, ..., K - 1: at least one each, and never more than the
        subtask before has.
        """
        shares = (max(self.keep**k, min(self.keep, self.keep_least)) for k in range(1, self.ahead))
        return [max(round(share * positions), 1) for share in shares]


@typed
class ParallelTrainConfig(TrainingConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/parallel/`.

    Attributes:
        model: the model that is adapted: a folder or a hub id, or pocket, the drafter that comes with specdec. A model
            that drafts in parallel already goes on with its mask token.
        micro_batch: sequences of one forward pass; gradients accumulate over those of `data.batch`.
        compile: the loss is compiled.
        bfloat16: forward and backward passes in bfloat16 over float32 weights, where the device computes in it; in
            float32 elsewhere.
    """

    model: Annotated[str, Field(min_length=1)]
    parallel: SubtasksConfig
    data: SequencesConfig
    optimizer: OptimizerConfig
    micro_batch: AtLeastOne
    monitor: StateMonitorConfig
    compile: bool
    bfloat16: bool

    @model_validator(mode="after")
    def _fits(self) -> "ParallelTrainConfig":
        if self.data.batch % self.micro_batch:
            raise ValueError(f"data.batch={self.data.batch} is no multiple of micro_batch={self.micro_batch}")
        if self.data.sequence_length <= self.parallel.ahead:
            raise ValueError(
                f"parallel.ahead={self.parallel.ahead} tokens do not fit into sequences of "
                f"data.sequence_length={self.data.sequence_length}"
            )
        return self


def parallel_fingerprint(config: ParallelTrainConfig, model: str, data: str) -> str:
    """Hash what must not change when a training is resumed: all that touches the weights, not logging or paths.

    Args:
        model: identifies the weights that are adapted.
        data: `Sequences.fingerprint`.
    """
    plain: dict[str, Any] = asdict(config)
    del plain["parallel"]["name"]
    parts = {key: plain[key] for key in ("parallel", "optimizer", "micro_batch", "bfloat16", "seed")}
    read = {key: plain["data"][key] for key in ("batch", "sequences", "passes", "steps")}
    return fingerprint(parts, read, model, data)
