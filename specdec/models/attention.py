"""transformers' own attention, called so that a single row in 16-bit on a CPU is not the slow case.

torch's CPU kernel takes one query row in bfloat16 on a path without matrix instructions: 130 us where two rows take 50
(400 keys, 5 heads of 64, two cores). A decoding step therefore computes its row twice and keeps one. It also makes a
one-token step take the kernel that verification takes, so fewer greedy outputs part at near-ties.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

NAME = "sdpa_two_rows"
_STOCK = "sdpa"


def two_rows(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """`sdpa` of transformers for query [B, H, N, head]; a single row goes in twice and comes out once."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # A copy, not an expanded view: the kernel is as slow on rows of stride 0 as on a single one.
    # One query row sees whatever the mask leaves of all keys, so causality adds nothing.
    options["is_causal"] = False
    output, _ = sdpa_attention_forward(
        module, torch.cat([query, query], dim=2), key, value, attention_mask, **options
    )  # [B, N, H, head]
    return output[:, :1], None


def use_two_rows(model: Any) -> bool:
    """Switch a loaded model to `two_rows` where that pays; says whether it did."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    pays = model.device.type == "cpu" and model.dtype in (torch.bfloat16, torch.float16)
    if not pays or model.config._attn_implementation != _STOCK:
        return False
    AttentionInterface.register(NAME, two_rows)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return True


@contextmanager
def stock_attention(model: Any) -> Iterator[None]:
    """A model that was switched to `two_rows` has transformers' own attention within."""
    switched = model.config._attn_implementation == NAME
    if switched:
        model.set_attn_implementation(_STOCK)
    try:
        yield
    finally:
        if switched:
            model.set_attn_implementation(NAME)
