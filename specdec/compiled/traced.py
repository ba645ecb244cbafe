"""Traced passes: Dynamo's record of one forward pass, replayed without the Python of the model's modules.

The kernels write the same bits, so that the numbers are those of the eager pass. Products are made faster in two ways,
where that changes no bit.

Weights are *packed*, laid out once for the processor. In bfloat16 `torch.nn.functional.linear` gives a CPU's library a
plain weight, which is laid out anew in every call and takes longer than the product of a few tokens: on one thread of a
Xeon with AMX 26 us for 320 x 320 and 176 for 4,096 x 320, where a weight that was laid out before takes 18 and 100.
Most of the 18 is the call, so products of the same tokens (queries, keys and values) become one. In float32 the plain
weight is as fast.

Weights are *read first*, once and in order. The product of a few tokens walks along several rows of a weight at a time,
which a processor fetches badly ahead: on an EPYC, MKL takes float32 weights from memory at 8 GB/s, a sum over them at
24. So the pass first sums the weight, which brings it into the processor's cache, and forgets the sum.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter, getitem
from statistics import median
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.functional import linear
from torch.utils.weak import WeakTensorKeyDictionary

from specdec.disturbance import watch_of
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass, only_sequence, run_model
from specdec.models.masks import Masks
from specdec.models.memory import available_bytes

Result = TypeVar("Result")

_TYPICAL = 5  # tokens: the calls on more than one are timed with as many as the default drafts of four ask for
_FEW = 64  # tokens: calls on more keep the plain weight, with which a prefill is as fast
_TRIED = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, _FEW)  # numbers of tokens for which results are compared
_MEMORY = 4  # the copies take at most this part of the memory that is free
_WORD, _LINE = 8, 64  # bytes: of an integer that is summed, and of what memory hands over at a time
_LARGEST = 16 << 20  # bytes: a weight that no cache holds would be read from memory twice
_SAMPLE = 256 << 20  # bytes of weights that are timed: more than the caches of most processors
_ROUNDS = 7
_WORTH = 0.95  # a weight is read first if reading and product take less than this part of the product's own time

# By the first of the weights that are packed as one, then by the identities of all and how often each was written to:
# the passes of a model share copies, and none stands for weights that were trained on since.
_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class TracedStep:
    """One record for every context length up to the cache's capacity, replayed as it is.

    Only Dynamo's guards on shapes are kept: the model and the cache are fixed when the step is made, and checking them
    would cost about 0.7 ms a call for a model of eight layers. The first call raises Dynamo's error for a model whose
    pass does not fit in one graph, because it decides by numbers that it computes.

    Attributes:
        packed, read_first: number of matrix products with packed weights (`pack_products`), and of those whose weights
            are read first (`read_weights_first`), once the first call was made.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, tokens: int | None) -> None:
        """Take the number of tokens in every call; None for any number from 2 on. If the first call is then a batch,
        all calls are batches, of any number of sequences from 2 on; so they are for a given number.
        """
        model, kept = decoder.model, decoder.kept

        def step(tokens: Tensor, positions: Tensor, masks: Masks) -> Pass:
            cache.length = next(iter(masks.values())).shape[-1] - tokens.shape[-1]
            return run_model(model, cache, kept, tokens, positions, masks)

        self._step = recorded(step, backend=self._replayed)
        self._any = tokens is None
        self._made = False
        self.packed = self.read_first = 0

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Masks) -> Pass:
        """Evaluate tokens [N] at positions [N], or a batch of chains [B, N], whose logits are then [B, N, V]."""
        step = self._step if self._made else self._make
        batch = tokens if tokens.dim() == 2 else tokens.unsqueeze(0)
        result = step(batch, positions.expand(len(batch), -1), masks)
        return result if tokens.dim() == 2 else only_sequence(result)

    def _replayed(self, record: GraphModule, inputs: Sequence[Tensor], **options: Any) -> Callable[..., Any]:
        """Return a record of a call to be replayed: a backend of `torch.compile`, given example inputs and options."""
        self.packed = pack_products(record)
        self.read_first = read_weights_first(record, _TYPICAL if self._any else 1)
        # A module looks its weights up in Python, at every use: 2% of a call of a small model.
        vars(record).update(record.named_parameters())
        vars(record).update(record.named_buffers())
        return record.forward

    def _make(self, tokens: Tensor, positions: Tensor, masks: Masks) -> Pass:
        from torch._inductor import config

        for view in masks.values():
            torch._dynamo.mark_dynamic(view, [2, 3] if self._any else 3)
        dynamic = [*([0] if len(tokens) > 1 else []), *([1] if self._any else [])]
        for each in (tokens, positions) if dynamic else ():
            torch._dynamo.mark_dynamic(each, dynamic)
        self._made = True
        # Set globally, not as an option of `torch.compile`: Dynamo itself must know, to keep weights out of the inputs.
        with config.patch(freezing=True):
            return self._step(tokens, positions, masks)


