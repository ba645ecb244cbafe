"""The attention of transformers, called so that one token in 16-bit on a CPU is not the slow case.

For a single query in bfloat16, torch's CPU kernel uses no matrix instructions: it takes 130 us, where two queries take
50 (400 keys, 5 heads of 64, two cores). A decoding step therefore computes its query twice and keeps one result. It
then also uses the kernel that verification uses, so that fewer greedy outputs differ at near-ties.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

NAME = "sdpa_two_rows"  # as runs have recorded it
_STOCK = "sdpa"


def two_queries(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Call `sdpa` of transformers for query [B, H, N, head]; a single query goes in twice and comes out once."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # A copy, not an expanded view: the kernel is as slow on queries of stride 0 as on a single one.
    # A single query sees whatever the mask leaves of all keys, so causality adds nothing.
    options["is_causal"] = False
    twice = torch.cat([query, query], dim=2)
    output, _ = sdpa_attention_forward(module, twice, key, value, attention_mask, **options)  # [B, N, H, head]
    return output[:, :1], None


def use_two_queries(model: Any) -> bool:
    """Switch a loaded model to `two_queries` where that is faster; return whether it did."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    pays = model.device.type == "cpu" and model.dtype in (torch.bfloat16, torch.float16)
    if not pays or model.config._attn_implementation != _STOCK:
        return False
    AttentionInterface.register(NAME, two_queries)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return True


@contextmanager
def stock_attention(model: Any) -> Iterator[None]:
    """Give a model that was switched to `two_queries` its own attention back, within the context."""
    switched = model.config._attn_implementation == NAME
    if switched:
        model.set_attn_implementation(_STOCK)
    try:
        yield
    finally:
        if switched:
            model.set_attn_implementation(NAME)
