"""Attention over a cache as an operation of its own, for which inductor compiles a kernel (`attention_kernel.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specdec.models import attention

NAME = "cache_attention"
_REPLACED = ("sdpa", attention.NAME, attention.GROUPED)  # the same function by other kernels


@torch.library.custom_op("specdec::cache_attention", mutates_args=())
def cache_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Compute attention of query [1, H, N, head] over key [1, G, S, head] and value [1, G, S, v] in float32 or better;
    H is a multiple of G, whose heads are not repeated.

    Args:
        mask: additive, [1, 1, N, S], of the same type.
        scaling: of the scores.
    Returns:
        [1, N, H, v].
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
    if before not in _REPLACED or attention.asks_for_name(model):
        yield
        return
    attention.switch_attention(model, NAME, attend)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
