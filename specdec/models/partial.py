"""A transformers decoder without some of its parts: a copy of the modules over the same weights.

A decoder's blocks each add what an attention and what an MLP find to the residual stream, so that a model without some
of them is still a model. Knows neither caches nor drafting.
"""

import copy
import re
from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from specdec.errors import UsageError

PartKind = Literal["attention", "mlp"]
KINDS: tuple[PartKind, ...] = ("attention", "mlp")

_WRITTEN = re.compile(r"(\d+)(?:\.(attention|mlp))?")


class ModelPart(NamedTuple):
    """An attention or an MLP of a model, by the number of its block, from 0."""

    block: int
    kind: PartKind

    def __str__(self) -> str:
        return f"{self.block}.{self.kind}"


def block_parts(blocks: Iterable[int]) -> frozenset[ModelPart]:
    """Return both parts of each of these blocks."""
    return frozenset(ModelPart(block, kind) for block in blocks for kind in KINDS)


def parse_parts(written: Iterable[int | str]) -> frozenset[ModelPart]:
    """Return the parts that a list names: `3` is a whole block, `"3.attention"` and `"3.mlp"` are its parts. Raises
    ValueError: an entry of another form; names it.
    """
    parts = set[ModelPart]()
    for entry in written:
        match = _WRITTEN.fullmatch(str(entry))
        if match is None:
            raise ValueError(f"{entry!r} is neither a block's number nor BLOCK.attention or BLOCK.mlp")
        parts |= {ModelPart(int(match[1]), kind) for kind in KINDS if match[2] in (None, kind)}
    return frozenset(parts)


def written_parts(parts: Collection[ModelPart]) -> list[int | str]:
    """Return the shortest list that `parse_parts` reads as these parts, in the order of the blocks."""
    written: list[int | str] = []
    for block in sorted({part.block for part in parts}):
        own = [ModelPart(block, kind) for kind in KINDS if ModelPart(block, kind) in parts]
        written += [block] if len(own) == len(KINDS) else [str(part) for part in own]
    return written


def blocks_of(model: Any, name: str) -> nn.ModuleList:
    """Return the blocks of a decoder, which messages call `name`. Raises UsageError: not exactly one list of as many
    modules as it has layers, each with exactly one attention, unless a part of it was skipped.
    """
    layers = model.config.get_text_config().num_hidden_layers
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == layers and all(map(_is_block, module))
    ]
    if len(lists) != 1:
        raise UsageError(
            f"Model {name} ({model.config.model_type}) keeps its layers in a way that specdec does not know, so a part "
            "of it cannot draft: use another drafter, such as small_model."
        )
    return lists[0]


def partial_model(model: Any, skipped: Collection[ModelPart], name: str) -> Any:
    """Return the model without some of its parts. It shares all weights, and is a model of its own otherwise: its
    configuration counts the blocks that are left, and the attentions that are left use the first layers of a cache.

    A block of which both parts are skipped is left out; a single part adds nothing instead of what it would add.
    Messages call the model `name`. Raises UsageError: see `blocks_of`; also for a block that is not there, for a part
    that the model does not have as a module of its own, and where no attention would be left.
    """
    layers = len(blocks_of(model, name))
    if getattr(model.config.get_text_config(), "hidden_size_per_layer_input", 0):
        raise UsageError(
            f"Model {name} ({model.config.model_type}) has embeddings for each of its layers, so a part of it cannot "
            "draft: use another drafter, such as small_model."
        )
    beyond = [part.block for part in skipped if not 0 <= part.block < layers]
    if beyond:
        raise UsageError(f"Model {name} has no block {max(beyond)}: its {layers} blocks count from 0.")
    kept = [block for block in range(layers) if not {ModelPart(block, kind) for kind in KINDS} <= set(skipped)]
    if all(ModelPart(block, "attention") in skipped for block in kept):
        raise UsageError(f"Model {name} without {written_parts(skipped)} has no attention left: skip less.")
    # What stands in the memory of a deep copy counts as copied already, so that all but the weights is.
    weights = {id(weight): weight for weight in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, weights)
    blocks, attentions = blocks_of(twin, name), 0
    for place in kept:
        block: Any = blocks[place]
        for kind in KINDS:
            if ModelPart(place, kind) in skipped:
                part = _attention_of(block) if kind == "attention" else "mlp"
                if part is None or part not in block._modules:
                    raise UsageError(
                        f"Model {name} ({type(block).__name__}) has no {kind} as a module of its own: skip whole "
                        "blocks."
                    )
                block._modules[part] = _Nothing(with_weights=kind == "attention")
        for module in block.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = attentions
        attentions += ModelPart(place, "attention") not in skipped
    for place in sorted(set(range(layers)) - set(kept), reverse=True):
        del blocks[place]
    text = twin.config.get_text_config()
    for key, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == layers:  # with an entry for each layer
            setattr(text, key, [value[place] for place in kept])
    text.num_hidden_layers = len(kept)
    return twin.eval()


def _is_block(module: nn.Module) -> bool:
    return _attention_of(module) is not None or any(isinstance(part, _Nothing) for part in module.children())


def _attention_of(block: nn.Module) -> str | None:
    """Return the name of a block's attention: the only one of its modules that holds a layer of a cache."""
    names = [name for name, part in block.named_children() if any(hasattr(own, "layer_idx") for own in part.modules())]
    return names[0] if len(names) == 1 else None


class _Nothing(nn.Module):
    """Stands in for an attention, which returns its weights as well, or an MLP; adds nothing to the residual stream."""

    def __init__(self, with_weights: bool) -> None:
        super().__init__()
        self._with_weights = with_weights

    def forward(self, hidden_states: Tensor, *args: Any, **options: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self._with_weights else nothing
