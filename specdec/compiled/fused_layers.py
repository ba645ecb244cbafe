"""The layers of Llama and its kin as five kernels each, for calls on a few tokens on an NVIDIA GPU.

Such a call could take as long as reading the weights once, if nothing else took time. Most of what does is in between:
seven products a layer that each reach the memory's rate late, and some ten small kernels for norms, rotations, the
cache, attention and the gate. Here a layer is

    queries, keys and values | rotate, write to the cache, attend | output, add | gate and up | down, add

A norm has no kernel of its own: it is a gain, by which what adds to the states multiplies them as it writes them, and a
scale, one number a token, which multiplies what becomes of the states in the next product. The length of the prefix is
read on the device, and no kernel looks at slots behind it: one graph serves every length, where passes of inductor need
one for each bucket of slots.

The kernels are written in Triton, which comes with torch for GPUs. Its interpreter runs them on a CPU, as tests do:
`TRITON_INTERPRET=1`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Below, Pass, joined_states

_MOST_TOKENS = 64  # in a call: with more, kernels have to be those of a prefill
_MOST_SLOTS = 4096  # one block of threads reads all keys of a head: with more, the others wait for it
_KINDS = ("llama", "mistral", "qwen2", "qwen3")
_MANY = 8192  # rows of a weight that occupy all of a GPU by blocks of 64; fewer rows need smaller blocks
# Rows and columns of a weight that one block of threads takes at a time, its warps, and how many such tiles are on
# their way, as they were timed on an H200 (notebooks/guide/measurements.md).
_LARGE = (64, 128, 4, 4)
_GATED = (32, 128, 4, 3)  # rows of each of two weights
_SMALL = (16, 256, 2, 4)
_SLOTS, _WARPS, _STAGES = 64, 4, 3  # of attention, likewise


class Normed(NamedTuple):
    """States that go through an RMS norm: `gained` [N, D], the states times its gain; `squares` [blocks, N] float32,
    their sums of squares by parts; `eps`, the norm's.
    """

    gained: Tensor
    squares: Tensor
    eps: float


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    states, first, second, third, bias, squares, residual, gain, out, gained, sums_of_squares, tokens, width, rows,
    to_second, to_third, blocks, eps,
    ROWS: tl.constexpr, STEP: tl.constexpr, TOKENS: tl.constexpr, PARTS: tl.constexpr, GATED: tl.constexpr,
    BIAS: tl.constexpr, BLOCKS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Write the products [tokens, rows] of states and one to three weights side by side; of two, if GATED, the SiLU of
    the first product times the second. With BLOCKS, the states are `Normed`; with ADD, so is the sum that is written.
    """
    row = tl.program_id(0) * ROWS
    weight, of_weight = first, row
    if PARTS > 1:
        if row >= to_third:
            weight, of_weight = third, row - to_third
        elif row >= to_second:
            weight, of_weight = second, row - to_second
    token, column = tl.arange(0, TOKENS), tl.arange(0, STEP)
    real = token[None, :] < tokens
    place = (of_weight.to(tl.int64) + tl.arange(0, ROWS))[:, None] * width + column[None, :]
    sums = tl.zeros((ROWS, TOKENS), tl.float32)
    other = tl.zeros((ROWS, TOKENS), tl.float32)
    for start in range(0, width, STEP):
        given = tl.load(states + token[None, :] * width + (start + column)[:, None], mask=real, other=0.0)
        sums = tl.dot(tl.load(weight + place + start), given, sums, input_precision="ieee")
        if GATED:
            other = tl.dot(tl.load(second + place + start), given, other, input_precision="ieee")
    if BLOCKS > 0:
        block = tl.arange(0, BLOCKS)[:, None]
        parts = tl.load(squares + block * tokens + token[None, :], mask=(block < blocks) & real, other=0.0)
        scale = tl.rsqrt(tl.sum(parts, 0) / width + eps)[None, :]
        sums, other = sums * scale, other * scale
    written = row + tl.arange(0, ROWS)
    at = token[None, :] * rows + written[:, None]
    kind = out.dtype.element_ty
    if BIAS:
        sums += tl.load(bias + written).to(tl.float32)[:, None]
    if GATED:
        gate = sums.to(kind).to(tl.float32)  # rounded where the model's modules round
        sums = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * other.to(kind).to(tl.float32)
    if ADD:
        sums = sums.to(kind).to(tl.float32) + tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
        sums = sums.to(kind).to(tl.float32)
        tl.store(gained + at, (sums * tl.load(gain + written).to(tl.float32)[:, None]).to(kind), mask=real)
        tl.store(sums_of_squares + tl.program_id(0) * tokens + token, tl.sum(sums * sums, 0), mask=token < tokens)
    tl.store(out + at, sums.to(kind), mask=real)


