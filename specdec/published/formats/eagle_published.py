"""EAGLE-1, EAGLE-2 (the same files) and EAGLE-3 as their authors, SpecForge and ModelOpt publish them, and as
`speculators` writes them: the decoder's config apart, and layers counted by their inputs.
"""

from collections.abc import Sequence
from typing import Any

from specdec.eagle.feature_network import FeatureNetwork
from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.eagle_format import DECODER_LAYER, EagleFormat, Reading
from specdec.published.recognise import formats
from specdec.targets.base import Target

_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # keys of configs


@formats.register("EAGLE-1")
class Eagle1(EagleFormat):
    """One decoder layer without a norm before its attention, over [embedding; feature] (2401.15077). EAGLE-2 drafts
    with the same files: structure=dynamic.

    `fc` has a bias where the file has one. The file's copy of the target's embeddings is not read.
    """

    def matches(self, files: CheckpointFiles) -> bool:
        own = {"fc.weight", DECODER_LAYER, "layers.0.post_attention_layernorm.weight"}
        return (
            SPECULATORS not in files.config
            and own <= files.tensors.keys()
            and not {"layers.0.hidden_norm.weight", "hidden_norm.weight", "mask_hidden"} & files.tensors.keys()
        )

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        return _eagle1_network(Reading(files, files.config), target, layers, bool(files.config.get("bias")))


@formats.register("EAGLE-3")
class Eagle3(EagleFormat):
    """A decoder layer over [embedding; fused features], with an output layer of its own over all or some of the
    target's tokens (2503.01840). The first layer is called `midlayer` or `layers.0`.
    """

    def matches(self, files: CheckpointFiles) -> bool:
        return (
            SPECULATORS not in files.config
            and "fc.weight" in files.tensors
            and bool({"midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"} & files.tensors.keys())
            and "mask_hidden" not in files.tensors
            and not any("kv_a_proj" in name for name in files.tensors)
        )

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        options = files.setting("eagle_config", dict, {}) | files.config
        if options.get("use_aux_hidden_state") is False:
            raise ModelLoadError(
                f"{files} has use_aux_hidden_state=false, which is not read: it is not established where its norms "
                "stand."
            )
        if options.get("norm_output"):
            raise ModelLoadError(
                f"{files} has norm_output=true, which meant plain EAGLE-3 until September 2026 and EAGLE-3.1 since: "
                "set it to false in config.json for the first, or publish it as speculators for the second."
            )
        reading = Reading(files, files.config, {"midlayer.": "layers.0."})
        numbers, flags = options.get("eagle_aux_hidden_state_layer_ids"), {key: options.get(key) for key in _NORMS}
        return _eagle3_network(reading, target, flags, numbers, layers, inputs=False)


@formats.register("speculators eagle")
class SpeculatorsEagle(EagleFormat):
    """EAGLE-1 under other names, as the converter of speculators up to v0.6 writes it."""

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get(SPECULATORS) == "eagle"

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        if files.setting("layernorms", bool, False):
            raise ModelLoadError(
                f"{files} has layernorms=true, which is not read: it is not established what its extra norms apply to."
            )
        renamed = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
        reading = Reading(files, files.setting("transformer_layer_config", dict), renamed)
        return _eagle1_network(reading, target, layers, files.setting("fusion_bias", bool, False))


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
        return _network(files, target, layers)


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
        return _network(files, target, layers, token)


def _network(
    files: CheckpointFiles, target: Target, layers: Sequence[int] | None, mask_token: int | None = None
) -> FeatureNetwork:
    """Return the network of an EAGLE-3 decoder's config, with what stands beside it."""
    width = {"target_hidden_size": files.config.get("target_hidden_size")}
    decoder: dict[str, Any] = files.setting("transformer_layer_config", dict) | width
    flags = {key: files.setting(key, bool, False) for key in _NORMS} | {"mask_token": mask_token}
    numbers = files.config.get("eagle_aux_hidden_state_layer_ids")
    return _eagle3_network(Reading(files, decoder), target, flags, numbers, layers, inputs=True)


