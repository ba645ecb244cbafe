"""A decoder's pass cut into programs: a head, one layer of each kind, a tail. All tensors are arguments, weights too.

A model of thirty equal layers is three programs, as one of eight is: the layer is called thirty times, each time with
the weights of another. Layers are of one kind if their modules, shapes and arguments are the same. Small layers are
called two at a time. Whether a pass of these calls is the model's own is for the caller to check.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from specdec.compiled.operations import attention_by_kernel, use_products
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass, run_model
from specdec.models.partial import blocks_of

_TOKENS, _PREFIX, _CAPACITY = 7, 40, 307  # of the example calls: equal sizes would be taken for one
# Bytes of a layer's weights, below which two layers are a program: a call of one takes about two microseconds, which
# are a twentieth of the time of a layer of 2 MB on an AMD EPYC.
_SMALL = 6 << 20
_CACHED = 64 << 20  # bytes of a model's weights that the third caches of some processors hold
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)


class Call(NamedTuple):
    """A call of a program within a pass.

    Attributes:
        program: (tensors) -> tensors, the same object for all layers of a kind, or the file that it was compiled into.
        inputs: names of weights, behind a dot, of a layer's part of the cache (`keys I`, `values I`), or of values:
            `tokens` and `places` [1, N], masks by their kind, or what an earlier call made; or constants.
        outputs: names of the values that it makes: `states I` [1, N, D] is what layer I reads, `logits` [1, N, V], and
            `states` is what the output head reads.
        name: of the program, for its file: head, layer, tail or product.
    """

    program: Any
    inputs: Sequence[Tensor | str]
    outputs: Sequence[str]
    name: str = ""


def cut(decoder: Decoder, cache: KVCache) -> list[Call]:
    """Return the calls that make up a decoder's pass on any number of tokens, in order, over a cache that has its
    buffers, of which the first copy is used. Raises ValueError: it is no head, layers and tail; and any Exception where
    torch cannot export a part: some ten unrelated types.
    """
    model, windows = decoder.model, list(decoder.windows)
    blocks = list(blocks_of(model, decoder.name))
    paths = {module: path for path, module in model.named_modules()}
    with torch.inference_mode(False), torch.no_grad(), attention_by_kernel(model):
        form, exports = _Form(model, blocks, windows), partial(_exported, weights_cached(model.parameters()))
        head, places = _Head(form), torch.arange(_TOKENS).unsqueeze(0)
        exported = exports(
            "head", head, ["tokens", "places", *windows], places + 1, places + _PREFIX, form.masks(_TOKENS)
        )
        names = ["states 0", *(f"shared {number}" for number in range(len(exported.values) - 1))]
        examples = {each: _example(value) for each, value in zip(names, exported.values, strict=True)}
        placed = zip(names, exported.places, strict=True)
        made = {name: name if isinstance(place, int) else place for name, place in placed}
        calls, kinds = [exported.call(names, {})], dict[Hashable, _Exported]()
        small = all(sum(each.nbytes for each in block.parameters()) < _SMALL for block in blocks)
        size = 2 if small and len(blocks) % 2 == 0 and not any(decoder.kept) else 1  # any: read between the layers
        for first in range(0, len(blocks), size):
            end = first + size
            part = _Layers(blocks[first:end], head.called.taken[first:end])
            slots = [f"{of} {place}" for place in part.places if place is not None for of in ("keys", "values")]
            whole = with_tensors(model, cache, slots)
            own = ["states", *(f"given {place}" for place in range(len(part.names)))]
            own += [f"slot {place}" for place in range(len(slots))]
            values = [f"states {first}", *(made[each] for each in part.names), *slots]
            given = dict(zip(own, values, strict=True))
            for number, block in enumerate(part.blocks):
                weights = [name for name, _ in (*block.named_parameters(), *block.named_buffers())]
                given |= {f".{number}.{weight}": f".{paths[block]}.{weight}" for weight in weights}
            kind = (part.kind, *((buffer.shape[1::2], buffer.dtype) for buffer in whole))
            if kind not in kinds:
                buffers = [buffer.new_zeros(1, buffer.shape[1], _CAPACITY, buffer.shape[3]) for buffer in whole]
                tensors = [examples[each] for each in part.names]
                kinds[kind] = exports("layer", part, own, examples["states 0"], tensors, buffers)
            calls.append(kinds[kind].call([f"states {end}"], given))
        # Apart, because a prefill has a use for the states and none for logits.
        for value in ("states", "logits") if 0 in decoder.kept else ("logits",):
            exported = exports("tail", _Tail(form, value), ["states"], examples["states 0"])
            calls.append(exported.call([value], {"states": f"states {len(blocks)}"}))
        return calls


def product(weight: Tensor) -> Call:
    """Return the call of a program that multiplies vectors [1, N, D] by a weight [V, D], which it is given first."""
    with torch.inference_mode(False), torch.no_grad():
        part = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        part.weight = nn.Parameter(weight.detach(), requires_grad=False)
        cached = weights_cached([weight])
        exported = _exported(cached, "product", part, ["vectors"], weight.new_zeros(1, _TOKENS, weight.shape[1]))
    return exported.call(["logits"], {})


def weights_cached(weights: Iterable[Tensor]) -> bool:
    """Return whether a processor's caches may hold all these weights from one call to the next."""
    return sum(each.nbytes for each in weights) <= _CACHED


