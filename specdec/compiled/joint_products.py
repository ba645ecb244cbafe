"""Products of one input as one product, in passes that inductor compiles for a GPU.

A layer multiplies the same states by the weights of queries, keys and values, and by those of both halves of a gated
MLP. Each product is a kernel, which reaches the memory's rate late and leaves it early. So these weights lie side by
side, each layer asks for the whole product and keeps its own part, and of the equal products that the compiler then
meets one is left.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node
from torch.nn.functional import linear

from specdec.models.decoder import Decoder
from specdec.records import chain_tree

_ATEN = torch.ops.aten
_PRODUCTS = {_ATEN.mm.default, _ATEN.addmm.default}
_MERGED = {*_PRODUCTS, *(getattr(_ATEN, name).default for name in ("permute", "t", "view", "reshape", "_unsafe_view"))}


class _Part(nn.Linear):
    """A linear layer whose weight is a part of a larger one.

    Attributes:
        joint: the larger weight [outputs of all parts, inputs] and its bias, if the layers have one.
        part: the outputs that are this layer's.
    """

    joint: tuple[Tensor, Tensor | None]
    part: slice

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(input)
        return linear(input, *self.joint)[..., self.part]


class MergeEqual(CustomGraphPass):
    """Leaves one of equal products in a graph of inductor's, before its kernels are chosen."""

    def __call__(self, graph: Graph) -> None:
        first: dict[Any, Node] = {}
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in _MERGED:
                kept = first.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
                if kept is not node:
                    node.replace_all_uses_with(kept)
                    graph.erase_node(node)

    def uuid(self) -> str:
        """Return what the compiler's cache knows this pass by."""
        return "specdec: equal products, 1"


def lay_side_by_side(decoder: Decoder) -> None:
    """Put the weights of linear layers that read the same input into one tensor, of which each layer's weight becomes a
    view: no memory is added, and calls that are not compiled do what they did. To be called while no text is in the
    decoder's cache.
    """
    readers: dict[int, list[nn.Linear]] = defaultdict(list)
    held = []  # an input that is gone could give its number to the next one

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Linear)
        held.append(inputs[0])
        readers[id(inputs[0])].append(module)

    layers = [module for module in decoder.model.modules() if type(module) is nn.Linear]
    hooks = [module.register_forward_pre_hook(note) for module in layers]
    length = decoder.length
    decoder.plain(torch.zeros(2, dtype=torch.long, device=decoder.device), chain_tree(1))
    decoder.length = length
    for hook in hooks:
        hook.remove()
    for group in readers.values():
        biases = [module.bias for module in group if module.bias is not None]
        if len(set(group)) == len(group) > 1 and len(biases) in (0, len(group)):
            _join(group, torch.cat(biases) if biases else None)


def _join(group: list[nn.Linear], bias: Tensor | None) -> None:
    whole, start = torch.cat([module.weight for module in group]), 0
    for module in group:
        module.__class__ = _Part
        assert isinstance(module, _Part)
        module.part = slice(start, start + module.out_features)
        module.joint = (whole, bias)
        module.weight = nn.Parameter(whole[module.part], requires_grad=False)
        start = module.part.stop
