"""Passes with fixed shapes, compiled and captured in CUDA graphs over buckets of the cache's slots."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from specdec.compiled.traced import recorded
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Below, Pass, static_pass
from specdec.records import Tree, chain_tree

Result = TypeVar("Result")

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


class StaticCall(ABC, Generic[Result]):
    """Work of a decoder over its present cache whose inputs are tensors that stay where they are, and whose passes have
    fixed shapes, so that CUDA graphs can hold it: one for each bucket of the cache's slots.

    On a CPU nothing is captured, and the same passes run one by one; the tests run them in this way. Graphs read the
    weights where they lay when they were recorded.

    Attributes:
        cache: the cache that the passes read and write; a text in another cache needs another call.
    """

    shapes = 1  # of passes: nothing checks the shapes of a compiled one, so each has its own

    def __init__(self, decoder: Decoder) -> None:
        self.cache = cache = decoder.cache
        self._passes: dict[int, list[Callable[..., Pass]]] = {
            slots: [static_pass(decoder.model, cache, decoder.windows, decoder.kept, slots)] * self.shapes
            for slots in slot_buckets(cache.capacity)
        }
        self._replays: dict[int, Callable[[], Result]] = {}

    @abstractmethod
    def _run(self, passes: Sequence[Callable[..., Pass]]) -> Result:
        """Do the work by these passes, one for each of `shapes`."""

    def optimise(self) -> None:
        """Have inductor fuse the kernels of the passes, which takes seconds for each bucket of slots."""
        self._passes = {slots: list(map(recorded, passes)) for slots, passes in self._passes.items()}

    def capture(self) -> None:
        """Record the work as CUDA graphs, one for each bucket of slots; call while no text is in the cache."""
        self._replays = {slots: captured(partial(self._run, passes)) for slots, passes in self._passes.items()}

    def _result(self, needed: int) -> Result:
        """Return the result on the first bucket of at least `needed` slots; the next one may overwrite it."""
        slots = next(slots for slots in self._passes if needed <= slots)
        replay = self._replays.get(slots)
        return self._run(self._passes[slots]) if replay is None else replay()


class StaticStep(StaticCall[Pass]):
    """A pass on the tokens of a draft behind a prefix.

    Its inputs are the tokens, the length of the prefix and the topology of the draft, so that one graph serves chains
    and trees of up to `size` tokens. A smaller draft is filled up with tokens that nothing else sees.

    Attributes:
        size: number of tokens in every call, the root included.
    """

    def __init__(self, decoder: Decoder, size: int) -> None:
        super().__init__(decoder)
        device = decoder.device
        self.size = size
        self._tokens = torch.zeros(size, dtype=torch.long, device=device)
        self._prefix = torch.zeros(1, dtype=torch.long, device=device)
        self._tree = chain_tree(size - 1)
        # Copied, because the tensors of a tree belong to everyone who has it, and these are written over.
        self._below = Below(*(of.to(device, copy=True) for of in (self._tree.offsets, self._tree.visible)))

    def _run(self, passes: Sequence[Callable[..., Pass]]) -> Pass:
        return passes[0](self._tokens, self._prefix, self._below)

    def fits(self, tokens: int, prefix: int) -> bool:
        """Tell if a call on `tokens` tokens behind `prefix` slots can be made: what fills it up needs slots too."""
        return tokens <= self.size and prefix + self.size <= self.cache.capacity

    def __call__(self, tokens: Tensor, prefix: int, tree: Tree) -> Pass:
        """Evaluate the root and the nodes of `tree`, at most `size` together (see `fits`), behind the first `prefix`
        slots. The next call overwrites the result.
        """
        count = len(tokens)
        self._tokens[:count].copy_(tokens)
        self._prefix.fill_(prefix)
        self._show(tree)
        result = self._result(prefix + self.size)
        self.cache.length = prefix + count
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


def captured(run: Callable[[], Result]) -> Callable[[], Result]:
    """Capture what `run` launches as a CUDA graph; return what replays it and gives the result, in the same tensors."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compilation, autotuning and workspaces of libraries happen here and are not captured
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Result:
        graph.replay()
        return result

    return replay
