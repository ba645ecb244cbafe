"""Published checkpoints that are EAGLE networks: the config of a network is told from its decoder's config where that
speaks, and from the tensors where configs of one format differ in what they leave out.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specdec.config import validated
from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.eagle_network import eagle_network
from specdec.eagle.feature_network import FeatureNetwork
from specdec.errors import ModelLoadError, UsageError
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import NetworkFormat, check_target, weights_of
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

DECODER_LAYER = "layers.0.self_attn.q_proj.weight"


class EagleFormat(NetworkFormat):
    """A format of EAGLE networks. `load` takes `layers`: boundaries of the target that the features are taken from, in
    place of what the config says.
    """

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
        activation = config.get("hidden_act") or "silu"
        if activation != "silu":
            raise ModelLoadError(f"{files} has hidden_act={activation!r} in its config.json: only silu is read.")
        if config.get("mlp_bias"):
            raise ModelLoadError(f"{files} has mlp_bias=true in its config.json: only MLPs without one are read.")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a matrix that the network calls so. Raises ModelLoadError: there is none, or it is no
        matrix.
        """
        if name not in self.places:
            raise ModelLoadError(f"{self.files} lacks {name}: get the checkpoint as it was published.")
        shape = self.files.tensors[self.places[name]]
        if len(shape) != 2:
            raise ModelLoadError(f"{self.files} has {name} of shape {list(shape)} in place of a matrix.")
        return shape

    def number(self, key: str, default: int | None = None) -> int:
        """Return a whole number of the decoder's config. Raises ModelLoadError: it is missing and has no default, or is
        something else.
        """
        value = self.files.setting(key, int, default, self.config)
        if value < 1:
            raise ModelLoadError(f"{self.files} has {value} as {key} in its config.json: it should be a whole number.")
        if key == "num_hidden_layers":
            self.files.check_parts(key, value)
        return value

    def decoder(self) -> dict[str, Any]:
        """Return the values of `EagleConfig` that all formats have in common. Raises ModelLoadError: a missing or wrong
        value, a rotary scaling that is not read.
        """
        at = "layers.0.self_attn."
        heads = self.number("num_attention_heads")
        rows, _ = self.shape(DECODER_LAYER)
        if rows % heads:
            raise ModelLoadError(
                f"{self.files} has {rows} rows in {at}q_proj.weight, which its {heads} heads do not divide."
            )
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
            if not (ids.diff() > 0).all() or ids[0] < 0 or ids[-1] >= network.vocab_size:
                raise ModelLoadError(
                    f"{self.files} has a d2t that gives no ascending ids below {network.vocab_size}: it should hold "
                    "the distance from each draft token's number to the target's."
                )
            drafted = torch.zeros(network.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
            if not torch.equal(weights.setdefault("t2d", drafted).bool(), drafted):
                raise ModelLoadError(f"{self.files} has d2t and t2d that name different tokens: fetch it again.")
            weights["t2d"] = drafted
        network.load_state_dict(weights, assign=True)
        return network.to(target.device, output.dtype).eval().requires_grad_(False)
