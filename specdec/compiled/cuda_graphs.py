"""Passes with fixed shapes, compiled and captured in CUDA graphs over buckets of the cache's slots."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specdec.compiled.traced import only_shapes, with_own_code
from specdec.models.cache import KVCache
from specdec.models.forward_pass import Below, Pass, static_pass
from specdec.records import Tree, chain_tree

Result = TypeVar("Result")


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


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function for the shapes of its first call. All later calls must have the same: nothing checks them."""
    result: Callable[..., Result] = torch.compile(
        with_own_code(function), fullgraph=True, options={"guard_filter_fn": only_shapes}
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
