"""EAGLE-1, EAGLE-2 (the same files) and EAGLE-3 as their authors, SpecForge and ModelOpt publish them, and as
`speculators` writes them: the decoder's config apart, and layers counted by their inputs.

The config of a network is told from its decoder's config where that speaks, and from the tensors where configs of one
format differ in what they leave out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specdec.config import validated
from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.eagle_network import FeatureNetwork, eagle_network
from specdec.errors import ModelLoadError, UsageError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles
from specdec.published.recognise import NetworkFormat, check_target, formats, weights_of
from specdec.targets.base import Target

_DECODER_LAYER = "layers.0.self_attn.q_proj.weight"
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # keys of configs


class EagleFormat(NetworkFormat):
    """A format of EAGLE networks. `load` takes `layers`, boundaries of the target in place of the config's."""

    drafters = ("eagle",)


class Reading:
    """One checkpoint while it is read."""

    def __init__(
        self, files: CheckpointFiles, config: Mapping[str, Any], renamed: Mapping[str, str] | None = None
    ) -> None:
        """Raises ModelLoadError: an activation other than SiLU, or biases in the MLP."""
        self.files, self.config = files, config
        self.places: dict[str, str] = {}  # the network's name of a tensor -> its name in the file
        for name in files.tensors:
            own = next((new + name[len(old) :] for old, new in (renamed or {}).items() if name.startswith(old)), name)
            self.places[own] = name
        kind = config.get("hidden_act") or "silu"
        files.refuse_if(kind != "silu", f"has hidden_act={kind!r} in its config.json: only silu is read.")
        files.refuse_if(config.get("mlp_bias"), "has mlp_bias=true in its config.json: only MLPs without one are read.")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the matrix that the network calls so. Raises ModelLoadError: there is no such matrix."""
        self.files.refuse_if(name not in self.places, f"lacks {name}: get the checkpoint as it was published.")
        shape = self.files.tensors[self.places[name]]
        self.files.refuse_if(len(shape) != 2, f"has {name} of shape {list(shape)} in place of a matrix.")
        return shape

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number of the decoder's config. ModelLoadError: missing without a default, or another kind."""
        value = self.files.setting(key, int, default, self.config)
        self.files.refuse_if(value < 1, f"has {value} as {key} in its config.json: it should be a whole number.")
        if key == "num_hidden_layers":
            self.files.check_parts(key, value)
        return value

    def decoder(self) -> dict[str, Any]:
        """Return the values that all formats share. Raises ModelLoadError: a wrong value, a rotary scaling not read."""
        at = "layers.0.self_attn."
        heads = self.number("num_attention_heads")
        rows, _ = self.shape(_DECODER_LAYER)
        undivided = f"has {rows} rows in {at}q_proj.weight, which its {heads} heads do not divide."
        self.files.refuse_if(rows % heads, undivided)
        biased = at + "q_proj.bias" in self.places or bool(self.config.get("qkv_bias"))
        whole = at + "o_proj.bias" in self.places or bool(self.config.get("attention_bias"))
        eps = self.config.get("rms_norm_eps")
        return {
            "name": Path(self.files.name).name or "eagle",
            "hidden": self.number("hidden_size"),
            "intermediate": self.number("intermediate_size"),
            "heads": heads,
            "kv_heads": self.number("num_key_value_heads", heads),
            "head_dim": rows // heads,
            "rope_theta": self.rotary("rope_theta") or 10000.0,  # never the target's
            "rope_scaling": self._scaling(),
            "rms_eps": 1e-6 if eps is None else eps,
            "attention_bias": "qkvo" if whole else "qkv" if biased else "none",
            "qk_norm": at + "q_norm.weight" in self.places,
        }

    def rotary(self, key: str) -> Any:
        """Return a value of the rotary positions, in either spelling; None where there is none."""
        inner = self.config.get("rope_parameters")
        value = self.config.get(key)
        return inner.get(key) if value is None and isinstance(inner, Mapping) else value

    def _scaling(self) -> dict[str, Any] | None:
        scaling = self.config.get("rope_scaling") or self.config.get("rope_parameters")
        if not isinstance(scaling, Mapping):
            return None
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return None
        if kind == "linear":
            return {"kind": kind, "factor": scaling.get("factor")}
        if kind == "llama3":
            keys = {"factor": "factor", "low": "low_freq_factor", "high": "high_freq_factor"}
            keys["original"] = "original_max_position_embeddings"
            return {"kind": kind} | {own: scaling.get(theirs) for own, theirs in keys.items()}
        raise ModelLoadError(
            f"{self.files} has the rotary scaling {kind!r} in its config.json: linear and llama3 are read, because "
            "others change with the length of the text or are not established for drafters."
        )

    def network(self, target: Target, values: dict[str, Any], unused: Sequence[str] = ()) -> FeatureNetwork:
        """Return the network of these values, with exactly the file's tensors but those `unused`, which may be there.
        Raises ModelLoadError: tensors that are missing, too many or of another shape; values that do not fit.
        """
        try:
            config = validated(EagleConfig, values)
        except UsageError as error:
            raise ModelLoadError(f"{self.files} has a config.json that does not fit: {error}") from None
        vocabulary = None if self.config.get("vocab_size") is None else self.number("vocab_size")
        check_target(self.files, target, width=config.target_hidden, vocabulary=vocabulary)
        embedding, output = target.hidden.embedding, target.hidden.output_layer
        with torch.device("meta"):  # makes no weights, because those of the file are assigned
            network = eagle_network(config, embedding, output)
        shapes: dict[str, tuple[int, ...] | None] = {}
        if config.mask_token is not None and "mask_hidden" in self.places:  # three shapes are about
            shape, size = self.files.tensors[self.places["mask_hidden"]], config.features * config.target_hidden
            shapes["mask_hidden"] = shape if shape in ((1, size), (1, 1, size)) else (size,)
        reduced = config.draft_vocabulary is not None
        if reduced:
            shapes["d2t"] = (network.draft_size,)
            # Some exporters leave it out: it follows from d2t.
            shapes["t2d"] = (network.vocab_size,) if "t2d" in self.places else None
        optional = {self.places[name]: self.files.tensors[self.places[name]] for name in unused if name in self.places}
        weights = weights_of(self.files, network, lambda name: self.places.get(name, name), shapes, optional)
        if "mask_hidden" in weights:
            weights["mask_hidden"] = weights["mask_hidden"].flatten()
        if reduced:  # d2t holds distances, never ids
            weights["d2t"] = weights["d2t"].long()
            ids = weights["d2t"] + torch.arange(network.draft_size)
            self.files.refuse_if(
                not (ids.diff() > 0).all() or ids[0] < 0 or ids[-1] >= network.vocab_size,
                f"has a d2t that gives no ascending ids below {network.vocab_size}: it should hold the distance from "
                "each draft token's number to the target's.",
            )
            drafted = torch.zeros(network.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
            same = torch.equal(weights.setdefault("t2d", drafted).bool(), drafted)
            self.files.refuse_if(not same, "has d2t and t2d that name different tokens: fetch it again.")
            weights["t2d"] = drafted
        network.load_state_dict(weights, assign=True)
        return network.to(target.device, output.dtype).eval().requires_grad_(False)


@formats.register("EAGLE-1")
class Eagle1(EagleFormat):
    """One decoder layer without a norm before its attention, over [embedding; feature] (2401.15077). EAGLE-2 drafts
    with the same files: structure=dynamic. The file's copy of the target's embeddings is not read.
    """

    def matches(self, files: CheckpointFiles) -> bool:
        own = {"fc.weight", _DECODER_LAYER, "layers.0.post_attention_layernorm.weight"}
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
        unknown = "has use_aux_hidden_state=false, which is not read: it is not established where its norms stand."
        files.refuse_if(options.get("use_aux_hidden_state") is False, unknown)
        files.refuse_if(
            options.get("norm_output"),
            "has norm_output=true, which meant plain EAGLE-3 until September 2026 and EAGLE-3.1 since: set it to false "
            "in config.json for the first, or publish it as speculators for the second.",
        )
        reading = Reading(files, files.config, {"midlayer.": "layers.0."})
        numbers, flags = options.get("eagle_aux_hidden_state_layer_ids"), {key: options.get(key) for key in _NORMS}
        return _eagle3_network(reading, target, flags, numbers, layers, inputs=False)


@formats.register("speculators eagle")
class SpeculatorsEagle(EagleFormat):
    """EAGLE-1 under other names, as the converter of speculators up to v0.6 writes it."""

    speculators = "eagle"

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        unknown = "has layernorms=true, which is not read: it is not established what its extra norms apply to."
        files.refuse_if(files.setting("layernorms", bool, False), unknown)
        renamed = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
        reading = Reading(files, files.setting("transformer_layer_config", dict), renamed)
        return _eagle1_network(reading, target, layers, files.setting("fusion_bias", bool, False))


@formats.register("speculators eagle3")
class SpeculatorsEagle3(EagleFormat):
    """EAGLE-3, with flags for its variants, and EAGLE-3.1 (`norm_output`)."""

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get(SPECULATORS) == "eagle3" and "mask_hidden" not in files.tensors

    def load(self, files: CheckpointFiles, target: Target, layers: Sequence[int] | None) -> FeatureNetwork:
        files.refuse_if(
            files.config.get("norm_before_residual") is None,
            "has no norm_before_residual in its config.json, for which speculators takes false and vLLM true: write it "
            "there.",
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
        outside = f"has mask_token_id={token}, which is no token of {size}: use its own target."
        files.refuse_if(not 0 <= token < size, outside)
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
    files = reading.files
    fixed = "reads the state that the target's output layer reads: set drafter.layers=null."
    files.refuse_if(layers is not None, fixed)
    files.refuse_if(reading.number("num_hidden_layers", 1) != 1, "has several layers: an EAGLE-1 network has one.")
    values = reading.decoder()
    values |= {"form": "eagle1", "boundaries": [], "target_hidden": values["hidden"], "own_output": False}
    values["fc_bias"] = fc_bias or "fc.bias" in reading.places
    return reading.network(target, values, ["embed_tokens.weight"])


def _boundaries(files: CheckpointFiles, numbers: Any, features: int, depth: int, inputs: bool) -> list[int]:
    """Return the inputs of blocks that a checkpoint's layer numbers mean, for a target of `depth` blocks.

    A list that begins with 1 counts outputs of blocks, as SpecForge and ModelOpt do, so each stands for the input of
    the next block; one that begins with 2 counts inputs (the rule of sgl-project/sglang#25454). Without numbers
    EAGLE-3's own are meant: 2, half the depth, and 3 before the end. Numbers that begin with neither 1 nor 2 are inputs
    of blocks where `inputs` says so; otherwise that is not known. `features` is the number of layers that `fc` reads.
    """
    if numbers is None and features == 3 and depth >= 6:
        return [2, depth // 2, depth - 3]
    files.refuse_if(
        numbers is None,
        f"does not say which {features} layers of the target it reads, and the usual ones do not fit a target of "
        f"{depth} layers: give drafter.layers.",
    )
    whole_numbers = isinstance(numbers, list) and numbers and all(type(number) is int for number in numbers)
    files.refuse_if(not whole_numbers, f"has the layer numbers {numbers!r}: they should be a list of whole numbers.")
    differs = f"names the {len(numbers)} layers {numbers}, and its fc reads {features}."
    files.refuse_if(len(numbers) != features, differs)
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
    """Return a network of the EAGLE-3 form. `layers`, of `drafter.layers`, count instead of what numbers and inputs
    give (see `_boundaries`). Of flags of `EagleConfig` that are None, tensors tell the norms before `fc`.
    """
    files, values = reading.files, reading.decoder()
    width, depth = reading.number("target_hidden_size", values["hidden"]), target.hidden.layers
    vocabulary = len(target.hidden.output_layer)
    joined = reading.shape("fc.weight")[1]
    files.refuse_if(joined % width, f"has fc for {joined} values, which are no features of width {width}.")
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
