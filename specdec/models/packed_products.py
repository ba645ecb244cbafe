"""Products of traced passes with weights laid out once for the processor, where that changes no bit of the result.

In bfloat16 `torch.nn.functional.linear` gives a CPU's library a plain weight, which is laid out anew in every call and
takes longer than the product of a few tokens: on one thread of a Xeon with AMX 26 us for 320 x 320 and 176 for
4,096 x 320, where a weight that was laid out before takes 18 and 100. In float32 the plain weight is as fast.
"""

from operator import attrgetter

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.weak import WeakTensorKeyDictionary

from specdec.models.memory import available_bytes

_FEW = 64  # tokens: calls on more keep the plain weight, with which a prefill is as fast
_TRIED = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, _FEW)  # numbers of tokens for which results are compared
_MEMORY = 4  # the copies take at most this part of the memory that is free

_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # by weight: the passes of a model share its copies


def pack_products(record: torch.fx.GraphModule) -> int:
    """Have a recorded pass multiply few tokens by packed weights; return the number of products that do.

    Left as they are: products on another device or in a type that gains nothing, those whose packed result differs in
    a bit on this processor, and all of them where a second copy of the weights would take too much memory.
    """

    def stored(node: torch.fx.Node) -> Tensor:
        weight: Tensor = attrgetter(str(node.target))(record)
        return weight

    products = [node for node in record.graph.nodes if _has_stored_weight(node) and _may_gain(stored(node.args[1]))]
    new = {id(weight): weight.nbytes for node in products if (weight := stored(node.args[1])) not in _packed}
    free = available_bytes(torch.device("cpu"))
    if not products or (free is not None and sum(new.values()) * _MEMORY > free):
        return 0
    equal: dict[tuple[tuple[int, ...], bool], bool] = {}  # one answer for all weights of a shape
    replaced = 0
    for node in products:
        weight, biased = stored(node.args[1]), node.args[2] is not None
        kind = (tuple(weight.shape), biased)
        packed = _packed[weight] if weight in _packed else torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        if kind not in equal:
            equal[kind] = _equal(weight, packed, biased)
        if not equal[kind]:
            continue
        _packed[weight] = packed
        record.register_buffer(f"packed_{replaced}", packed, persistent=False)
        with record.graph.inserting_before(node):
            node.args = (*node.args, record.graph.get_attr(f"packed_{replaced}"))
        node.target = product
        replaced += 1
    record.recompile()
    return replaced


def product(tokens: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor) -> Tensor:
    """Multiply tokens [..., inputs] by a weight [outputs, inputs], which is also given `packed`, and add the bias."""
    if tokens.numel() > _FEW * tokens.shape[-1]:
        return linear(tokens, weight, bias)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(tokens, packed, bias, "none", [], "")
    return result


def _has_stored_weight(node: torch.fx.Node) -> bool:
    """Return whether a node multiplies by a weight of the model, and not by something that the pass computes."""
    if node.target is not torch._C._nn.linear or len(node.args) != 3:
        return False
    weight = node.args[1]
    return isinstance(weight, torch.fx.Node) and weight.op == "get_attr"


def _may_gain(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _equal(weight: Tensor, packed: Tensor, biased: bool) -> bool:
    """Return whether both layouts of a weight give the same bits for every number of tokens that is tried."""
    generator = torch.Generator().manual_seed(0)
    outputs, inputs = weight.shape
    bias = torch.randn(outputs, generator=generator).to(weight.dtype) if biased else None
    for count in _TRIED:
        tokens = torch.randn(1, count, inputs, generator=generator).to(weight.dtype)
        if not torch.equal(product(tokens, weight, bias, packed), linear(tokens, weight, bias)):
            return False
    return True
