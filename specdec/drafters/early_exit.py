"""The target's own first layers as a drafter, over the target's own cache (LayerSkip 2404.16710)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import drafters
from specdec.drafters.base.calibration import CalibrationText, CalibrationTextConfig, Worth, own_model
from specdec.drafters.base.network_drafter import Drafts, DrawnConfig
from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.partial import block_parts, blocks_of, partial_model
from specdec.progress import stage
from specdec.records import TextStart
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.tree_building.siblings import Siblings

_FORMAT = "specdec exit layers 1"


@typed
class EarlyExitConfig(CalibrationTextConfig, DrawnConfig):
    exit_layer: AtLeastOne | Literal["auto"]


@dataclass(frozen=True)
class ExitLayer:
    layer: int  # number of the layers that draft, from the first on
    by: Literal["config", "checkpoint", "calibration"]  # the run's, the model's, or the best of all
    worths: dict[int, dict[str, Any]]  # by calibration, of this or an earlier run: exit layer -> `Worth` as a mapping


@drafters.register("early_exit")
class EarlyExit(SmallModel):
    """Drafts with the target's first E layers, its final norm and its output layer (LayerSkip 2404.16710, section 4.3).

    q is the law of that model (see `NetworkDrafter`). A draft of gamma tokens takes gamma calls of E layers. Chains,
    rows and trees are made as `small_model` makes them.

    The keys and values of the committed text are read where the target wrote them, see `SharedDecoder`. The target
    computes those of drafted tokens again when it verifies, through all layers: what it verifies depends on no draft.
    (LayerSkip's code lets the verification begin at layer E + 1 instead, which saves E/L of it but
    holds only where both ways of computing give the same numbers.) Without the target's cache, as in a replay, it has
    one of its own, with the same laws.

    Any decoder-only target will do, and a checkpoint that was trained for it is better by far. A LayerSkip checkpoint
    is an ordinary Llama model: `+drafter=early_exit target.model=facebook/layerskip-llama3.2-1B`.
    """

    capabilities = replace(SmallModel.capabilities, runs_target=True)
    strategy = "early_exit"

    def __init__(
        self, target: Causal, chosen: ExitLayer, drafts: Drafts = "sampled", siblings: Siblings = "without_replacement"
    ) -> None:
        """Raises UsageError: a model of unknown layout; ModelLoadError: one whose first layers do not work alone."""
        self.exit, self._layers = chosen, target.decoder.layers
        self._shared = SharedDecoder(target.decoder, chosen.layer)
        super().__init__(self._shared.model, target, decoder=self._shared, drafts=drafts, siblings=siblings)

    @classmethod
    def from_config(cls, config: EarlyExitConfig, target: Target) -> "EarlyExit":  # type: ignore[override]
        whole = own_model(target, "early_exit")
        return cls(whole, choose_exit_layer(config, whole), config.drafts, config.siblings)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._shared.in_step = text.in_step
        super().start(text, states)

    def describe(self) -> dict[str, Any]:
        chosen = {"exit_layer": self.exit.layer, "layers": self._layers, "exit_layer_by": self.exit.by}
        worths = {str(layer): worth for layer, worth in self.exit.worths.items()}
        return {**super().describe(), **chosen, **({"exit_layers": worths} if worths else {})}


class SharedDecoder(Decoder):
    """The first layers of another decoder's model, over that decoder's cache while both are in step. Both have lengths
    of their own, so that nothing has to be rolled back before the other decoder verifies. Out of step, and for a text
    whose drafts need more slots than the other cache has, it has a cache of its own. Set `in_step` before `start`: it
    says whether the next text is one that the other decoder has begun.
    """

    def __init__(self, decoder: Decoder, layers: int) -> None:
        """Raises UsageError: see `partial_model`; ModelLoadError: see `Decoder`."""
        model = partial_model(decoder.model, block_parts(range(layers, decoder.layers)), decoder.name)
        super().__init__(model, decoder.name, decoder.prefill_chunk)
        self.in_step, self.probed = False, decoder.probed
        self._other = decoder

    def cache_for_passes(self, capacity: int, copies: int) -> KVCache | None:
        """Return slots of the cache that the other decoder's passes write into; None where it has none."""
        return None if self._other.passes is None else self._other.passes.cache.shared(self.layers)

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text (see `Decoder.start`); nothing is evaluated where the other decoder has done it."""
        if self.in_step and capacity <= self._other.cache.capacity:
            self._share()
            self.length = self._other.length
            return prompt[-1]
        return super().start(prompt, capacity, copies)

    def follow(self) -> int:
        if self.cache.over is None:
            return 0
        self._share()
        return self._other.length

    def _share(self) -> None:
        """Use the slots of the other decoder's present cache, which may be another one than before."""
        cache, passes = self._other.cache, self.passes
        if self.cache.over is not cache:
            kept = passes is not None and passes.cache.over is cache
            self.cache = passes.cache if passes is not None and kept else cache.shared(self.layers)


