"""Medusa heads (Cai et al. 2401.10774): each predicts one of the next tokens from h_t alone."""

from typing import Annotated, Literal

from pydantic import Field

from specdec.config import typed
from specdec.drafters.base import drafters
from specdec.drafters.base.heads import Drafts, HeadsDrafter
from specdec.targets.base import Target
from specdec.tree_building.siblings import Siblings


@typed
class MedusaConfig:
    name: Literal["medusa"]
    model: Annotated[str, Field(min_length=1)]
    drafts: Drafts
    siblings: Siblings


@drafters.register("medusa")
class Medusa(HeadsDrafter):
    """Lays the Cartesian product of the heads' choices on the structure's topology (2401.10774, 2.1.2): all nodes of a
    depth have one law, that of its head. One pass for all heads.
    """

    strategy, grounded, shipped = "medusa", False, "medusa"

    @classmethod
    def from_config(cls, config: MedusaConfig, target: Target) -> "Medusa":
        return cls.from_file(config.model, target, config.drafts, config.siblings)