def with_tensors(model: Any, cache: KVCache, inputs: Sequence[Any]) -> list[Any]:
    """Return inputs of calls with weights, and parts of the cache's first copy, in the place of their names."""

    def tensor(name: str) -> Tensor | str:
        if name.startswith("."):
            return attrgetter(name[1:])(model).detach()
        of, _, place = name.partition(" ")
        return getattr(cache.layers[int(place)], of)[:1] if of in ("keys", "values") else name

    return [tensor(each) if isinstance(each, str) else each for each in inputs]


def made_of(model: Any, kept: Sequence[int]) -> list[str]:
    """Return what a pass's calls depend on beside the code's versions: settings and weights of model and modules."""
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    return [type(model).__qualname__, str(config), str(tuple(kept)), str(_kind(model))]


class _Form:
    """A model, its layers, its kinds of masks, and what a layer returns behind the states (None: no tuple)."""

    def __init__(self, model: Any, blocks: Sequence[nn.Module], kinds: Sequence[str]) -> None:
        self.model, self.blocks, self.kinds = model, blocks, kinds
        returned, one = list[Any](), torch.zeros(1, 1, dtype=torch.long)
        hook = blocks[0].register_forward_hook(lambda *call: returned.append(call[-1]))
        try:
            self.run(one, one, self.masks(1))
        finally:
            hook.remove()
        self.behind: tuple[None, ...] | None = returned[0][1:] if isinstance(returned[0], tuple) else None
        if any(each is not None for each in self.behind or ()):
            raise ValueError("a layer returns more than its states")

    def masks(self, count: int) -> list[Tensor]:
        """Return a mask of each kind under which `count` tokens see all."""
        return [torch.zeros(1, 1, count, _PREFIX + count, dtype=self.model.dtype) for _ in self.kinds]

    def run(self, tokens: Tensor, places: Tensor, masks: Sequence[Tensor], kept: Sequence[int] = ()) -> Pass:
        cache = KVCache(len(self.blocks), _CAPACITY)
        cache.length = masks[0].shape[-1] - tokens.shape[-1]
        return run_model(self.model, cache, kept, tokens, places, dict(zip(self.kinds, masks, strict=True)))

    def run_with(self, layer: Callable[..., Tensor], *given: Any) -> Pass:
        """Run the model with (states, arguments) -> states in the place of each of its layers."""

        def forward(states: Tensor, *args: Any, **options: Any) -> Any:
            found = layer(states, (args, options))
            return found if self.behind is None else (found, *self.behind)

        for block in self.blocks:
            block.forward = forward
        try:
            return self.run(*given)
        finally:
            for block in self.blocks:
                del block.forward


