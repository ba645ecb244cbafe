"""Grounded heads ("Not So Speculative Decoding", later Hydra, 2402.05109): each also reads what was drafted before."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from specdec.config import typed
from specdec.drafters.base import drafters
from specdec.drafters.base.heads import Drafts, HeadsDrafter
from specdec.tree_building.siblings import Siblings

if TYPE_CHECKING:
    from specdec.targets.base import Target


@typed
class GroundedConfig:
    name: Literal["grounded"]
    model: Annotated[str, Field(min_length=1)]
    drafts: Drafts
    siblings: Siblings


@drafters.register("grounded")
class Grounded(HeadsDrafter):
    """Each path of a draft goes on by what the next head says after it (2402.05109, section 3), so that siblings have
    children of their own. One pass for each level, over all of its nodes that have children.
    """

    strategy, grounded, shipped = "grounded", True, "grounded"

    def __init__(self, config: GroundedConfig, target: "Target") -> None:
        super().__init__(config.model, config.drafts, config.siblings, target)
