"""Attention as sums over the keys, for passes on a few tokens that inductor compiles.

It becomes one loop over the heads, where the library's kernels cost more to start than they compute.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from specdec.models import attention

NAME = "sums_over_keys"
_REPLACED = ("sdpa", attention.NAME, attention.GROUPED)  # the same function by other kernels


def sums_over_keys(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention of query [B, H, N, head] over key and value [B, G, S, head] in float32 or better; H is a
    multiple of G, whose heads are not repeated.

    Args:
        attention_mask: additive, [B, 1, N, S].
        options: `scaling` of the scores; by default 1 / sqrt(head).
    Returns:
        [B, N, H, head], and no weights, as transformers expects it.
    """
    from torch._inductor.inductor_prims import force_stride_order

    batch, heads, tokens, size = query.shape
    groups = key.shape[1]
    scaling = options.get("scaling")
    wide = query if query.element_size() > 4 else query.float()
    wide = wide * (size**-0.5 if scaling is None else scaling)
    # Has inductor write the rotated queries down, instead of computing them anew for every key.
    wide = force_stride_order(wide, wide.stride())
    rows = wide.reshape(batch, groups, heads // groups * tokens, 1, size)
    scores = (rows * key.to(rows.dtype).unsqueeze(2)).sum(-1).view(batch, groups, heads // groups, tokens, -1)
    if attention_mask is not None:
        scores = scores + attention_mask.to(rows.dtype).unsqueeze(2)
    scores = scores.view(batch, groups, heads // groups * tokens, -1, 1)
    weights = (scores - scores.amax(3, keepdim=True)).exp()
    # Divided once at the end, and not for every key.
    output = ((weights * value.to(rows.dtype).unsqueeze(2)).sum(3) / weights.sum(3)).view(batch, heads, tokens, -1)
    return output.to(query.dtype).transpose(1, 2), None


@contextmanager
def attention_by_sums(model: Any) -> Iterator[None]:
    """Let a model compute its attention by `sums_over_keys` within the context, where it is transformers' `sdpa`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    before = model.config._attn_implementation
    if before not in _REPLACED:
        yield
        return
    AttentionInterface.register(NAME, sums_over_keys)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
