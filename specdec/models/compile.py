"""Forward passes without the cost of running through a model's modules each time.

`trace`: Dynamo's record of one pass, replayed with the same kernels: the same numbers as the eager pass, without its
Python; one record for a single row, one for any larger number. `inductor`, for given numbers of rows: on a CPU the
record compiled, weights packed; on a GPU static shapes over the whole cache, compiled and captured in a CUDA graph. All
write into one cache whose buffers stay where they are, made for one capacity.
"""

import logging
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.models.cache import KVCache

logger = logging.getLogger(__name__)

Masks = Tensor | dict[str, Tensor]
Mode = Literal["trace", "inductor"]
Result = TypeVar("Result")


class Pass(NamedTuple):
    """What a forward pass gives for its rows.

    Attributes:
        logits: [..., N, V].
        states: [..., N, D] of the layer that was asked for, or None.
    """

    logits: Tensor
    states: Tensor | None


def run_model(model: Any, offset: int | None, **inputs: Any) -> Pass:
    """A transformers decoder on a batch.

    Args:
        offset: the layer whose hidden states are wanted, counted down from the last (0 is what the output head reads);
            None for no states.
    """
    output = model(**inputs, use_cache=True, output_hidden_states=offset is not None)
    return Pass(output.logits, None if offset is None else output.hidden_states[-1 - offset])


class Step(Protocol):
    """One forward pass over the rows behind the first `prefix` of the cache; sets the cache's length."""

    def __call__(self, tokens: Tensor, prefix: int, mask: Masks) -> Pass:
        """
        Args:
            tokens: [N] a chain; a `TracedStep` takes trees too.
            mask: what the rows see, for the steps that do not make it themselves.
        Returns:
            On a GPU the next call overwrites it.
        """
        ...


