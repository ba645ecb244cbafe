"""The attention of transformers, called so that short calls on a CPU are not the slow case.

Where several query heads share keys and values, `sdpa` of transformers repeats these for every query head as soon as
there is a mask: a copy of the whole prefix in every layer of every call (512 slots, 32 heads on 8, 5 queries: twice the
time of attention without copies). Here the queries that share a head stand side by side as lines of one query.

For a single query in bfloat16, torch's CPU kernel uses no matrix instructions: it takes 130 us, where two queries take
50 (400 keys, 5 heads of 64, two cores). A decoding step therefore computes its query twice and keeps one result, unless
heads that share keys give several lines anyway. It then also uses the kernel that verification uses, so that fewer
greedy outputs differ at near-ties.

On a GPU, torch's kernel for calls with a mask gives a few queries one block of threads for each head, while the rest of
the GPU waits: on an H100 43 us a layer (32 heads of 128, 768 slots), where two plain products and their softmax take
13. A short call there is such products.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "sdpa_two_rows"  # as runs have recorded it
GROUPED = "sdpa_grouped"
PRODUCTS = "sdpa_products"
_STOCK = "sdpa"
_FOLDED = 256  # queries: with more, a prefill, lines that share a head gain nothing, and their mask grows large
_SHORT = 64  # queries: with more, the kernel has blocks enough, and what each query gives each key need not be written


def two_queries(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Call `sdpa` of transformers for query [B, H, N, head]; a single query goes in twice and comes out once."""
    if query.shape[2] > 1 or _biased(options):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # A copy, not an expanded view: the kernel is as slow on queries of stride 0 as on a single one.
    # A single query sees whatever the mask leaves of all keys, so causality adds nothing.
    twice = torch.cat([query, query], dim=2)
    found = scaled_dot_product_attention(twice, key, value, attention_mask, **_kernel_options(options))
    return found[:, :, :1].transpose(1, 2).contiguous(), None  # [B, 1, H, head]


def grouped_queries(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend with query [B, H, N, head] to key and value [B, K, S, head], not copied; return [B, N, H, head]. Calls
    without a mask, with a bias by position or without shared heads go to `sdpa` of transformers.
    """
    if attention_mask is None or query.shape[1] == key.shape[1] or _biased(options):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    how = _kernel_options(options)
    batch, heads, queries, size = query.shape
    # A recorded call is no prefill, and comparing a number of queries that varies would split its record in two.
    short = torch.compiler.is_compiling() or queries <= _FOLDED
    if not short or attention_mask.shape[1] != 1:
        found = scaled_dot_product_attention(query, key, value, attention_mask, enable_gqa=True, **how)
        return found.transpose(1, 2).contiguous(), None
    groups = heads // key.shape[1]
    mask = attention_mask[:1] if attention_mask.stride(0) == 0 else attention_mask  # one mask, seen by all sequences
    if queries > 1:  # a single line is broadcast
        mask = mask.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(2, 3)  # [B, 1, groups * N, S]
    lines = query.reshape(batch, key.shape[1], groups * queries, size)
    found = scaled_dot_product_attention(lines, key, value, mask, **how)  # [B, K, groups * N, head]
    found = found.unflatten(2, (groups, queries)).permute(0, 3, 1, 2, 4)  # [B, N, K, groups, head]
    return found.flatten(2, 3).contiguous(), None  # some models take a view of it, as of what `sdpa` returns


def plain_products(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend as `grouped_queries` does, by plain products. More queries than a draft has, a call without a mask or with
    one of truth values, and a bias by position go to `sdpa` of transformers.
    """
    long = query.shape[2] > _SHORT
    if attention_mask is None or not attention_mask.is_floating_point() or long or _biased(options):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    batch, heads, queries, size = query.shape
    shared = key.shape[1]
    groups = heads // shared
    lines = query.reshape(batch * shared, groups * queries, size)
    keys = key.reshape(batch * shared, -1, size).transpose(1, 2)
    half = query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16)
    # Rounded to 16 bits, as products of such numbers are, a score of 10 would be off by 0.03.
    scores = torch.bmm(lines, keys, out_dtype=torch.float32) if half else torch.bmm(lines, keys)
    one = attention_mask.shape[1] == 1  # for all heads
    mask = attention_mask.unsqueeze(2) if one else attention_mask.unflatten(1, (shared, groups))
    scale = size**-0.5 if options.get("scaling") is None else options["scaling"]
    seen = torch.add(mask, scores.view(batch, shared, groups, queries, -1), alpha=scale)
    weights = seen.softmax(-1).to(value.dtype).flatten(2, 3)  # [B, K, groups * N, S]
    found = torch.matmul(weights, value).unflatten(2, (groups, queries)).permute(0, 3, 1, 2, 4)
    return found.flatten(2, 3).contiguous(), None


def _biased(options: Mapping[str, Any]) -> bool:
    """Return whether a model asks for more than masked attention."""
    return any(options.get(name) is not None for name in ("position_bias", "softcap"))


def _kernel_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that torch's kernel takes of those that a model gives."""
    return {"dropout_p": options.get("dropout", 0.0), "scale": options.get("scaling")}


def use_own_attention(model: Any) -> None:
    """Switch a loaded model to the attention above that is the faster one for it, where there is one."""
    if model.config._attn_implementation != _STOCK or asks_for_name(model):
        return
    if model.device.type == "cuda":
        switch_attention(model, PRODUCTS, plain_products)
    elif model.device.type == "cpu":
        if any(getattr(module, "num_key_value_groups", 1) > 1 for module in model.modules()):
            switch_attention(model, GROUPED, grouped_queries)
        elif model.dtype in (torch.bfloat16, torch.float16):
            switch_attention(model, NAME, two_queries)


def asks_for_name(model: Any) -> bool:
    """Tell if the code of a model compares the name of its attention with `sdpa`: under another name it would leave out
    what it does for that one, such as masking the keys that an indexer did not choose (DeepSeek V3.2).
    """
    code = {type(module).__module__ for module in model.modules()}
    return any(_compares(name) for name in code if not name.startswith("torch."))


@lru_cache(maxsize=256)
def _compares(module: str) -> bool:
    with suppress(OSError, TypeError):
        return bool(re.search(r"_attn_implementation (==|!=|in|not in) .*sdpa", inspect.getsource(sys.modules[module])))
    return False


def switch_attention(model: Any, name: str, function: Callable[..., tuple[Tensor, None]]) -> None:
    """Have a model call `function` as its attention, with `sdpa`'s masks; `name` is for transformers and records."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)


def pin_attention(device: torch.device) -> None:
    """Leave torch the kernels that suit a long call's mask over a cache: memory-efficient attention, or plain products
    where that does not take the number format. Flash attention takes no mask, and is left to calls without one.

    cuDNN's attention, which torch prefers on Hopper and Blackwell, plans anew for every length of the keys, which takes
    tens of milliseconds; here each call has another.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def stock_attention(model: Any) -> Iterator[None]:
    """Give a model that was switched by `use_own_attention` its own attention back, within the context."""
    own = model.config._attn_implementation
    with ExitStack() as back:
        if own in (NAME, GROUPED, PRODUCTS):
            back.callback(model.set_attn_implementation, own)
            model.set_attn_implementation(_STOCK)
        yield
