"""Forward passes of a fixed number of rows without the cost of running through a model's modules each time.

`trace`: Dynamo's record of one pass, replayed with the same kernels: the same numbers as the eager pass, without its
Python. `inductor`: on a CPU the record compiled, weights packed; on a GPU static shapes over the whole cache, compiled
and captured in a CUDA graph. All write into one cache whose buffers stay where they are, made for one capacity.
"""

import logging
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.kv_cache import KVCache

logger = logging.getLogger(__name__)

Masks = Tensor | dict[str, Tensor]
Mode = Literal["trace", "inductor"]


class Step(Protocol):
    """One forward pass over the rows behind the first `prefix` of the cache; sets the cache's length."""

    def __call__(self, tokens: Tensor, prefix: int, mask: Masks) -> Tensor:
        """
        Args:
            tokens: [N] a chain.
            mask: what the rows see, for the steps that do not make it themselves.
        Returns:
            logits [N, V]; on a GPU the next call overwrites them.
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

    def __init__(self, model: Any, cache: KVCache, rows: int, mode: Mode) -> None:
        def step(tokens: Tensor, positions: Tensor, mask: Masks) -> Tensor:
            some = mask if isinstance(mask, Tensor) else next(iter(mask.values()))
            cache.length = some.shape[-1] - tokens.shape[-1]
            logits: Tensor = model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
            return logits[0]

        self._step = torch.compile(
            _with_own_code(step),
            fullgraph=True,
            backend="inductor" if mode == "inductor" else "eager",
            options={"guard_filter_fn": _shapes_only},
        )
        self._offsets = torch.arange(rows, device=model.device)
        self._made = False

    def __call__(self, tokens: Tensor, prefix: int, mask: Masks) -> Tensor:
        if not self._made:
            return self._make(tokens, prefix, mask)
        return self._step(tokens.unsqueeze(0), (self._offsets + prefix).unsqueeze(0), mask)

    def _make(self, tokens: Tensor, prefix: int, mask: Masks) -> Tensor:
        from torch._inductor import config

        for view in [mask] if isinstance(mask, Tensor) else mask.values():
            torch._dynamo.mark_dynamic(view, 3)
        self._made = True
        # Not an option of `torch.compile`: Dynamo itself must know, to keep the weights out of the inputs.
        with config.patch(freezing=True):
            return self(tokens, prefix, mask)


class StaticStep:
    """Rows, positions, mask and cache of fixed shapes: what a CUDA graph can hold. The whole capacity is attended to,
    masked; nothing but the tokens and the prefix length goes in.
    """

    def __init__(self, model: Any, cache: KVCache, rows: int, windows: Mapping[str, int | None]) -> None:
        device, dtype = model.device, model.dtype
        self._tokens = torch.zeros(1, rows, dtype=torch.long, device=device)
        self._prefix = torch.zeros(1, dtype=torch.long, device=device)
        self._rows, self._cache = rows, cache
        offsets = torch.arange(rows, device=device)
        columns = torch.arange(cache.capacity, device=device)
        hidden = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)

        def step(tokens: Tensor, prefix: Tensor) -> Tensor:
            places = prefix + offsets  # [N]
            behind = places[:, None] - columns  # [N, capacity]
            masks = {}
            for kind, window in windows.items():
                seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
                masks[kind] = torch.where(seen, hidden.new_zeros(()), hidden)[None, None]
            with cache.writing_to(places):
                logits: Tensor = model(
                    input_ids=tokens,
                    attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
                    position_ids=places.unsqueeze(0),
                    past_key_values=cache,
                    use_cache=True,
                ).logits
            return logits[0]

        self._step: Callable[[Tensor, Tensor], Tensor] = step
        self._graph: Any = None
        self._logits: Tensor | None = None

    def capture(self) -> None:
        """Compile the step and record it as a CUDA graph; call while no text is in the cache."""
        step = torch.compile(_with_own_code(self._step), fullgraph=True, options={"guard_filter_fn": _shapes_only})
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compilation, autotuning and the libraries' workspaces must not be captured
                step(self._tokens, self._prefix)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = step(self._tokens, self._prefix)

    def __call__(self, tokens: Tensor, prefix: int, mask: Masks) -> Tensor:
        self._tokens[0].copy_(tokens)
        self._prefix.fill_(prefix)
        if self._graph is None:
            self._logits = self._step(self._tokens, self._prefix)
        else:
            self._graph.replay()
        self._cache.length = prefix + self._rows
        assert self._logits is not None
        return self._logits


def _with_own_code(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
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