def recorded(function: Callable[..., Result], **options: Any) -> Callable[..., Result]:
    """Compile a function as one graph, with `options` of `torch.compile`. All later calls must have the shapes of the
    first one, but for those that were marked as varying: nothing else of Dynamo's guards is kept.

    The function is copied together with its code object: Dynamo files its records by code object, and without guards on
    the cache it could not tell the records of two caches apart.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    kept: dict[str, Any] = {"guard_filter_fn": lambda guards: [guard.guard_type == "SHAPE_ENV" for guard in guards]}
    return torch.compile(own, fullgraph=True, options=kept, **options)


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
    """Multiply tokens [..., inputs] by each of the weights [outputs, inputs], whose outputs are `sizes`, and add its
    bias. All weights as one, packed, are `packed`, and all biases `bias`.
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


def read_weights_first(record: GraphModule, tokens: int) -> int:
    """Have a recorded pass read weights before it multiplies by them; return the number of products that do.

    Those of a shape are read if that was faster than the products alone, timed here on the weights themselves with so
    many tokens. For one, which MKL multiplies on one thread, a word of each line of memory is read, on that thread too;
    for more all words are, by all threads.
    """
    stride = _LINE // _WORD if tokens == 1 else 1
    products = [(node, stored_weight(record, node)) for node in record.graph.nodes]
    found = [(node, weight) for node, weight in products if weight is not None and _can_be_read(weight)]
    shapes = _faster([weight for _, weight in found], tokens, stride)
    chosen = [(node, weight) for node, weight in found if weight.shape in shapes]
    for node, weight in chosen:
        name = f"read_before_{node.name}"
        record.register_buffer(name, _words(weight, stride), persistent=False)
        with record.graph.inserting_before(node):
            record.graph.call_method("sum", (record.graph.get_attr(name),))
    record.recompile()
    return len(chosen)


def _can_be_read(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, torch.nn.Parameter)  # neither quantised nor spread over devices
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and weight.nbytes <= _LARGEST
        and weight.nbytes % _WORD == 0
        and weight.storage_offset() * weight.itemsize % _WORD == 0
    )


def _words(weight: Tensor, stride: int) -> Tensor:
    """Return a view of the words of a weight, `stride` apart, as integers: sums of denormal floats are slow."""
    return weight.detach().view(-1).view(torch.int64)[::stride]


def _faster(weights: Sequence[Tensor], tokens: int, stride: int) -> set[torch.Size]:
    """Return the shapes of the weights whose products are faster after a reading."""
    sizes = accumulate(weight.nbytes for weight in weights)
    sample = [weight for weight, size in zip(weights, sizes, strict=True) if size <= _SAMPLE]
    inputs = {weight.shape: weight.new_ones(1, tokens, weight.shape[-1]) for weight in sample}
    seconds: dict[bool, dict[torch.Size, list[float]]] = {read: defaultdict(list) for read in (False, True)}

    def trial(read: bool) -> dict[torch.Size, float]:
        taken: dict[torch.Size, float] = defaultdict(float)
        for weight in sample:  # in the order of a call, so that none is in the cache because it was the last
            words = _words(weight, stride)
            began = time.perf_counter()
            if read:
                words.sum()
            linear(inputs[weight.shape], weight)
            taken[weight.shape] += time.perf_counter() - began
        return taken

    watch = watch_of(torch.device("cpu"))
    for read in (False, True) * _ROUNDS:
        for shape, total in watch.undisturbed(partial(trial, read)).items():
            seconds[read][shape].append(total)
    return {shape for shape in inputs if median(seconds[True][shape]) < _WORTH * median(seconds[False][shape])}