class _Taken(NamedTuple):
    """The arguments of a layer beside the states: the `names` of its tensors, among those of the head, and all
    `leaves`, with the types `Tensor` and `KVCache` in the places of a tensor and of the cache.
    """

    names: Sequence[str]
    leaves: Sequence[Any]
    structure: Any

    def arguments(self, tensors: Sequence[Tensor], cache: KVCache) -> Any:
        given = iter(tensors)
        leaves = [next(given) if leaf is Tensor else cache if leaf is KVCache else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.structure)


def _taken(arguments: Any, shared: list[Tensor]) -> _Taken:
    """Return what a layer takes; its tensors are looked up in `shared`, and added there."""
    leaves, structure = pytree.tree_flatten(arguments)
    names = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            if not any(leaf is each for each in shared):
                shared.append(leaf)
            names.append(f"shared {next(number for number, each in enumerate(shared) if each is leaf)}")
            leaves[place] = Tensor
        elif isinstance(leaf, KVCache):
            leaves[place] = KVCache
        elif not isinstance(leaf, _CONSTANTS):
            raise ValueError(f"a layer takes a {type(leaf).__name__}")
    return _Taken(names, leaves, structure)


class _Head(nn.Module):
    """The part of a pass before the first layer: the states that this reads, and the tensors that layers are given."""

    def __init__(self, form: _Form) -> None:
        super().__init__()
        self.model, self._form = form.model, form
        self.called = SimpleNamespace(taken=())  # by each layer in an export, which takes other attributes back

    def forward(self, tokens: Tensor, places: Tensor, masks: list[Tensor]) -> list[Tensor]:
        read, shared, taken = list[Tensor](), list[Tensor](), list[_Taken]()

        def layer(states: Tensor, arguments: Any) -> Tensor:
            if read and states is not read[0]:
                raise ValueError("something is computed between its layers")
            read[:] = [states]
            taken.append(_taken(arguments, shared))
            return states

        self._form.run_with(layer, tokens, places, masks)
        self.called.taken = taken
        return [*read, *shared]


class _Layers(nn.Module):
    """Layers that follow one another, whose parts of the cache are arguments that they write into.

    Attributes:
        places: the number of each layer's part of the cache; None for one without attention.
        names: of the tensors that they are given, among those of the head.
        kind: all that makes them another program, but for the shape of their parts of the cache.
    """

    def __init__(self, blocks: Sequence[nn.Module], taken: Sequence[_Taken]) -> None:
        super().__init__()
        self.blocks, self._taken = nn.ModuleList(blocks), taken
        self.places = [_place(block) for block in blocks]
        self.names = list(dict.fromkeys(name for each in taken for name in each.names))
        self.kind = str([
            (_kind(block), each.leaves, each.structure, [self.names.index(name) for name in each.names])
            for block, each in zip(blocks, taken, strict=True)
        ])  # fmt: skip

    def forward(self, states: Tensor, tensors: list[Tensor], buffers: Sequence[Tensor]) -> Tensor:
        cache = KVCache(max(place or 0 for place in self.places) + 1, _CAPACITY)
        if buffers:
            mask = next(each for each in tensors if each.dim() == 4)  # [1, 1, N, prefix + N]
            cache.length = mask.shape[-1] - states.shape[1]
        given, slots = dict(zip(self.names, tensors, strict=True)), iter(buffers)
        for block, taken, place in zip(self.blocks, self._taken, self.places, strict=True):
            if place is not None:
                layer = cache.layers[place]
                layer.keys, layer.values = next(slots), next(slots)
                layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
            args, options = taken.arguments([given[name] for name in taken.names], cache)
            result = block(states, *args, **options)
            states = result[0] if isinstance(result, tuple) else result
        return states


class _Tail(nn.Module):
    """The part of a pass behind the last layer that makes `logits`, or the `states` that the output head reads."""

    def __init__(self, form: _Form, made: str) -> None:
        super().__init__()
        self.model, self._form, self._made = form.model, form, made

    def forward(self, states: Tensor) -> Tensor:
        count, kept = states.shape[1], (0,) if self._made == "states" else ()
        tokens = torch.zeros(1, count, dtype=torch.long)
        result = self._form.run_with(lambda *_: states, tokens, tokens, self._form.masks(count), kept)
        return getattr(result, self._made)


