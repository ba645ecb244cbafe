"""Typed recipes of `python -m specdec.train +parallel=NAME` (`conf/parallel/`): types and bounds, no values and no
torch.
"""

from typing import Annotated

from pydantic import Field, NonNegativeInt, model_validator

from specdec.config import Probability, typed
from specdec.training.models.recipe import Name
from specdec.training.whole_model_recipe import AdaptationConfig


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
class ParallelTrainConfig(AdaptationConfig):
    """The root of `conf/train.yaml` with a recipe of `conf/parallel/`; pocket is the drafter that comes with specdec. A
    model that drafts in parallel already goes on with its mask token.
    """

    parallel: SubtasksConfig

    @model_validator(mode="after")
    def _fits(self) -> "ParallelTrainConfig":
        if self.data.sequence_length <= self.parallel.ahead:
            raise ValueError(
                f"parallel.ahead={self.parallel.ahead} tokens do not fit into sequences of "
                f"data.sequence_length={self.data.sequence_length}"
            )
        return self
