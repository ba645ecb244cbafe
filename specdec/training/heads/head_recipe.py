"""Typed recipes of `python -m specdec.train +heads=NAME` (`conf/heads/`): types and bounds, no values and no torch."""

from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec.config import AtLeastOne, Probability, typed
from specdec.heads.heads_config import HeadsConfig
from specdec.training.recipe_parts import NonNegative, Positive
from specdec.training.schedules import RateConfig, Weight
from specdec.training.state_recipe import StateTrainConfig, state_fingerprint


@typed
class HeadLossConfig:
    """L = w_heads sum_k decay^k CE_k + w_backbone CE_0 (Medusa 2401.10774, section 2.2); both weights may change.

    Attributes:
        heads: weight of the heads' loss; a number, or a ramp over the steps.
        backbone: weight of the backbone's own loss; while it is 0, the backbone stands still. A ramp that starts late
            trains heads first, then both (two-stage); one that starts at 0 is the gradual strategy.
        decay: head k has the weight decay^k.
        teacher: share of the heads' loss that is against the original target's law instead of the text's token.
        self_distillation: the same share of the backbone's loss.
    """

    heads: Weight
    backbone: Weight
    decay: Annotated[float, Field(gt=0.0, le=1.0)]
    teacher: Probability
    self_distillation: Probability


@typed
class HeadOptimizerConfig:
    """Adam, or with decoupled weight decay AdamW.

    Attributes:
        learning_rate: the backbone's; the heads' rate is `heads_multiplier` times it.
        grad_clip: the largest norm of the whole gradient.
    """

    name: Literal["adam", "adamw"]
    learning_rate: Positive
    heads_multiplier: Positive
    beta1: Probability
    beta2: Probability
    weight_decay: NonNegative
    grad_clip: Positive
    rate: RateConfig


@typed
class LoraConfig:
    """Low-rank adapters (peft) on the backbone, instead of all of its weights.

    Attributes:
        targets: names of the layers that get an adapter, or "all-linear".
    """

    rank: AtLeastOne
    alpha: AtLeastOne
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)]
    targets: list[str] | Literal["all-linear"]


@typed
class HeadTrainConfig(StateTrainConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/heads/`.

    Attributes:
        backbone: frozen (Medusa-1), or trained together with the heads (Medusa-2).
    """

    heads: HeadsConfig
    loss: HeadLossConfig
    optimizer: HeadOptimizerConfig
    backbone: Literal["frozen", "joint"]
    lora: LoraConfig | None

    @model_validator(mode="after")
    def _fits(self) -> "HeadTrainConfig":
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
        return self


def head_fingerprint(config: HeadTrainConfig, target: str, data: str) -> str:
    """Hash what must not change when a training is resumed: all that touches the weights, not logging or paths.

    Args:
        target: `HiddenStates.identity`.
        data: `Sequences.fingerprint`.
    """
    parts = asdict(config)
    del parts["heads"]["name"]
    keys = ("heads", "loss", "optimizer", "backbone", "lora", "init", "micro_batch", "bfloat16", "seed")
    return state_fingerprint(config, {key: parts[key] for key in keys}, target, data)
