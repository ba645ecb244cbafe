"""Products of traced passes with weights laid out once for the processor, where that changes no bit of the result.

In bfloat16 `torch.nn.functional.linear` gives a CPU's library a plain weight, which is laid out anew in every call and
takes longer than the product of a few tokens: on one thread of a Xeon with AMX 26 us for 320 x 320 and 176 for
4,096 x 320, where a weight that was laid out before takes 18 and 100. Most of the 18 is the call, so products of the
same tokens (queries, keys and values) become one. In float32 the plain weight is as fast.
"""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.functional import linear
from torch.utils.weak import WeakTensorKeyDictionary

from specdec.models.memory import available_bytes

_FEW = 64  # tokens: calls on more keep the plain weight, with which a prefill is as fast
_TRIED = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, _FEW)  # numbers of tokens for which results are compared
_MEMORY = 4  # the copies take at most this part of the memory that is free

# By the first of the weights that are packed as one, then by the identities of all and how often each was written to:
# the passes of a model share copies, and none stands for weights that were trained on since.
_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def pack_products(record: GraphModule) -> int:
    """Have a recorded pass multiply few tokens by packed weights; return the number of products that do.

    Left as they are: products on another device or in a type that gains nothing, those whose packed result differs in
    a bit on this processor, and all of them where a second copy of the weights would take too much memory.
    """
    by_tokens: dict[Any, list[Node]] = {}  # the products of the same tokens are one
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        for node in record.graph.nodes:
            weight = stored_weight(record, node)
            if weight is not None and weight.device.type == "cpu" and weight.dtype == torch.bfloat16:
                by_tokens.setdefault((node.args[0], node.args[2] is None), []).append(node)
    groups = deque(by_tokens.values())
    asked = [weights for group in groups if _known(weights := _stored(record, group, 1)) is None]
    new = sum(weight.nbytes for weights in asked for weight in weights)
    free = available_bytes(torch.device("cpu"))
    if not groups or (free is not None and new * _MEMORY > free):
        return 0
    equal: dict[Any, bool] = {}  # one answer for all weights of the same shapes
    replaced = 0
    while groups:
        group = groups.popleft()
        weights, biases = _stored(record, group, 1), _stored(record, group, 2)
        packed = _known(weights)
        if packed is None:
            packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights).detach())
        bias = None if biases[0] is None else torch.cat([each for each in biases if each is not None])
        kind = (*[weight.shape for weight in weights], bias is None)
        if kind not in equal:
            equal[kind] = _equal(weights, packed, bias is not None)
        if equal[kind]:
            _packed.setdefault(weights[0], {})[_identity(weights)] = packed
            _replace(record, group, packed, bias)
            replaced += len(group)
        elif len(group) > 1:
            groups.extend([node] for node in group)
    record.recompile()
    return replaced


def products(
    tokens: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    sizes: Sequence[int],
    packed: Tensor,
    bias: Tensor | None,
) -> Sequence[Tensor]:
    """Multiply tokens [..., inputs] by each of the weights [outputs, inputs] and add its bias.

    Args:
        sizes: outputs of each weight.
        packed, bias: all weights as one, packed, and all biases.
    """
    if tokens.numel() > _FEW * tokens.shape[-1]:
        return [linear(tokens, *each) for each in zip(weights, biases, strict=True)]
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(tokens, packed, bias, "none", [], "")
    return [result] if len(sizes) == 1 else [part.contiguous() for part in result.split(sizes, -1)]


def stored_weight(record: GraphModule, node: Node) -> Tensor | None:
    """Return the weight of a linear product whose weight and bias are stored in the model: neither computed by the
    pass nor given to it. None for any other node.
    """
    if node.target is not torch._C._nn.linear or len(node.args) != 3:
        return None
    _, *given = node.args
    stored = all(isinstance(each, Node) and each.op == "get_attr" for each in given if each is not None)
    return _stored(record, [node], 1)[0] if stored else None


def _stored(record: GraphModule, group: Sequence[Node], place: int) -> list[Any]:
    """Return the weights (at place 1 of the arguments) or the biases (2), tensors or None, of a group of products."""
    named = [node.args[place] for node in group]
    return [attrgetter(str(node.target))(record) if isinstance(node, Node) else None for node in named]


def _known(weights: Sequence[Tensor]) -> Tensor | None:
    """Return the packed copy of these weights that another pass made."""
    return _packed.get(weights[0], {}).get(_identity(weights))


def _identity(weights: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    return tuple((id(weight), 0 if weight.is_inference() else weight._version) for weight in weights)


def _equal(weights: Sequence[Tensor], packed: Tensor, biased: bool) -> bool:
    """Return whether both layouts of some weights give the same bits for every number of tokens that is tried."""
    generator = torch.Generator().manual_seed(0)
    sizes, inputs = [len(weight) for weight in weights], weights[0].shape[1]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(weights[0].dtype)

    biases = [drawn(size) if biased else None for size in sizes]
    bias = torch.cat([each for each in biases if each is not None]) if biased else None
    for count in _TRIED:
        tokens = drawn(1, count, inputs)
        found = products(tokens, weights, biases, sizes, packed, bias)
        plain = [linear(tokens, *each) for each in zip(weights, biases, strict=True)]
        if not all(map(torch.equal, found, plain)):
            return False
    return True


def _replace(record: GraphModule, group: Sequence[Node], packed: Tensor, bias: Tensor | None) -> None:
    """Put a call of `products` in the place of a group's first node, and its results in the places of all."""
    graph, name = record.graph, f"packed_{group[0].name}"
    record.register_buffer(name, packed, persistent=False)
    if bias is not None:
        record.register_buffer(f"{name}_bias", bias, persistent=False)

    def copied(node: Any) -> Node | None:
        return None if node is None else graph.get_attr(node.target)  # the other products' come after the first product

    with graph.inserting_before(group[0]):
        results = graph.call_function(
            products,
            (
                group[0].args[0],
                [copied(node.args[1]) for node in group],
                [copied(node.args[2]) for node in group],
                [len(weight) for weight in _stored(record, group, 1)],
                graph.get_attr(name),
                None if bias is None else graph.get_attr(f"{name}_bias"),
            ),
        )
    for number, node in enumerate(group):
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_function(getitem, (results, number)))
        graph.erase_node(node)
