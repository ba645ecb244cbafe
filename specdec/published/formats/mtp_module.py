"""The multi-token-prediction weights inside a target's own checkpoint, under the names of each family."""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.eagle.mtp_network import MtpNetwork
from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles, listed
from specdec.published.recognise import NetworkFormat, check_target, demand_exactly, formats
from specdec.targets.base import Target


class Layout(NamedTuple):
    """The names of a family's heads."""

    projection: re.Pattern[str]  # its name, whose group, where there is one, is the beginning of a head's names
    parts: dict[str, str]  # the network's parts of a head that have other names -> these names
    shared: str = ""  # beginning of the names that all heads share, in place of each head's own
    copies: tuple[str, ...] = ()  # endings of tensors that copy the target's embeddings and output layer: not read
    hidden_first: bool = False  # see `MtpNetwork`


LAYOUTS = (
    Layout(  # Qwen3-Next and Qwen3.5
        re.compile(r"mtp\.fc\.weight"),
        {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "norm": "norm"},
        shared="mtp.",
    ),
    Layout(  # DeepSeek-V3 and GLM-4.5
        re.compile(r"(?!.*mtp\.)((?:.+\.)?layers\.\d+\.)eh_proj\.weight"),
        {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"},
        copies=("embed_tokens.weight", "shared_head.head.weight"),
    ),
    Layout(  # MiMo
        re.compile(r"(model\.mtp_layers\.\d+\.)input_proj\.weight"),
        {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj", "norm": "final_layernorm"},
        hidden_first=True,
    ),
    Layout(  # speculators: apart from a target; the names of Qwen3-Next's own heads, under others
        re.compile(r"(mtp_layers\.\d+\.)input_proj\.weight"),
        {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj", "norm": "final_layernorm"},
    ),
)
_ASKED = "mtp.fc.weight, model.layers.N.eh_proj.weight, [model.]mtp_layers.N.input_proj.weight"
_OTHER = re.compile(r"(?:^|[._])mtp[._]|nextn")
_PACKED = re.compile(r".*(?:weight_scale(?:_inv)?|weight_packed|qweight)")
_LAYER = re.compile(r"(mtp\.layers\.\d+\.)")


@formats.register("MTP module")
class MtpModule(NetworkFormat):
    """Heads that read the target's last state (DeepSeek-V3 2412.19437, section 2.2): the embedding of token i+1 and the
    state of token i, each behind a norm, are projected, and go through a layer of the target's own kind and a norm.
    """

    drafters = ("mtp",)

    def matches(self, files: CheckpointFiles) -> bool:
        return layout_of(files) is not None

    def load(self, files: CheckpointFiles, target: Target) -> MtpNetwork:
        """See `NetworkFormat.load`. Only the heads' tensors are read; others are those of the target. Raises
        ModelLoadError: no such tensors, quantised ones, or none that fit the target; UsageError: see `MtpNetwork`.
        """
        layout = layout_of(files)
        if layout is None:
            others = sorted(name for name in files.tensors if _OTHER.search(name))
            there = f"; it has {listed(others)}, a layout that is not read" if others else ""
            raise ModelLoadError(
                f"{files} has no MTP weights that are read: there is none of {_ASKED}{there}. A checkpoint that "
                "transformers has saved lacks them: give the published one, or use another drafter."
            )
        # 1. The names of each head's tensors begin alike; of several layers, the first is the first head.
        matches = map(_LAYER.match if layout.shared else layout.projection.fullmatch, files.tensors)
        names = {match[1] for match in matches if match}
        begun = sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
        projection = next(name for name in files.tensors if layout.projection.fullmatch(name))
        check_target(files, target, width=files.tensors[projection][0])
        with torch.device("meta"):  # makes no weights, because those of the file are assigned
            network = MtpNetwork(target.model, target.hidden.output_layer, len(begun), layout.hidden_first)
        # 2. Each tensor of the network is one of the file, or is stacked of those of each expert.
        places: dict[str, str | list[list[str]]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for number, begin in enumerate(begun):
            for own, weight in network.heads[number].state_dict().items():
                part, _, rest = own.partition(".")
                name = begin + rest if part == "layer" else f"{layout.shared or begin}{layout.parts[part]}.{rest}"
                stacked = _expert_names(name, weight) if name not in files.tensors else {}
                places[f"heads.{number}.{own}"] = [list(names) for names in stacked] if stacked else name
                of_experts = {each: shape for names, shape in stacked.items() for each in names}
                shapes |= of_experts or {name: tuple(weight.shape)}
        heads = files.below((*begun, layout.shared) if layout.shared else tuple(begun))
        packed = next(filter(_PACKED.fullmatch, heads.tensors), None)
        files.refuse_if(packed, f"has quantised MTP weights ({packed}), which are not read: use one in bfloat16.")
        vocabulary = tuple(target.hidden.output_layer.shape)
        demand_exactly(heads, shapes, {begin + end: vocabulary for begin in begun for end in layout.copies})
        # 3. What is added to the scores of experts stays in its own precision, as in the target.
        dtype, found, weights = target.hidden.output_layer.dtype, files.read(shapes), dict[str, Tensor]()
        for own, place in places.items():
            if isinstance(place, str):
                weight = found[place]
            else:  # [experts, rows, columns], the matrices of each expert joined along their rows
                weight = torch.stack([torch.cat([found[each] for each in of_expert]) for of_expert in place])
            kept = own.endswith("e_score_correction_bias")
            weights[own] = weight.to(target.device, weight.dtype if kept else dtype)
        network.load_state_dict(weights, assign=True)
        return network.to(target.device)


def layout_of(files: CheckpointFiles) -> Layout | None:
    """Return the layout of a checkpoint's MTP weights; None where it has none that is read."""
    if files.config.get(SPECULATORS) not in (None, "mtp"):
        return None
    return next((each for each in LAYOUTS if any(map(each.projection.fullmatch, files.tensors))), None)


def _expert_names(name: str, weight: Tensor) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return the names of each expert's matrices that transformers joins into one tensor, with their shape; or none."""
    begin, found, kind = name.partition(".experts.")
    kinds = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(kind)
    if not found or kinds is None:
        return {}
    experts, rows, columns = weight.shape
    shape = (rows // len(kinds), columns)
    return {tuple(f"{begin}.experts.{expert}.{each}.weight" for each in kinds): shape for expert in range(experts)}
