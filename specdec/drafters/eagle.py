"""A feature drafter: a layer or a few over the target's own features, which drafts autoregressively (EAGLE)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.feature_drafter import FeatureDrafter
from specdec.drafters.base.network_drafter import Drafts
from specdec.eagle.draft_rows import BlockText, TextRows, drafts_along
from specdec.eagle.eagle_network import BlockNetwork, EagleNetwork
from specdec.errors import UsageError
from specdec.models.load import describe_weights
from specdec.published.network_files import TRAINED_EAGLE
from specdec.records import EMPTY, Draft, Tree
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Siblings, grow

logger = logging.getLogger(__name__)


@typed
class EagleDrafterConfig:
    name: Literal["eagle"]
    model: str
    layers: list[Annotated[int, Field(ge=0)]] | None
    drafts: Drafts
    siblings: Siblings


@drafters.register("eagle")
class Eagle(FeatureDrafter):
    """Drafts with a network over the target's features (EAGLE 2401.15077, EAGLE-2 2406.16858, EAGLE-3 2503.01840).

    The network's law of the next token reads the features of the tokens that the target has evaluated and, from the
    second token of a draft on, states that it has made itself. A draft of depth d takes d passes of it, one for each
    level; the first is over the tokens committed in the round before. Whatever was accepted or rejected, these rows are
    made anew of the target's features. P-EAGLE networks draft all levels after the first in one pass over mask tokens
    (2602.01469), and DFlash networks all of a block, so that their nodes of one depth have one law. DSpark networks
    (2607.05147) add scores of the tokens above to each level's logits: q has them, in chains and in trees.

    q is the network's law (see `NetworkDrafter`), 0 for tokens that it cannot draft; siblings are drawn as `siblings`
    says. Where the structure has a `threshold`, the network's own probability of the drafted token (softmax at
    temperature 1) is read after every token.

    """

    capabilities = DrafterCapabilities(
        fills=EVERY_STRUCTURE, reads_states=True, reports_confidence=True, replay="start"
    )

    network: EagleNetwork | BlockNetwork

    not_finite = (
        "The EAGLE network's logits are not finite: the run stops here. Try target.dtype=float32, or check "
        "drafter.model."
    )

    def __init__(
        self,
        network: EagleNetwork | BlockNetwork,
        target: Target,
        about: Mapping[str, Any] | None = None,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
    ) -> None:
        """
        Raises:
            UsageError: a target without hidden states, or without the layers that the network reads.
        """
        try:
            offsets = network.config.offsets(target.hidden.layers)
        except ValueError as error:
            raise UsageError(f"Bad value drafter.model: {error}; use another checkpoint, or drafter.layers.") from None
        super().__init__(target, network, offsets, drafts, siblings)
        self._about = about or {}
        self.capabilities = replace(self.capabilities, vocab_size=network.vocab_size, deepest=network.config.deepest)
        self._begin(None)

    @classmethod
    def from_config(cls, config: EagleDrafterConfig, target: Target) -> "Eagle":
        network, about = TRAINED_EAGLE.open(config.model, target, "eagle", "eagle", layers=config.layers)
        if "format" in about and (boundaries := network.config.boundaries):
            form = about["format"]
            logger.info("%s (%s) reads the inputs of blocks %s of the target.", config.model, form, boundaries)
        return cls(network, target, about, config.drafts, config.siblings)

    def new_rows(self) -> TextRows | BlockText:
        return BlockText(self.network) if isinstance(self.network, BlockNetwork) else TextRows(self.network)

    def widened(self, logits: Tensor) -> Tensor:
        return self.network.over_target(logits)

    def draft(self, structure: Structure) -> Draft:
        if structure.gamma < 1 or (text := self.read()) is None:
            return EMPTY
        structure = structure.clamped(self.capabilities.deepest or structure.gamma)
        rows = text.draft(structure.gamma)
        if structure.single:
            return self.chain(rows, structure, "eagle")
        standardise = self.standardise(structure)

        def laws(tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
            return standardise(self.widened(rows.after(tokens, tree, nodes)))

        return self.checked(grow(structure, laws, self.how(structure), "eagle", self.generator))

    @torch.inference_mode()
    def chances(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Tensor | None:
        """Return q of the text's tokens, see `Drafter.chances`: a pass for each depth over all positions."""
        assert states is not None
        network, first, size = self.network, len(prompt) - 2, len(text)  # the row that predicts the text's first token
        q = torch.zeros(size, depth, dtype=torch.float64, device=self._device)
        tokens = torch.tensor([*prompt, *text], device=self._device)

        def of_step(row: int, k: int, logits: Tensor) -> None:
            begin = row - first  # the text's token that these rows draft at depth 0
            count = min(len(logits), size - begin - k)
            if count > 0:
                wide = network.over_target(logits[:count])
                q[begin : begin + count, k] = self.chances_of(wide, tokens[len(prompt) + begin + k :][:count])

        features = self._kept(states).to(self._dtype)
        drafts_along(network, tokens, features, max(0, first), depth, of_step)
        return q

    def describe(self) -> dict[str, Any]:
        return {**describe_weights(self.network), "network": asdict(self.network.config), **self._about}

    @property
    def flops_per_token(self) -> float:
        """Operations of the layers, of a Markov head and of the way to the vocabulary; those of the fusion only where
        every step has it. The pass over the tokens of the round before is left out.
        """
        network = self.network
        parts = {name: weight for name, weight in network.named_parameters() if not name.endswith("markov_w1.weight")}
        mixed = sum(weight.numel() for name, weight in parts.items() if name.startswith(("layers.", "markov_head.")))
        if network.config.form == "eagle1":
            mixed += network.fc.weight.numel()
        return 2.0 * (mixed + network.draft_size * network.config.hidden)
