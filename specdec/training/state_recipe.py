"""Typed parts of recipes that train on a target's hidden states (heads, feature drafters): no values and no torch."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specdec.config import AtLeastOne, typed
from specdec.training.heads.head_data_config import HeadDataConfig
from specdec.training.recipe_parts import PaceConfig, TrainingConfig, fingerprint


@typed
class StateMonitorConfig(PaceConfig):
    """The measurements on the way."""

    heldout_batches: AtLeastOne  # the most batches of held-out text; the end scores all of it


@typed
class StateTrainConfig(TrainingConfig):
    """The part of a recipe that says on which target and text, and in what arithmetic, modules are trained.

    Attributes:
        target: the keys of a `conf/target/` file; checked by the target that they name.
        init: a file of an earlier training to go on from.
        micro_batch: sequences of one forward pass on one device; gradients accumulate over those of `data.batch`.
        bfloat16: forward and backward passes in bfloat16 over float32 weights, where the device computes in it; in
            float32 elsewhere.
        save_dtype: the dtype of the file.
    """

    target: dict[str, Any]
    data: HeadDataConfig
    init: Annotated[str, Field(min_length=1)] | None
    micro_batch: AtLeastOne
    bfloat16: bool
    save_dtype: Literal["float32", "bfloat16", "float16"]
    monitor: StateMonitorConfig

    @model_validator(mode="after")
    def _divides(self) -> "StateTrainConfig":
        if self.data.batch % self.micro_batch:
            raise ValueError(f"data.batch={self.data.batch} is no multiple of micro_batch={self.micro_batch}")
        return self


def state_fingerprint(config: StateTrainConfig, parts: dict[str, Any], target: str, data: str) -> str:
    """Hash what must not change when a training is resumed: all that touches the weights, not logging or paths.

    Args:
        parts: what is trained and how, by key of the recipe.
        target: `HiddenStates.identity`.
        data: `Sequences.fingerprint`.
    """
    plain = asdict(config.data)
    # The keys that decide what a step reads; the number of steps also sets how rates and weights change.
    read = {key: plain[key] for key in ("batch", "sequences", "passes", "steps")}
    rounded = plain["states"]["dtype"]
    return fingerprint(parts, read, rounded, config.target.get("dtype"), target, data)
