"""Typed recipes of `python -m specdec.train +eagle=NAME` (`conf/eagle/`): types and bounds, no values and no torch."""

from dataclasses import asdict
from typing import Annotated

from pydantic import Field, model_validator

from specdec.config import Probability, typed
from specdec.eagle.eagle_config import EagleConfig
from specdec.training.models.recipe import OptimizerConfig
from specdec.training.recipe_parts import NonNegative, Positive
from specdec.training.schedules import Weight
from specdec.training.state_recipe import StateTrainConfig, state_fingerprint


@typed
class EagleLossConfig:
    """L = sum_j decay^j (cross_entropy CE_j + regression R_j) over the steps j = 0, ..., steps - 1 of a training-time
    test (EAGLE-3, 2503.01840, section 3.2); with one step and both terms it is the loss of EAGLE-1 (2401.15077, 3.2).

    Attributes:
        steps: how often the network reads its own states in training; a draft may be longer.
        later: weight of all steps after the first, a number or a ramp over the training; where it is 0 they are not
            computed, which takes a fraction of the time.
        decay: step j has the weight decay^j.
        teacher: share of the cross entropy that is against the target's law instead of the text's token.
        cross_entropy: weight of CE_j, which is averaged over positions, in nats.
        regression: weight of R_j, the smooth L1 distance between a carried state and the target's state that it stands
            for, averaged over positions and dimensions; only in the form of EAGLE-1, whose states stand for the
            target's.
        noise: width of the uniform noise on the features, against an overfit to exact ones.
    """

    steps: Annotated[int, Field(ge=1, le=16)]
    later: Weight
    decay: Annotated[float, Field(gt=0.0, le=1.0)]
    teacher: Probability
    cross_entropy: Positive
    regression: NonNegative
    noise: NonNegative


@typed
class EagleTrainConfig(StateTrainConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/eagle/`."""

    eagle: EagleConfig
    loss: EagleLossConfig
    optimizer: OptimizerConfig

    @model_validator(mode="after")
    def _fits(self) -> "EagleTrainConfig":
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
        return self


def eagle_fingerprint(config: EagleTrainConfig, target: str, data: str) -> str:
    """Hash what must not change when a training is resumed; see `state_fingerprint`."""
    parts = asdict(config)
    del parts["eagle"]["name"]
    keys = ("eagle", "loss", "optimizer", "init", "micro_batch", "bfloat16", "seed")
    return state_fingerprint(config, {key: parts[key] for key in keys}, target, data)
