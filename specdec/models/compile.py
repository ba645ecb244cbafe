"""Forward passes without the Python of a model's modules.

`trace` replays Dynamo's record of one pass with the same kernels, so that its numbers are those of the eager pass: one
record for calls on a single token, one for calls on more. `inductor` makes a pass for a given number of tokens: on a
CPU the record is compiled with packed weights; on a GPU the shapes are static over the whole cache, and the pass is
compiled and captured in a CUDA graph. All passes write into one cache of fixed capacity, whose buffers stay where they
are.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.models.cache import KVCache
from specdec.models.masks import Mask

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
        input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
        output_hidden_states=bool(kept), **options,
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
        """Evaluate a chain of tokens [N]; on a GPU the next call overwrites the result. A step that makes its own mask
        ignores `mask`.
        """
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


def _replayed(record: torch.fx.GraphModule, inputs: Sequence[Tensor], **options: Any) -> Callable[..., Any]:
    """Return a record of a call as it is: a backend of `torch.compile`, which is given example inputs and options."""
    # A module looks its weights up in Python, at every use: 2% of a call of a small model.
    vars(record).update(record.named_parameters())
    vars(record).update(record.named_buffers())
    return record.forward


class TracedStep:
    """One graph for every context length up to the cache's capacity, replayed as it is or compiled by inductor.

    Only Dynamo's guards on shapes are kept: the model and the cache are fixed when the step is made, and checking them
    would cost about 0.7 ms a call for a model of eight layers. The first call raises Dynamo's error for a model whose
    pass does not fit in one graph, because it decides by numbers that it computes.
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
            backend="inductor" if mode == "inductor" else _replayed,
            options={"guard_filter_fn": _shapes_only},
        )
        self._offsets = torch.arange(cache.capacity, device=model.device)
        self._any = tokens is None
        self._made = False

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

    It attends to the whole capacity of the cache, masked; its only inputs are the tokens and the length of the prefix.
    """

    def __init__(
        self, model: Any, cache: KVCache, size: int, windows: Mapping[str, int | None], kept: Sequence[int] = ()
    ) -> None:
        """
        Args:
            size: number of tokens in every call.
            windows, kept: see `static_pass`.
        """
        self._tokens = torch.zeros(1, size, dtype=torch.long, device=model.device)
        self._prefix = torch.zeros(1, dtype=torch.long, device=model.device)
        self._size, self._cache = size, cache
        forward = static_pass(model, cache, windows, kept)
        offsets = torch.arange(size, device=model.device)

        def step(tokens: Tensor, prefix: Tensor) -> Pass:
            return forward(tokens[0], prefix + offsets)

        self._step: Callable[[Tensor, Tensor], Pass] = step
        self._graph: Any = None
        self._result: Pass | None = None

    def capture(self) -> None:
        """Compile the step and record it as a CUDA graph; call while no text is in the cache."""
        step = compiled(self._step)
        self._graph, self._result = captured(lambda: step(self._tokens, self._prefix))

    def __call__(self, tokens: Tensor, prefix: int, mask: Mask) -> Pass:
        self._tokens[0].copy_(tokens)
        self._prefix.fill_(prefix)
        if self._graph is None:
            self._result = self._step(self._tokens, self._prefix)
        else:
            self._graph.replay()
        self._cache.length = prefix + self._size
        assert self._result is not None
        return self._result


def static_pass(
    model: Any, cache: KVCache, windows: Mapping[str, int | None], kept: Sequence[int] = ()
) -> Callable[[Tensor, Tensor], Pass]:
    """Make a forward pass with the same shapes at every call: it attends to the cache's whole capacity, masked.

    Args:
        windows: for each kind of attention layer, how many tokens back it sees; None for all.
        kept: layers whose states are wanted (see `run_model`).
    Returns:
        (tokens [N], places [N]) -> logits [N, V] and states, for a chain that is written to these slots of the cache.
        It leaves the cache's length as it is.
    """
    columns = torch.arange(cache.capacity, device=model.device)
    hidden = torch.full((), torch.finfo(model.dtype).min, dtype=model.dtype, device=model.device)

    def forward(tokens: Tensor, places: Tensor) -> Pass:
        behind = places[:, None] - columns  # [N, capacity]
        masks = {}
        for kind, window in windows.items():
            seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
            masks[kind] = torch.where(seen, hidden.new_zeros(()), hidden)[None, None]
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        with cache.writing_to(places):
            return only_sequence(run_model(model, cache, kept, tokens.unsqueeze(0), places.unsqueeze(0), mask))

    return forward


def only_sequence(batch: Pass) -> Pass:
    """Return the result of the only sequence of a batch of size one."""
    return Pass(batch.logits[0], None if batch.states is None else batch.states[0])


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function for the shapes of its first call. All later calls must have the same: nothing checks them."""
    result: Callable[..., Result] = torch.compile(
        _with_own_code(function), fullgraph=True, options={"guard_filter_fn": _shapes_only}
    )
    return result


def captured(run: Callable[[], Result]) -> tuple[Any, Result]:
    """Capture what `run` launches as a CUDA graph; return it and the result, which every replay overwrites."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compilation, autotuning and workspaces of libraries happen here and are not captured
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def _with_own_code(function: Callable[..., Result]) -> Callable[..., Result]:
    """Copy a function together with its code object: Dynamo files its records by code object, and without guards on
    the cache it could not tell the records of two caches apart.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


def _shapes_only(entries: Any) -> list[bool]:
    return [entry.guard_type == "SHAPE_ENV" for entry in entries]