def mode_for(wanted: bool | str, device: torch.device) -> Mode | None:
    """How `target.compile` (true, false, trace or auto) is done on a device; None is eagerly.

    Raises:
        UsageError: compilation was demanded, and a program that it needs is missing. With "auto" that is said, and the
            passes are traced.
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
    """What compilation would need and this machine lacks, or None."""
    if device.type != "cpu":
        return None  # a CUDA graph needs none
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler (g++ or clang++)"
    return None


class TracedStep:
    """One graph for any context length up to the cache's capacity, replayed as it is or compiled by inductor.

    Of Dynamo's guards only those on shapes are kept: the model and the cache are fixed when the step is made, and
    checking them would cost some 0.7 ms a call for a model of eight layers. A model whose pass does not fit in one
    graph (it decides by the numbers that it computes) is an error when the step is made.
    """

    def __init__(self, model: Any, cache: KVCache, rows: int | None, mode: Mode, offset: int | None = None) -> None:
        """
        Args:
            rows: of every call; None for any number from 2 on, and then in batches of any size from 2 on if the first
                call is one.
            offset: of the layer whose states are wanted (see `run_model`).
        """

        def step(tokens: Tensor, positions: Tensor, mask: Masks) -> Pass:
            some = mask if isinstance(mask, Tensor) else next(iter(mask.values()))
            cache.length = some.shape[-1] - tokens.shape[-1]
            return run_model(
                model,
                offset,
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
            )

        self._step = torch.compile(
            _with_own_code(step),
            fullgraph=True,
            backend="inductor" if mode == "inductor" else "eager",
            options={"guard_filter_fn": _shapes_only},
        )
        self._offsets = torch.arange(cache.capacity, device=model.device)
        self._any = rows is None
        self._made = False

    def __call__(self, tokens: Tensor, prefix: int, mask: Masks, offsets: Tensor | None = None) -> Pass:
        """`tokens` may be a batch of chains too [B, N], and logits are then [B, N, V]. `offsets` [N] are the distances
        of a tree's root and nodes from its root; None for chains.
        """
        offsets = self._offsets[: tokens.shape[-1]] if offsets is None else offsets
        step = self._step if self._made else self._make
        batch = tokens if tokens.dim() == 2 else tokens.unsqueeze(0)
        result: Pass = step(batch, (offsets + prefix).expand(len(batch), -1), mask)
        return result if tokens.dim() == 2 else only_row(result)

    def _make(self, tokens: Tensor, positions: Tensor, mask: Masks) -> Pass:
        from torch._inductor import config

        for view in [mask] if isinstance(mask, Tensor) else mask.values():
            torch._dynamo.mark_dynamic(view, [2, 3] if self._any else 3)
        if self._any:
            for each in (tokens, positions):
                torch._dynamo.mark_dynamic(each, 1 if len(tokens) == 1 else [0, 1])
        self._made = True
        # Not an option of `torch.compile`: Dynamo itself must know, to keep the weights out of the inputs.
        with config.patch(freezing=True):
            result: Pass = self._step(tokens, positions, mask)
        return result


class StaticStep:
    """Rows, positions, mask and cache of fixed shapes: what a CUDA graph can hold. The whole capacity is attended to,
    masked; nothing but the tokens and the prefix length goes in.
    """

    def __init__(
        self, model: Any, cache: KVCache, rows: int, windows: Mapping[str, int | None], offset: int | None = None
    ) -> None:
        self._tokens = torch.zeros(1, rows, dtype=torch.long, device=model.device)
        self._prefix = torch.zeros(1, dtype=torch.long, device=model.device)
        self._rows, self._cache = rows, cache
        forward = static_pass(model, cache, windows, offset)
        offsets = torch.arange(rows, device=model.device)

        def step(tokens: Tensor, prefix: Tensor) -> Pass:
            return forward(tokens[0], prefix + offsets)

        self._step: Callable[[Tensor, Tensor], Pass] = step
        self._graph: Any = None
        self._result: Pass | None = None

    def capture(self) -> None:
        """Compile the step and record it as a CUDA graph; call while no text is in the cache."""
        step = compiled(self._step)
        self._graph, self._result = captured(lambda: step(self._tokens, self._prefix))

    def __call__(self, tokens: Tensor, prefix: int, mask: Masks) -> Pass:
        self._tokens[0].copy_(tokens)
        self._prefix.fill_(prefix)
        if self._graph is None:
            self._result = self._step(self._tokens, self._prefix)
        else:
            self._graph.replay()
        self._cache.length = prefix + self._rows
        assert self._result is not None
        return self._result


def static_pass(
    model: Any, cache: KVCache, windows: Mapping[str, int | None], offset: int | None = None
) -> Callable[[Tensor, Tensor], Pass]:
    """A forward pass with the same shapes at every call: it attends to all of the cache's capacity, masked.

    Args:
        windows: kinds of attention layers, and how far each sees.
        offset: of the layer whose states are wanted (see `run_model`).
    Returns:
        (tokens [N], places [N]) -> logits [N, V] and states, for a chain of rows written to these places of the cache,
        whose length stays as it is.
    """
    columns = torch.arange(cache.capacity, device=model.device)
    hidden = torch.full((), torch.finfo(model.dtype).min, dtype=model.dtype, device=model.device)

    def forward(tokens: Tensor, places: Tensor) -> Pass:
        behind = places[:, None] - columns  # [N, capacity]
        masks = {}
        for kind, window in windows.items():
            seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
            masks[kind] = torch.where(seen, hidden.new_zeros(()), hidden)[None, None]
        with cache.writing_to(places):
            return only_row(
                run_model(
                    model,
                    offset,
                    input_ids=tokens.unsqueeze(0),
                    attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
                    position_ids=places.unsqueeze(0),
                    past_key_values=cache,
                )
            )

    return forward


def only_row(batch: Pass) -> Pass:
    """Of a batch of one."""
    return Pass(batch.logits[0], None if batch.states is None else batch.states[0])


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compiled for the shapes of its first call, which all later ones must have: nothing checks them."""
    result: Callable[..., Result] = torch.compile(
        _with_own_code(function), fullgraph=True, options={"guard_filter_fn": _shapes_only}
    )
    return result


def captured(run: Callable[[], Result]) -> tuple[Any, Result]:
    """What `run` launches as a CUDA graph, and its result, which every replay of the graph writes anew."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compilation, autotuning and the libraries' workspaces must not be captured
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def _with_own_code(function: Callable[..., Result]) -> Callable[..., Result]:
    """A copy with a code object of its own: Dynamo files its records by code object, and without guards on the cache
    it could not tell two of them apart.
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__
    )
    return copy


def _shapes_only(entries: Any) -> list[bool]:
    return [entry.guard_type == "SHAPE_ENV" for entry in entries]