def _place(block: nn.Module) -> int | None:
    """Return the number of a layer's part of the cache; None for one without attention."""
    places = {vars(module)["layer_idx"] for module in block.modules() if "layer_idx" in vars(module)}
    if len(places) > 1:
        raise ValueError("a layer holds several attentions")
    return next(iter(places), None)


def _kind(block: nn.Module) -> Hashable:
    """Return all that makes a layer another program, less its number: modules, their settings, shapes of weights."""
    settings = [
        (name, type(module).__qualname__, {
            key: str(value)
            for key, value in vars(module).items()
            if isinstance(value, (*_CONSTANTS, list, tuple)) and key != "layer_idx"
        })
        for name, module in block.named_modules()
    ]  # fmt: skip
    weights = [(name, each.shape, each.stride(), each.dtype) for name, each in block.state_dict(keep_vars=True).items()]
    return str((settings, weights))


class _Exported(NamedTuple):
    """A part of a model as a program.

    Attributes:
        inputs: name of a weight behind a dot, of an argument, or a constant, for each input of the program.
        values: all that the part returns, as they were when it was exported.
        places: for each of these, the output of the program, or the argument that it is.
    """

    name: str
    graph: GraphModule
    inputs: Sequence[Tensor | str]
    values: Sequence[Tensor]
    places: Sequence[int | str]

    def call(self, names: Sequence[str], given: Mapping[str, Tensor | str]) -> Call:
        """Return a call with what is `given` in the place of inputs of that name; `names` are those of `values`."""
        outputs = [name for name, place in zip(names, self.places, strict=True) if isinstance(place, int)]
        inputs = [given.get(each, each) if isinstance(each, str) else each for each in self.inputs]
        return Call(self.graph, inputs, outputs, self.name)


def _exported(cached: bool, name: str, part: nn.Module, names: Sequence[str], *given: Any) -> _Exported:
    """Export a part of a model by the names of its arguments, in order (others are not given), and an example;
    `cached`: see `use_products`.
    """

    def dynamic(example: Tensor) -> dict[int, Any]:
        # The sizes of an example are those that vary in a pass.
        sizes = (_TOKENS, _PREFIX + _TOKENS, _CAPACITY)
        return {place: torch.export.Dim.DYNAMIC for place, size in enumerate(example.shape) if size in sizes}

    program = torch.export.export(part, given, dynamic_shapes=pytree.tree_map(dynamic, given), strict=False)
    graph, signature = program.graph_module, program.graph_signature
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    use_products(graph, cached)
    (output,) = graph.graph.find_nodes(op="output")
    results = [node for node in pytree.tree_leaves(output.args[0]) if isinstance(node, Node)]
    inputs, arguments, of_nodes = [], iter(names), {}
    for spec, node in zip(signature.input_specs, graph.graph.find_nodes(op="placeholder"), strict=True):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            of_nodes[node] = "." + str(spec.target).partition(".")[2]  # behind the part's own name for its module
        else:
            of_nodes[node] = next(arguments) if spec.kind == InputKind.USER_INPUT else program.constants[spec.target]
    made = [node for node in results if node not in of_nodes]
    output.args = (tuple(made),)
    for node in list(of_nodes):
        if node.users:
            inputs.append(of_nodes[node])
        else:
            graph.graph.erase_node(node)
    graph.recompile()
    places = [made.index(node) if node in made else of_nodes[node] for node in results]
    return _Exported(name, graph, inputs, [node.meta["val"] for node in results], places)


def _example(value: Tensor) -> Tensor:
    """Return a tensor with the sizes and strides that a value had in the example call."""
    sizes, strides = (
        [int(each.node.hint) if isinstance(each, torch.SymInt) else each for each in several]
        for several in (value.shape, value.stride())
    )
    return torch.empty_strided(sizes, strides, dtype=value.dtype).zero_()