def choose_exit_layer(config: EarlyExitConfig, target: Causal) -> ExitLayer:
    """Return the exit layer that a run asks for. "auto" takes the checkpoint's own, where it names one, or else the one
    with the largest Omega / (1 + gamma c) along the calibration text; c is its share of the operations. Raises
    UsageError: an exit layer that is not below the model's depth; a model of fewer than two layers, or of unknown
    layout; see `CalibrationText` and its `once`.
    """
    asked, name, layers = config.exit_layer, target.name, len(blocks_of(target.model, target.name))
    if asked != "auto":
        _check(asked, layers, f"Bad value drafter.exit_layer={asked}")
        return ExitLayer(asked, "config", {})
    if layers < 2:
        raise UsageError(f"Bad value drafter=early_exit: model {name} has {layers} layer, so there is nothing to skip.")
    # A checkpoint may name it, in the configuration of the generation (transformers) or in that of the model.
    configs, keys = (target.model.generation_config, target.model.config), ("assistant_early_exit", "exit_layer")
    values = [getattr(config, key, None) for config in configs for key in keys]
    named = next((value for value in values if isinstance(value, int) and value > 0), None)
    if named is not None:
        _check(named, layers, f"Bad value drafter.exit_layer=auto: model {name} names exit layer {named}")
        return ExitLayer(named, "checkpoint", {})
    calibration = CalibrationText(config, target)

    def compare() -> dict[int, dict[str, Any]]:
        worths, _ = dict[int, Worth](), calibration.text  # first: it is no part of the first layer's time
        shorter = "drafter.exit_layer=N takes N layers at once"
        # From the middle on: the first ones tell the mean time, of which the foremost take a third and the last more.
        order = sorted(range(1, layers), key=lambda layer: abs(2 * layer - layers))
        with stage("comparing exit layers", total=layers - 1, told=False, shorter=shorter) as under_way:
            for layer in order:
                worths[layer] = calibration.worth(partial_model(target.model, block_parts(range(layer, layers)), name))
                under_way.advance()
        return {layer: asdict(worths[layer]) for layer in sorted(worths)}

    def read(values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        return {int(layer): asdict(Worth(**worth)) for layer, worth in dict(values["worths"]).items()}

    settings = {"format": _FORMAT}
    worths = calibration.once("comparison of exit layers", settings, compare, lambda made: {"worths": made}, read)
    best = max(worths, key=lambda layer: (worths[layer]["speedup"], -layer))
    return ExitLayer(best, "calibration", worths)


def _check(layer: int, layers: int, what: str) -> None:
    if layers < 2:
        raise UsageError(f"{what}: the target has {layers} layer, so there is nothing to skip; use another drafter.")
    if not 1 <= layer < layers:
        raise UsageError(f"{what}: the target has {layers} layers; give a number from 1 to {layers - 1}, or auto.")
