"""Products of a few tokens as an operation of its own, for which inductor compiles a kernel (`products_kernel.py`)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import linear


@torch.library.custom_op("specdec::products", mutates_args=())
def products(tokens: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Multiply tokens [1, N, inputs] by each of the weights [outputs, inputs] and add its bias [outputs], if there are
    any: [1, N, outputs of all].
    """
    return torch.cat([linear(tokens, *each) for each in zip(weights, *([biases] if biases else []), strict=True)], -1)


@torch.library.register_fake("specdec::products")
def _(tokens: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return tokens.new_empty(*tokens.shape[:-1], sum(len(weight) for weight in weights))


def use_products(module: GraphModule) -> None:
    """Have an exported graph compute its products with weights that are given to it by the kernel, those of the same
    tokens as one.
    """
    graph, by_tokens = module.graph, dict[Any, list[Any]]()
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
        if _by_kernel(node):
            by_tokens.setdefault((node.args[0], len(node.args)), []).append(node)
    for (tokens, _), group in by_tokens.items():
        weights, biases = ([node.args[place] for node in group if len(node.args) > place] for place in (1, 2))
        values = [[each.meta["val"] for each in several] for several in (weights, biases)]
        with graph.inserting_before(group[0]):
            # The weights are given from the start, so all products can be computed where the first one is.
            every = graph.call_function(torch.ops.specdec.products.default, (tokens, weights, biases))
            every.meta["val"] = torch.ops.specdec.products(tokens.meta["val"], *values)
            begin = 0
            for node, weight in zip(group, values[0], strict=True):
                end = begin + len(weight)
                part = graph.call_function(torch.ops.aten.slice.Tensor, (every, -1, begin, end))
                part.meta["val"] = every.meta["val"][..., begin:end]
                node.replace_all_uses_with(part)
                begin = end
        for node in group:
            graph.erase_node(node)
    module.recompile()


def _by_kernel(node: Any) -> bool:
    """Return whether the kernel computes a linear product: of one text, by plain weights on a CPU."""
    tokens, *given = (each for each in node.args if each is not None)
    values = [each.meta["val"] for each in (tokens, *given)]
    return (
        all(each.op == "placeholder" and each.meta["val"].is_contiguous() for each in given)
        and values[0].dim() == 3
        and values[0].device.type == "cpu"
        and values[0].dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
        and all(value.dtype == values[0].dtype for value in values)
    )
