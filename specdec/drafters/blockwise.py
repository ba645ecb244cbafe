"""Blockwise parallel decoding (Stern et al. 1811.03115): heads predict the next block of tokens at once."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from specdec.config import typed
from specdec.drafters.base import drafters
from specdec.drafters.base.heads import Drafts, HeadsDrafter

if TYPE_CHECKING:
    from specdec.targets.base import Target


@typed
class BlockwiseConfig:
    name: Literal["blockwise"]
    model: Annotated[str, Field(min_length=1)]
    drafts: Drafts


@drafters.register("blockwise")
class Blockwise(HeadsDrafter):
    """A chain of each head's own choice (1811.03115, section 3), from heads as Medusa's. Which of them stay is the
    verifier's business: `blockwise` has the paper's rules.
    """

    fills = frozenset({"chain"})
    strategy, grounded, shipped = "blockwise", False, "medusa"

    def __init__(self, config: BlockwiseConfig, target: "Target") -> None:
        super().__init__(config.model, config.drafts, "without_replacement", target)
