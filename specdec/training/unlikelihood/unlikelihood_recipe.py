"""Typed recipes of `python -m specdec.train +unlikelihood=NAME` (`conf/unlikelihood/`): types and bounds, no values and
no torch.
"""

from pydantic import model_validator

from specdec.config import AtLeastOne, Probability, typed
from specdec.training.models.recipe import Name
from specdec.training.recipe_parts import Positive
from specdec.training.whole_model_recipe import AdaptationConfig


@typed
class UnlikelihoodConfig:
    """The text that a model writes in a step, and what of it is made unlikely (Welleck et al., 1908.04319).

    Attributes:
        prefix_tokens: tokens of a sequence that the model is shown; it goes on greedily to the sequence's length.
        weight: of the unlikelihood, beside 1 for the cross entropy of the text.
        repetition_period: the longest period of a loop, in tokens.
        repetition_tokens: the least tokens of a loop that is made unlikely; see `text.repetition.loop_marks`.
        repetition_share: a text of which at least this share lies in one loop counts as looping, as in a run.
    """

    name: Name
    prefix_tokens: AtLeastOne
    weight: Positive
    repetition_period: AtLeastOne
    repetition_tokens: AtLeastOne
    repetition_share: Probability


@typed
class UnlikelihoodTrainConfig(AdaptationConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/unlikelihood/`; pocket is the target that comes with
    specdec.
    """

    unlikelihood: UnlikelihoodConfig

    @model_validator(mode="after")
    def _leaves_room(self) -> "UnlikelihoodTrainConfig":
        if not self.data.packed:
            raise ValueError("data.packed=False: the model goes on with texts that fill a sequence; use true")
        if self.unlikelihood.prefix_tokens >= self.data.sequence_length:
            raise ValueError(
                f"unlikelihood.prefix_tokens={self.unlikelihood.prefix_tokens} leaves nothing to write in sequences of "
                f"data.sequence_length={self.data.sequence_length}"
            )
        return self
