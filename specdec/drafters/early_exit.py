"""The target's own first layers as a drafter, over the target's own cache (LayerSkip 2404.16710)."""

from typing import Any, Literal

from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.network_drafter import Drafts
from specdec.drafters.small_model import SmallModel
from specdec.models.shared_decoder import SharedDecoder
from specdec.records import TextStart
from specdec.self_speculation.calibration import CalibrationTextConfig, own_model
from specdec.self_speculation.exit_layer import ExitLayer, choose_exit_layer
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.tree_building.siblings import Siblings


@typed
class EarlyExitConfig(CalibrationTextConfig):
    name: Literal["early_exit"]
    exit_layer: AtLeastOne | Literal["auto"]
    drafts: Drafts
    siblings: Siblings


@drafters.register("early_exit")
class EarlyExit(SmallModel):
    """Drafts with the target's first E layers, its final norm and its output layer (LayerSkip 2404.16710, section 4.3).

    q is the law of that model, standardised by the target's own sampling, and each token is drawn from it; under a
    greedy target, or with `drafts=greedy`, each token is the most likely one, a point mass. A draft of gamma tokens
    takes gamma calls of E layers. Chains, rows and trees are made as `small_model` makes them.

    The first E layers' keys and values of the committed text are read where the target wrote them: there is no prefill
    and no second copy of the prefix. Those of drafted tokens stand in free slots behind the target's length. The target
    computes them again when it verifies, through all layers, and writes them over these; so what it verifies depends on
    no draft, and after a rejection nothing of a draft can be read. (LayerSkip's code lets the verification begin at
    layer E + 1 instead, which saves E/L of it but holds only where both ways of computing give the same numbers.)
    Without the target's cache (a replay, or paths of a tree evaluated apart, which leaves too few slots) it has a cache
    of its own, with the same laws.

    Any decoder-only target will do, and a checkpoint that was trained for it is better by far. A LayerSkip checkpoint
    is an ordinary Llama model: `+drafter=early_exit target.model=facebook/layerskip-llama3.2-1B`.

    Attributes:
        exit: the exit layer, and how it was chosen.
    """

    capabilities = DrafterCapabilities(
        fills=EVERY_STRUCTURE, runs_target=True, reports_confidence=True, replay="position"
    )
    strategy = "early_exit"

    def __init__(
        self,
        target: Causal,
        chosen: ExitLayer,
        drafts: Drafts = "sampled",
        siblings: Siblings = "without_replacement",
    ) -> None:
        """
        Raises:
            UsageError: a model whose layout is not known.
            ModelLoadError: a model whose first layers do not work alone.
        """
        self.exit, self._layers = chosen, target.decoder.layers
        self._shared = SharedDecoder(target.decoder, chosen.layer)
        super().__init__(self._shared.model, target, decoder=self._shared, drafts=drafts, siblings=siblings)

    @classmethod
    def from_config(cls, config: EarlyExitConfig, target: Target) -> "EarlyExit":  # type: ignore[override]
        whole = own_model(target, "early_exit")
        return cls(whole, choose_exit_layer(config.exit_layer, config, whole), config.drafts, config.siblings)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._shared.in_step = text.in_step
        super().start(text, states)

    def describe(self) -> dict[str, Any]:
        chosen = {"exit_layer": self.exit.layer, "layers": self._layers, "exit_layer_by": self.exit.by}
        worths = {str(layer): worth for layer, worth in self.exit.worths.items()}
        return {**super().describe(), **chosen, **({"exit_layers": worths} if worths else {})}