@triton.jit
def _turned(  # type: ignore[no-untyped-def]
    heads, gain, cosine, sine, positions, stride, tokens, eps, TOKENS: tl.constexpr, SIZE: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Return one head [TOKENS, SIZE] of the new tokens, turned to their positions; with NORM, scaled before."""
    token, place = tl.arange(0, TOKENS), tl.arange(0, SIZE)
    across = (place + SIZE // 2) % SIZE
    real = (token < tokens)[:, None]
    here = tl.load(heads + token[:, None] * stride + place[None, :], mask=real, other=0.0).to(tl.float32)
    there = tl.load(heads + token[:, None] * stride + across[None, :], mask=real, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(here * here, 1) / SIZE + eps)[:, None]
        here = here * scale * tl.load(gain + place)[None, :].to(tl.float32)
        there = there * scale * tl.load(gain + across)[None, :].to(tl.float32)
    there = tl.where(place[None, :] < SIZE // 2, -there, there)
    angle = positions[:, None] * SIZE + place[None, :]
    cosines = tl.load(cosine + angle, mask=real, other=0.0).to(tl.float32)
    return here * cosines + there * tl.load(sine + angle, mask=real, other=0.0).to(tl.float32)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    joint, query_gain, key_gain, cosine, sine, offsets, visible, prefix, keys, values, out, tokens, capacity, heads,
    shared, scale, eps,
    TOKENS: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr, CHAIN: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Attend with one head of the new tokens to the first `prefix` slots and to the new tokens that each one sees; the
    first head of those that share keys writes the new keys and values behind the prefix.

    Scores are brought together block by block (the online softmax of FlashAttention, Dao et al. 2205.14135, alg. 1).
    """
    head = tl.program_id(0)
    of = head // (heads // shared)
    stride = (heads + 2 * shared) * SIZE
    token, place, slot = tl.arange(0, TOKENS), tl.arange(0, SIZE), tl.arange(0, SLOTS)
    kind = out.dtype.element_ty
    real = (token < tokens)[:, None]
    length = tl.load(prefix).to(tl.int32)
    positions = length + token
    if not CHAIN:
        positions = length + tl.load(offsets + token, mask=token < tokens, other=0).to(tl.int32)
    query, key = joint + head * SIZE, joint + (heads + of) * SIZE
    query = _turned(query, query_gain, cosine, sine, positions, stride, tokens, eps, TOKENS, SIZE, NORM).to(kind)
    key = _turned(key, key_gain, cosine, sine, positions, stride, tokens, eps, TOKENS, SIZE, NORM).to(kind)
    read = joint + (heads + shared + of) * SIZE + token[:, None] * stride + place[None, :]
    value = tl.load(read, mask=real, other=0.0)
    keys += of * capacity * SIZE
    values += of * capacity * SIZE
    if head % (heads // shared) == 0:
        behind = (length + token)[:, None] * SIZE + place[None, :]
        tl.store(keys + behind, key, mask=real)
        tl.store(values + behind, value, mask=real)
    other = token[None, :]
    seen = token[:, None] >= other
    if not CHAIN:
        seen = tl.load(visible + token[:, None] * tokens + other, mask=real & (other < tokens), other=1) != 0
    among = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    among = tl.where(seen & (other < tokens), among, float("-inf"))
    most = tl.max(among, 1)
    among = tl.exp(among - most[:, None])
    total = tl.sum(among, 1)
    found = tl.dot(among.to(kind), value, input_precision="ieee")
    for start in range(0, length, SLOTS):
        within = start + slot < length
        at = (start + slot)[:, None] * SIZE + place[None, :]
        scores = tl.dot(query, tl.trans(tl.load(keys + at, mask=within[:, None], other=0.0)), input_precision="ieee")
        scores = tl.where(within[None, :], scores * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights, shrunk = tl.exp(scores - higher[:, None]), tl.exp(most - higher)
        total = total * shrunk + tl.sum(weights, 1)
        given = tl.load(values + at, mask=within[:, None], other=0.0)
        found = tl.dot(weights.to(kind), given, found * shrunk[:, None], input_precision="ieee")
        most = higher
    written = out + token[:, None] * (heads * SIZE) + head * SIZE + place[None, :]
    tl.store(written, (found / total[:, None]).to(kind), mask=real)


def _padded(tokens: int) -> int:
    """Return the number of tokens that a kernel calculates with: the units for products take 16 at least."""
    return max(16, 1 << (tokens - 1).bit_length())


def _launched(
    states: Tensor | Normed, weights: Sequence[Tensor], gated: bool = False, bias: Tensor | None = None,
    residual: Tensor | None = None, norm: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Launch `_product`; return what it writes: products, and with a residual the sum as `Normed` has it."""
    given, squares, eps = states if isinstance(states, Normed) else (states, None, 0.0)
    tokens, width = given.shape
    parts = [len(weight) for weight in weights]
    rows = parts[0] if gated else sum(parts)
    block, step, warps, stages = _GATED if gated else _LARGE if sum(parts) >= _MANY else _SMALL
    while any(part % block for part in parts):
        block //= 2
    while width % step:
        step //= 2
    out = given.new_empty(tokens, rows)
    gained = out if residual is None else torch.empty_like(out)
    sums = out if residual is None else out.new_empty(rows // block, tokens, dtype=torch.float32)
    first, second, third = (*weights, weights[0], weights[0])[:3]
    _product[rows // block,](
        given, first, second, third, out if bias is None else bias, out if squares is None else squares,
        out if residual is None else residual, out if norm is None else norm.weight, out, gained, sums, tokens, width,
        rows, parts[0], sum(parts[:2]), 0 if squares is None else len(squares), eps, block, step, _padded(tokens),
        1 if gated else len(weights), gated, bias is not None,
        0 if squares is None else 1 << (len(squares) - 1).bit_length(), residual is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, gained, sums


def product(
    states: Tensor | Normed, weights: Sequence[Tensor], bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """Return states [N, D] times each of one to three weights [rows, D], side by side [N, all rows], and `bias`; of
    two, if `gated`, the SiLU of the first product times the second [N, rows].
    """
    return _launched(states, weights, gated, bias)[0]


def added_product(states: Tensor, weight: Tensor, residual: Tensor, norm: Any) -> tuple[Tensor, Normed]:
    """Return `residual` [N, rows] and states times a weight, added; and the same as it goes through `norm`."""
    out, gained, sums = _launched(states, [weight], residual=residual, norm=norm)
    return out, Normed(gained, sums, norm.variance_epsilon)


def _attention(module: Any, joint: Tensor, turns: tuple[Tensor, Tensor], prefix: Tensor, below: Below | None,
               keys: Tensor, values: Tensor) -> Tensor:  # fmt: skip
    """Return what the heads of new tokens see [N, heads * size]; write their keys and values into the buffers [copies,
    shared heads, capacity, size] of a layer. `joint` has their queries, keys and values side by side, `turns` cosines
    and sines [capacity, size] by position.
    """
    tokens, size = len(joint), keys.shape[3]
    heads = joint.shape[1] // size - 2 * keys.shape[1]
    norm = getattr(module, "q_norm", None)
    out = joint.new_empty(tokens, heads * size)
    gains = (out, out) if norm is None else (norm.weight, module.k_norm.weight)
    _attend[heads,](
        joint, *gains, *turns, *((out, out) if below is None else below), prefix, keys, values, out, tokens,
        keys.shape[2], heads, keys.shape[1], module.scaling, 0.0 if norm is None else norm.variance_epsilon,
        _padded(tokens), size, _SLOTS, below is None, norm is not None, num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return out


def fuses(decoder: Decoder, tokens: int) -> bool:
    """Tell if calls on so many tokens, over the decoder's present cache, can be these kernels."""
    model, kind = decoder.model, decoder.model.config.model_type
    if kind not in _KINDS or type(model).__module__ != f"transformers.models.{kind}.modeling_{kind}":
        return False  # also a model's own code, or what wraps one
    linear = {name: module for name, module in model.named_modules() if hasattr(module, "in_features")}
    biased = {name.rpartition(".")[2] for name, module in linear.items() if module.bias is not None}
    turned = 2 * model.model.rotary_emb.inv_freq.numel()
    return (
        tokens <= _MOST_TOKENS
        and decoder.cache.capacity <= _MOST_SLOTS
        and set(decoder.windows.values()) == {None}
        and model.config.hidden_act == "silu"
        and model.dtype != torch.float16  # states times a gain may exceed its range
        and biased in (set(), {"q_proj", "k_proj", "v_proj"})
        and len({(weight.device, weight.dtype) for weight in model.parameters()}) == 1
        and all(type(module) is nn.Linear and module.weight.is_contiguous() for module in linear.values())
        and all(module.out_features % 16 == 0 and module.in_features % 64 == 0 for module in linear.values())
        and all(layer.self_attn.head_dim == turned for layer in model.model.layers)
        and turned in (32, 64, 128, 256)
    )


def fused_pass(decoder: Decoder) -> Callable[..., Pass]:
    """Make a forward pass over the decoder's present cache (see `fuses`): (tokens [N], prefix [1], below = None) ->
    logits [N, V] and the kept layers' states, of tokens that are written to the slots from `prefix` on: a chain, or the
    draft whose topology is `below`. It leaves the cache's length as it is.
    """
    model, base, cache = decoder.model, decoder.model.model, decoder.cache
    layers = []
    for layer in base.layers:
        module = layer.self_attn
        slots = cache.layers[module.layer_idx]
        three = [module.q_proj, module.k_proj, module.v_proj]
        if not slots.is_initialized:
            empty = three[1].weight.new_empty(1, three[1].out_features // module.head_dim, 0, module.head_dim)
            slots.lazy_initialization(empty, empty)
        bias = None if three[0].bias is None else torch.cat([part.bias for part in three])
        layers.append((layer, module, [part.weight for part in three], bias, slots))

    positions = torch.arange(cache.capacity, device=decoder.device).unsqueeze(0)
    cosine, sine = base.rotary_emb(model.lm_head.weight, positions)
    turns = cosine[0].contiguous(), sine[0].contiguous()

    def forward(tokens: Tensor, prefix: Tensor, below: Below | None = None) -> Pass:
        states, norm = base.embed_tokens(tokens), layers[0][0].input_layernorm
        squares = torch.linalg.vector_norm(states, dim=-1, dtype=torch.float32).square().unsqueeze(0)
        found, through = [states], Normed(states * norm.weight, squares, norm.variance_epsilon)
        following = [layer.input_layernorm for layer, *_ in layers[1:]] + [base.norm]
        for (layer, module, three, bias, slots), norm in zip(layers, following, strict=True):
            joint = product(through, three, bias)
            seen = _attention(module, joint, turns, prefix, below, slots.keys, slots.values)
            states, through = added_product(seen, module.o_proj.weight, states, layer.post_attention_layernorm)
            inner = product(through, [layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight], gated=True)
            states, through = added_product(inner, layer.mlp.down_proj.weight, states, norm)
            found.append(states)
        if 0 in decoder.kept:
            found[-1] = base.norm(states)
        logits = product(through, [model.lm_head.weight])
        return Pass(logits, joined_states(found, decoder.kept) if decoder.kept else None)

    return forward
