"""Forward passes without the Python of a model's modules.

`trace` replays Dynamo's record of one pass with kernels that write the same bits, so that its numbers are those of the
eager pass: one record for calls on a single token, one for calls on more. `inductor` makes a pass for a given number of
tokens: on a CPU the record is compiled with packed weights; on a GPU the shapes are static over a bucket of the cache's
slots, and the pass is compiled and captured in a CUDA graph. All passes write into one cache of fixed capacity, whose
buffers stay where they are.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.models.cache import CACHE, KVCache
from specdec.models.masks import Mask
from specdec.models.packed_products import pack_products
from specdec.models.weight_reads import read_weights_first
from specdec.records import Tree, chain_tree

logger = logging.getLogger(__name__)

Mode = Literal["trace", "inductor"]
Result = TypeVar("Result")


class Pass(NamedTuple):
    """The result of a forward pass on N tokens.

    Attributes:
        logits: [..., N, V].
        states: [..., N, D] hidden states of the layers that were asked for, side by side in this order; None for none.
    """

    logits: Tensor
    states: Tensor | None


def run_model(
    model: Any, cache: KVCache, kept: Sequence[int], tokens: Tensor, positions: Tensor, mask: Mask, **options: int
) -> Pass:
    """Run a transformers decoder on a batch of tokens [B, N].

    Args:
        kept: layers whose hidden states are wanted, counted down from the last (0 is what the output head reads).
        options: further arguments of the model.
    """
    output = model(
        input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True,
        output_hidden_states=bool(kept), **{CACHE: cache}, **options,
    )  # fmt: skip
    return Pass(output.logits, joined_states(output.hidden_states, kept) if kept else None)


def joined_states(states: Sequence[Tensor], kept: Sequence[int]) -> Tensor:
    """Return the `kept` layers' states (see `run_model`) side by side: [..., N, len(kept) * D].

    Args:
        states: [..., N, D] of every layer, embeddings first.
    """
    found = [states[-1 - offset] for offset in kept]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


class Step(Protocol):
    """A forward pass on tokens behind the first `prefix` slots of the cache; it sets the cache's length."""

    def __call__(self, tokens: Tensor, prefix: int, mask: Mask) -> Pass:
        """Evaluate a chain of tokens [N]."""
        ...


def mode_for(wanted: bool | str, device: torch.device) -> Mode | None:
    """Return the mode of passes on a device for a value of `target.compile` (true, false, trace or auto); None: eager.

    Where a program that compilation needs is missing, "auto" warns and traces.

    Raises:
        UsageError: `true`, and such a program is missing.
    """
    if wanted is False:
        return None
    if wanted == "trace":
        return "trace"
    missing = _missing_program(device)
    if missing is None:
        return "inductor"
    if wanted is True:
        raise UsageError(
            f"Bad value target.compile=true: compiling needs {missing}, which was not found; install it, "
            "or use target.compile=auto to go on without."
        )
    logger.warning("target.compile=auto: %s was not found, so calls are traced, not compiled.", missing)
    return "trace"


def _missing_program(device: torch.device) -> str | None:
    """Name the program that compilation needs and this machine lacks; None if there is none."""
    if device.type != "cpu":
        return None  # CUDA graphs need no compiler
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler (g++ or clang++)"
    return None


_TYPICAL = 5  # tokens: the calls on more than one are timed with as many as the default drafts of four ask for


