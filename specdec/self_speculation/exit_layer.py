"""The layer after which a target's first layers draft: given, named by the checkpoint, or found by calibration."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from specdec.errors import UsageError
from specdec.models.partial import block_parts, blocks_of, partial_model
from specdec.progress import stage
from specdec.self_speculation.calibration import CalibrationText, CalibrationTextConfig
from specdec.targets.causal import Causal

# Names under which a checkpoint may say it, in the generation's configuration (transformers) or in the model's.
_NAMES = ("assistant_early_exit", "exit_layer")


@dataclass(frozen=True)
class ExitLayer:
    """An exit layer, and how it was chosen.

    Attributes:
        layer: number of the layers that draft, from the first on.
        by: "config": the run's; "checkpoint": the model's; "calibration": the best of all.
        worths: by calibration: exit layer -> `Worth` as a mapping.
    """

    layer: int
    by: Literal["config", "checkpoint", "calibration"]
    worths: dict[int, dict[str, Any]]


def choose_exit_layer(asked: int | Literal["auto"], config: CalibrationTextConfig, target: Causal) -> ExitLayer:
    """Return the exit layer that a run asks for. "auto" takes the checkpoint's own, where it names one, or else the one
    with the largest Omega / (1 + gamma c) along the calibration text; c is its share of the operations.

    Raises:
        UsageError: an exit layer that is not below the model's depth; a model of fewer than two layers, or of unknown
            layout; see `CalibrationText`.
    """
    name, layers = target.name, len(blocks_of(target.model, target.name))
    if asked != "auto":
        return ExitLayer(_checked(asked, layers, f"Bad value drafter.exit_layer={asked}"), "config", {})
    if layers < 2:
        raise UsageError(f"Bad value drafter=early_exit: model {name} has {layers} layer, so there is nothing to skip.")
    values = [
        getattr(config, key, None) for config in (target.model.generation_config, target.model.config) for key in _NAMES
    ]
    named = next((value for value in values if isinstance(value, int) and value > 0), None)
    if named is not None:
        what = f"Bad value drafter.exit_layer=auto: model {name} names exit layer {named}"
        return ExitLayer(_checked(named, layers, what), "checkpoint", {})
    calibration = CalibrationText(config, target)
    worths, _ = {}, calibration.text  # first: it is no part of the first layer's time
    shorter = "drafter.exit_layer=N takes N layers at once"
    # From the middle on: the first ones tell the mean time, of which the foremost take a third and the last more.
    order = sorted(range(1, layers), key=lambda layer: abs(2 * layer - layers))
    with stage("comparing exit layers", total=layers - 1, told=False, shorter=shorter) as under_way:
        for layer in order:
            worths[layer] = calibration.worth(partial_model(target.model, block_parts(range(layer, layers)), name))
            under_way.advance()
    best = max(worths, key=lambda layer: (worths[layer].speedup, -layer))
    return ExitLayer(best, "calibration", {layer: asdict(worths[layer]) for layer in sorted(worths)})


def _checked(layer: int, layers: int, what: str) -> int:
    if not 1 <= layer < layers:
        raise UsageError(
            f"{what}: the target has {layers} layers; give a number from 1 to {layers - 1}, or auto."
            if layers > 1
            else f"{what}: the target has {layers} layer, so there is nothing to skip; use another drafter."
        )
    return layer
