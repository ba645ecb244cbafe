"""Operations of ours in the programs of passes, for which inductor compiles kernels: attention over a cache
(`attention_kernel.py`), and products of a few tokens (`products_kernel.py`).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import linear
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specdec.models import attention

NAME = "cache_attention"
_REPLACED = ("sdpa", attention.NAME, attention.GROUPED)  # the same function by other kernels


@torch.library.custom_op("specdec::cache_attention", mutates_args=())
def cache_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Compute attention of query [1, H, N, head] over key [1, G, S, head] and value [1, G, S, v] in float32 or better,
    with scores times `scaling` and an additive mask [1, 1, N, S] of the same type; return [1, N, H, v]. H is a multiple
    of G, whose heads are not repeated.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    shared = query.shape[1] // key.shape[1]
    key, value = (each.to(dtype).repeat_interleave(shared, 1) for each in (key, value))
    weights = (query.to(dtype) @ key.mT * scaling + mask.to(dtype)).softmax(-1)
    return (weights @ value).to(query.dtype).transpose(1, 2).contiguous()


@torch.library.register_fake("specdec::cache_attention")
def _(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    _, heads, tokens, _ = query.shape
    return query.new_empty(1, tokens, heads, value.shape[-1])


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Call the operation as transformers calls attention, by default with scores scaled by 1 / sqrt(head); without a
    mask for all heads, what transformers has.
    """
    if attention_mask is None or attention_mask.shape[1] != 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scaling = options.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return cache_attention(query, key, value, attention_mask.to(query.dtype), scaling), None


@contextmanager
def attention_by_kernel(model: Any) -> Iterator[None]:
    """Let a model compute its attention by `cache_attention` within the context, where it is transformers' `sdpa`."""
    before = model.config._attn_implementation
    with ExitStack() as back:
        if before in _REPLACED and not attention.asks_for_name(model):
            back.callback(model.set_attn_implementation, before)
            attention.switch_attention(model, NAME, attend)
        yield


@torch.library.custom_op("specdec::products", mutates_args=())
def products(tokens: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], cached: bool) -> Tensor:
    """Multiply tokens [1, N, inputs] by each weight [outputs, inputs]; add any bias [outputs]: [1, N, all outputs]. The
    model's weights may be `cached` from one call to the next, which is for the kernel alone.
    """
    return torch.cat([linear(tokens, *each) for each in zip(weights, *([biases] if biases else []), strict=True)], -1)


@torch.library.register_fake("specdec::products")
def _(tokens: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], cached: bool) -> Tensor:
    return tokens.new_empty(*tokens.shape[:-1], sum(len(weight) for weight in weights))


def use_products(module: GraphModule, cached: bool) -> None:
    """Have an exported graph compute its products with given weights by the kernel, those of the same tokens as one;
    `cached`: the processor's caches may hold all weights of the model.
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
            every = graph.call_function(torch.ops.specdec.products.default, (tokens, weights, biases, cached))
            every.meta["val"] = torch.ops.specdec.products(tokens.meta["val"], *values, cached)
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
