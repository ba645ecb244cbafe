"""Grounded heads ("Not So Speculative Decoding", later Hydra, 2402.05109): each also reads what was drafted before."""

from typing import Annotated, Literal

from pydantic import Field

from specdec.config import typed
from specdec.drafters.base import drafters
from specdec.drafters.base.heads import Drafts, HeadsDrafter
from specdec.targets.base import Target
from specdec.tree_building.siblings import Siblings


@typed
class GroundedConfig:
    name: Literal["grounded"]
    model: Annotated[str, Field(min_length=1)]
    drafts: Drafts
    siblings: Siblings


@drafters.register("grounded")
class Grounded(HeadsDrafter):
    """Continues each path of a draft by what the next head says after it (2402.05109, section 3), so that siblings have
    different children. One pass for each level, over all of its nodes that have children.
    """

    strategy, grounded, shipped = "grounded", True, "grounded"

    @classmethod
    def from_config(cls, config: GroundedConfig, target: Target) -> "Grounded":
        return cls.from_file(config.model, target, config.drafts, config.siblings)