class TracedStep:
    """One graph for every context length up to the cache's capacity, replayed as it is or compiled by inductor.

    Only Dynamo's guards on shapes are kept: the model and the cache are fixed when the step is made, and checking them
    would cost about 0.7 ms a call for a model of eight layers. The first call raises Dynamo's error for a model whose
    pass does not fit in one graph, because it decides by numbers that it computes.

    Attributes:
        packed, read_first: number of matrix products with packed weights (`pack_products`), and of those whose weights
            are read first (`read_weights_first`), once the first call was made.
    """

    def __init__(self, model: Any, cache: KVCache, tokens: int | None, mode: Mode, kept: Sequence[int] = ()) -> None:
        """
        Args:
            tokens: number of tokens in every call; None for any number from 2 on. If the first call is then a batch,
                all calls are batches, of any number of sequences from 2 on; so they are for a given number.
            kept: layers whose states are wanted (see `run_model`).
        """

        def step(tokens: Tensor, positions: Tensor, mask: Mask) -> Pass:
            some = mask if isinstance(mask, Tensor) else next(iter(mask.values()))
            cache.length = some.shape[-1] - tokens.shape[-1]
            return run_model(model, cache, kept, tokens, positions, mask)

        self._step = torch.compile(
            _with_own_code(step),
            fullgraph=True,
            backend="inductor" if mode == "inductor" else self._replayed,
            options={"guard_filter_fn": _shapes_only},
        )
        self._offsets = torch.arange(cache.capacity, device=model.device)
        self._any = tokens is None
        self._made = False
        self.packed = self.read_first = 0

    def __call__(self, tokens: Tensor, prefix: int, mask: Mask, offsets: Tensor | None = None) -> Pass:
        """Evaluate tokens [N], or a batch of chains [B, N], whose logits are then [B, N, V].

        Args:
            offsets: [N] distances of the root and the nodes of a tree from its root; None for a chain.
        """
        offsets = self._offsets[: tokens.shape[-1]] if offsets is None else offsets
        step = self._step if self._made else self._make
        batch = tokens if tokens.dim() == 2 else tokens.unsqueeze(0)
        result: Pass = step(batch, (offsets + prefix).expand(len(batch), -1), mask)
        return result if tokens.dim() == 2 else only_sequence(result)

    def _replayed(self, record: torch.fx.GraphModule, inputs: Sequence[Tensor], **options: Any) -> Callable[..., Any]:
        """Return a record of a call to be replayed: a backend of `torch.compile`, given example inputs and options."""
        self.packed = pack_products(record)
        self.read_first = read_weights_first(record, _TYPICAL if self._any else 1)
        # A module looks its weights up in Python, at every use: 2% of a call of a small model.
        vars(record).update(record.named_parameters())
        vars(record).update(record.named_buffers())
        return record.forward

    def _make(self, tokens: Tensor, positions: Tensor, mask: Mask) -> Pass:
        from torch._inductor import config

        for view in [mask] if isinstance(mask, Tensor) else mask.values():
            torch._dynamo.mark_dynamic(view, [2, 3] if self._any else 3)
        dynamic = [*([0] if len(tokens) > 1 else []), *([1] if self._any else [])]
        for each in (tokens, positions) if dynamic else ():
            torch._dynamo.mark_dynamic(each, dynamic)
        self._made = True
        # Set globally, not as an option of `torch.compile`: Dynamo itself must know, to keep weights out of the inputs.
        with config.patch(freezing=True):
            result: Pass = self._step(tokens, positions, mask)
        return result


class StaticStep:
    """A pass whose tokens, positions, mask and cache have fixed shapes, so that a CUDA graph can hold it.

    It attends to a bucket of the cache's slots, masked; its inputs are the tokens, the length of the prefix and the
    topology of the draft, so that one graph serves chains and trees of up to `size` tokens. A smaller draft is filled
    up with tokens that nothing else sees.

    Attributes:
        size: number of tokens in every call, the root included.
    """

    def __init__(
        self, model: Any, cache: KVCache, size: int, windows: Mapping[str, int | None], kept: Sequence[int] = ()
    ) -> None:
        """
        Args:
            windows, kept: see `static_pass`.
        """
        device = model.device
        self.size, self._cache = size, cache
        self._tokens = torch.zeros(size, dtype=torch.long, device=device)
        self._prefix = torch.zeros(1, dtype=torch.long, device=device)
        self._tree = chain_tree(size - 1)
        # Copied, because the tensors of a tree belong to everyone who has it, and these are written over.
        self._below = Below(*(of.to(device, copy=True) for of in (self._tree.offsets, self._tree.visible)))
        self._runs = {
            slots: self._run_on(static_pass(model, cache, windows, kept, slots))
            for slots in slot_buckets(cache.capacity)
        }
        self._graphs: dict[int, CudaGraph[Pass]] = {}

    def _run_on(self, forward: Callable[..., Pass]) -> Callable[[Tensor, Tensor, "Below"], Pass]:
        offsets = torch.arange(self.size, device=self._tokens.device)

        def run(tokens: Tensor, prefix: Tensor, below: Below) -> Pass:
            return forward(tokens, prefix + offsets, below)

        return run

    def optimise(self) -> None:
        """Have inductor fuse the kernels of the pass, which takes seconds for each bucket of slots."""
        self._runs = {slots: compiled(run) for slots, run in self._runs.items()}

    def capture(self) -> None:
        """Record the pass as CUDA graphs, one for each bucket of slots; call while no text is in the cache."""
        self._graphs = {
            slots: captured(partial(run, self._tokens, self._prefix, self._below)) for slots, run in self._runs.items()
        }

    def fits(self, tokens: int, prefix: int) -> bool:
        """Tell if a call on `tokens` tokens behind `prefix` slots can be made: what fills it up needs slots too."""
        return tokens <= self.size and prefix + self.size <= self._cache.capacity

    def __call__(self, tokens: Tensor, prefix: int, tree: Tree) -> Pass:
        """Evaluate the root and the nodes of `tree`, at most `size` together (see `fits`), behind the first `prefix`
        slots. The next call overwrites the result.
        """
        count = len(tokens)
        self._tokens[:count].copy_(tokens)
        self._prefix.fill_(prefix)
        self._show(tree)
        slots = next(slots for slots in self._runs if prefix + self.size <= slots)
        if slots in self._graphs:
            result = self._graphs[slots].replay()
        else:
            result = self._runs[slots](self._tokens, self._prefix, self._below)
        self._cache.length = prefix + count
        if count == self.size:
            return result
        return Pass(result.logits[:count], None if result.states is None else result.states[:count])

    def _show(self, tree: Tree) -> None:
        """Write the topology of a draft where the graphs read it."""
        if tree == self._tree:
            return
        count = len(tree) + 1
        offsets, visible = torch.zeros(self.size, dtype=torch.long), torch.eye(self.size, dtype=torch.bool)
        offsets[:count], visible[:count, :count] = tree.offsets, tree.visible
        self._below.offsets.copy_(offsets, non_blocking=True)
        self._below.visible.copy_(visible, non_blocking=True)
        self._tree = tree


