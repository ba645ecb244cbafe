"""The keys that recipes share which adapt a whole model to something new: no values and no torch."""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, model_validator

from specdec.config import AtLeastOne, typed
from specdec.training.heads.head_data_config import SequencesConfig
from specdec.training.models.recipe import OptimizerConfig
from specdec.training.recipe_parts import TrainingConfig, fingerprint
from specdec.training.state_recipe import StateMonitorConfig


@typed
class AdaptationConfig(TrainingConfig):
    """A model that is there already, the text that it goes on learning from, and how.

    Attributes:
        model: the model that is adapted: a folder or a hub id, or pocket, one that comes with specdec.
        micro_batch: sequences of one forward pass; gradients accumulate over those of `data.batch`.
        compile: the loss is compiled.
        bfloat16: forward and backward passes in bfloat16 over float32 weights, where the device computes in it; in
            float32 elsewhere.
    """

    model: Annotated[str, Field(min_length=1)]
    data: SequencesConfig
    optimizer: OptimizerConfig
    micro_batch: AtLeastOne
    monitor: StateMonitorConfig
    compile: bool
    bfloat16: bool

    @model_validator(mode="after")
    def _divides(self) -> "AdaptationConfig":
        if self.data.batch % self.micro_batch:
            raise ValueError(f"data.batch={self.data.batch} is no multiple of micro_batch={self.micro_batch}")
        return self


def adaptation_fingerprint(config: AdaptationConfig, kind: str, model: str, data: str) -> str:
    """Hash what must not change when a training is resumed: all that touches the weights, not logging or paths.

    Args:
        kind: the group of the recipe's own keys, such as parallel.
        model: identifies the weights that are adapted.
        data: `Sequences.fingerprint`.
    """
    plain: dict[str, Any] = asdict(config)
    del plain[kind]["name"]
    parts = {key: plain[key] for key in (kind, "optimizer", "micro_batch", "bfloat16", "seed")}
    read = {key: plain["data"][key] for key in ("batch", "sequences", "passes", "steps")}
    return fingerprint(parts, read, model, data)
