"""Blockwise parallel decoding (Stern et al. 1811.03115): heads predict the next block of tokens at once."""

from specdec.config import Named, NonEmpty, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.heads import Drafts, HeadsDrafter, HeadsDrafterConfig
from specdec.targets.base import Target


@typed
class BlockwiseHeadsConfig(Named):
    model: NonEmpty
    drafts: Drafts


@drafters.register("blockwise")
class BlockwiseHeads(HeadsDrafter):
    """Drafts a chain of each head's own choice (1811.03115, section 3), with heads like those of Medusa. The verifier
    `blockwise` has the paper's rules for which of them stay.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), reads_states=True, replay="start")
    strategy, grounded, shipped = "blockwise", False, "medusa"

    @classmethod
    def from_config(cls, config: BlockwiseHeadsConfig, target: Target) -> "BlockwiseHeads":  # type: ignore[override]
        return super().from_config(HeadsDrafterConfig(**vars(config), siblings="without_replacement"), target)