class Below(NamedTuple):
    """The topology of a draft on the device: the distances [N] of its tokens from the root, and [N, N] which of them
    each one sees.
    """

    offsets: Tensor
    visible: Tensor


_LEAST_SLOTS = 1024  # a graph attends to this many slots of the cache or to a power of two times as many


def slot_buckets(capacity: int) -> list[int]:
    """Return the numbers of slots that graphs over a cache attend to, in increasing order; the last is its capacity.

    A call takes the first one that holds its text, so that a short text in a large cache does not pay for all of it.
    """
    sizes = []
    slots = _LEAST_SLOTS
    while slots < capacity:
        sizes.append(slots)
        slots *= 2
    return [*sizes, capacity]


def static_pass(
    model: Any, cache: KVCache, windows: Mapping[str, int | None], kept: Sequence[int] = (), slots: int | None = None
) -> Callable[..., Pass]:
    """Make a forward pass with the same shapes at every call: it attends to the cache's first `slots` slots, masked.

    Args:
        windows: for each kind of attention layer, how many tokens back it sees; None for all.
        kept: layers whose states are wanted (see `run_model`).
        slots: None for the whole capacity.
    Returns:
        (tokens [N], places [N], below = None) -> logits [N, V] and states, of tokens that are written to these slots of
        the cache, which follow one another: a chain, or the draft whose topology is `below`. It leaves the cache's
        length as it is.
    """
    slots = cache.capacity if slots is None else slots
    columns = torch.arange(slots, device=model.device)
    hidden = torch.full((), torch.finfo(model.dtype).min, dtype=model.dtype, device=model.device)

    def forward(tokens: Tensor, places: Tensor, below: Below | None = None) -> Pass:
        positions, behind, seen = _sight(places, columns, below)
        masks = {}
        for kind, window in windows.items():
            within = seen if window is None else seen & (behind < window)
            masks[kind] = torch.where(within, hidden.new_zeros(()), hidden)[None, None]
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        with cache.writing_to(places, slots):
            return only_sequence(run_model(model, cache, kept, tokens.unsqueeze(0), positions.unsqueeze(0), mask))

    return forward


def _sight(places: Tensor, columns: Tensor, below: Below | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions [N] of tokens, by how much each slot is behind them, and which slots they see, [N, slots].

    Args:
        places: [N] the slots of the tokens, which follow one another.
        columns: [slots] all slots, from 0 on.
        below: None for a chain.
    """
    if below is None:
        behind = places[:, None] - columns
        return places, behind, behind >= 0
    positions = places[0] + below.offsets
    ahead = columns - places[0]  # 0 is the root's slot
    node = ahead.clamp(0, len(places) - 1)
    in_prefix = ahead < 0
    behind = positions[:, None] - torch.where(in_prefix, columns, positions[node])
    seen = in_prefix | ((ahead < len(places)) & below.visible[:, node])
    return positions, behind, seen


def only_sequence(batch: Pass) -> Pass:
    """Return the result of the only sequence of a batch of size one."""
    return Pass(batch.logits[0], None if batch.states is None else batch.states[0])


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function for the shapes of its first call. All later calls must have the same: nothing checks them."""
    result: Callable[..., Result] = torch.compile(
        _with_own_code(function), fullgraph=True, options={"guard_filter_fn": _shapes_only}
    )
    return result


class CudaGraph(Generic[Result]):
    """A CUDA graph and its result, which every replay overwrites."""

    def __init__(self, graph: Any, result: Result) -> None:
        self._graph, self._result = graph, result

    def replay(self) -> Result:
        self._graph.replay()
        return self._result


def captured(run: Callable[[], Result]) -> CudaGraph[Result]:
    """Capture what `run` launches as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compilation, autotuning and workspaces of libraries happen here and are not captured
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return CudaGraph(graph, result)


def _with_own_code(function: Callable[..., Result]) -> Callable[..., Result]:
    """Copy a function together with its code object: Dynamo files its records by code object, and without guards on
    the cache it could not tell the records of two caches apart.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def _shapes_only(entries: Any) -> list[bool]:
    return [entry.guard_type == "SHAPE_ENV" for entry in entries]
