"""EAGLE networks as `speculators` writes them: the decoder's config apart, and layers counted by their inputs."""

from collections.abc import Sequence
from typing import Any

from specdec.eagle.feature_network import FeatureNetwork
from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.eagle_format import EagleFormat, Reading
from specdec.published.formats.eagle_published import eagle1_network, eagle3_network, refuse_layers
from specdec.published.recognise import formats
from specdec.targets.base import Target


@formats.register("speculators eagle")
class SpeculatorsEagle(EagleFormat):
    """EAGLE-1 under other names, as the converter of speculators up to v0.6 writes it."""

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get(SPECULATORS) == "eagle"

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        refuse_layers(files, layers)
        if files.setting("layernorms", bool, False):
            raise ModelLoadError(
                f"{files} has layernorms=true, which is not read: it is not established what its extra norms apply to."
            )
        renamed = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
        reading = Reading(files, files.setting("transformer_layer_config", dict), renamed)
        return eagle1_network(reading, target, files.setting("fusion_bias", bool, False))


@formats.register("speculators eagle3")
class SpeculatorsEagle3(EagleFormat):
    """EAGLE-3, with flags for its variants, and EAGLE-3.1 (`norm_output`)."""

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get(SPECULATORS) == "eagle3" and "mask_hidden" not in files.tensors

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        if files.config.get("norm_before_residual") is None:
            raise ModelLoadError(
                f"{files} has no norm_before_residual in its config.json, for which speculators takes false and vLLM "
                "true: write it there."
            )
        return _network(files, target, layers, {})


@formats.register("P-EAGLE")
class ParallelEagle(EagleFormat):
    """EAGLE-3 with mask tokens, which drafts all tokens in one pass, in the format of speculators (2602.01469)."""

    def matches(self, files: CheckpointFiles) -> bool:
        kind = files.config.get(SPECULATORS)
        return kind == "peagle" or kind == "eagle3" and "mask_hidden" in files.tensors

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        token, size = files.setting("mask_token_id", int), len(target.hidden.output_layer)
        if not 0 <= token < size:
            raise ModelLoadError(f"{files} has mask_token_id={token}, which is no token of {size}: use its own target.")
        return _network(files, target, layers, {"mask_token": token, "own_embedding": True})


def _network(
    files: CheckpointFiles, target: Target, layers: Sequence[int] | None, flags: dict[str, Any]
) -> FeatureNetwork:
    """Return the network of an EAGLE-3 decoder's config with the flags that stand beside it, and more of them."""
    decoder: dict[str, Any] = files.setting("transformer_layer_config", dict)
    width = files.config.get("target_hidden_size")
    if width is not None:
        decoder = {**decoder, "target_hidden_size": width}
        flags = {"own_embedding": True, **flags}
    keys = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    flags = flags | {key: files.setting(key, bool, False) for key in keys}
    numbers = files.config.get("eagle_aux_hidden_state_layer_ids")
    return eagle3_network(Reading(files, decoder), target, flags, numbers, layers, inputs=True)