def _eagle1_network(reading: Reading, target: Target, layers: Sequence[int] | None, fc_bias: bool) -> FeatureNetwork:
    """Return a network of the EAGLE-1 form; where `fc_bias` is false, the tensors tell whether `fc` has a bias."""
    if layers is not None:
        raise ModelLoadError(
            f"{reading.files} reads the state that the target's output layer reads: set drafter.layers=null."
        )
    if reading.number("num_hidden_layers", 1) != 1:
        raise ModelLoadError(f"{reading.files} has several layers: an EAGLE-1 network has one.")
    values = reading.decoder()
    values |= {"form": "eagle1", "boundaries": [], "target_hidden": values["hidden"], "own_output": False}
    return reading.network(
        target, values | {"fc_bias": fc_bias or "fc.bias" in reading.places}, ["embed_tokens.weight"]
    )


def _boundaries(files: CheckpointFiles, numbers: Any, features: int, depth: int, inputs: bool) -> list[int]:
    """Return the inputs of blocks that a checkpoint's layer numbers mean, for a target of `depth` blocks.

    A list that begins with 1 counts outputs of blocks, as SpecForge and ModelOpt do, so each stands for the input of
    the next block; one that begins with 2 counts inputs (the rule of sgl-project/sglang#25454). Without numbers
    EAGLE-3's own are meant: 2, half the depth, and 3 before the end. Numbers that begin with neither 1 nor 2 are inputs
    of blocks where `inputs` says so; otherwise that is not known. `features` is the number of layers that `fc` reads.
    """
    if numbers is None and features == 3 and depth >= 6:
        return [2, depth // 2, depth - 3]
    if numbers is None:
        raise ModelLoadError(
            f"{files} does not say which {features} layers of the target it reads, and the usual ones do not fit a "
            f"target of {depth} layers: give drafter.layers."
        )
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers) or not numbers:
        raise ModelLoadError(f"{files} has the layer numbers {numbers!r}: they should be a list of whole numbers.")
    if len(numbers) != features:
        raise ModelLoadError(f"{files} names the {len(numbers)} layers {numbers}, and its fc reads {features}.")
    if numbers[0] == 1:
        return [number + 1 for number in numbers]
    if numbers[0] != 2 and not inputs:
        given, above = (f"[{','.join(map(str, each))}]" for each in (numbers, [number + 1 for number in numbers]))
        raise ModelLoadError(
            f"{files} names the layers {numbers}, which may be inputs or outputs of blocks: give "
            f"drafter.layers={given} for inputs, or drafter.layers={above} for outputs."
        )
    return list(numbers)


def _eagle3_network(
    reading: Reading, target: Target, flags: dict[str, Any], numbers: Any, layers: Sequence[int] | None, *, inputs: bool
) -> FeatureNetwork:
    """Return a network of the EAGLE-3 form. `layers` are `drafter.layers`, boundaries that count instead of those that
    numbers and inputs give (see `_boundaries`). Flags are those of `EagleConfig`, None where the config has none; of
    norms before `fc` tensors then tell.
    """
    files, values = reading.files, reading.decoder()
    width, depth = reading.number("target_hidden_size", values["hidden"]), target.hidden.layers
    vocabulary = len(target.hidden.output_layer)
    joined = reading.shape("fc.weight")[1]
    if joined % width:
        raise ModelLoadError(f"{files} has fc for {joined} values, which are no features of width {width}.")
    features = joined // width
    if layers is not None and len(layers) != features:
        raise ModelLoadError(f"Bad value drafter.layers={list(layers)}: {files} reads {features} layers.")
    boundaries = _boundaries(files, numbers, features, depth, inputs) if layers is None else list(layers)
    drafted = files.config.get("draft_vocab_size") or reading.shape("lm_head.weight")[0]
    reduced = drafted != vocabulary
    norms = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}
    values |= {
        "form": "eagle3",
        "layers": reading.number("num_hidden_layers", 1),
        "draft_vocabulary": drafted if reduced else None,
        "boundaries": boundaries,
        "target_hidden": width,
        "fc_bias": bool(reading.config.get("bias")) or "fc.bias" in reading.places,
        "norm_before_residual": bool(flags.get("norm_before_residual")),
        "norm_output": bool(flags.get("norm_output")),
        # P-EAGLE and networks that say the target's width always have one.
        "own_embedding": "embed_tokens.weight" in reading.places
        or flags.get("mask_token") is not None
        or files.config.get("target_hidden_size") is not None,
        "mask_token": flags.get("mask_token"),
        **{key: name in reading.places if flags.get(key) is None else bool(flags[key]) for key, name in norms.items()},
    }
    return reading.network(target, values, [] if reduced else ["d2t", "t2d"])
