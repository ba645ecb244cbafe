"""Passes and drafts with fixed shapes, compiled and captured in CUDA graphs over buckets of the cache's slots.

A graph is used once it is shown to compute what plain calls do.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from specdec.compiled.traced import recorded
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Below, Pass, static_pass
from specdec.records import Tree, chain_tree
from specdec.signals import raise_swallowed

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_LEAST_SLOTS = 1024  # a graph attends to this many slots of the cache or to a power of two times as many
# The largest share of the largest logit, or the largest difference of a law, by which a graph may depart from plain
# calls: both are right to rounding, which fused kernels do at other places.
_TOLERANCES = {torch.bfloat16: 0.1, torch.float16: 0.1}
_TOLERANCE = 1e-3


def slot_buckets(capacity: int) -> list[int]:
    """Return the numbers of slots that graphs over a cache attend to, in increasing order; the last is its capacity. A
    call takes the first one that holds its text, so that a short text in a large cache does not pay for all of it.
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
    weights where they lay when they were recorded. A text in another cache than `cache`, which the passes read and
    write, needs another call. The work takes `size` slots, from its first one on.
    """

    shapes = 1  # of passes: nothing checks the shapes of a compiled one, so each has its own

    def __init__(self, decoder: Decoder, size: int) -> None:
        self.cache = cache = decoder.cache
        self.size = size
        self._passes: dict[int, list[Callable[..., Pass]]] = {
            slots: [static_pass(decoder.model, cache, decoder.windows, decoder.kept, slots)] * self.shapes
            for slots in slot_buckets(cache.capacity)
        }
        self._replays: dict[int, Callable[[], Result]] = {}

    @abstractmethod
    def _run(self, passes: Sequence[Callable[..., Pass]]) -> Result:
        """Do the work by these passes, one for each of `shapes`."""

    @abstractmethod
    def _departures(self, decoder: Decoder, prefix: int) -> Iterator[float]:
        """Do the work behind the first `prefix` slots; yield how far it departs from plain calls: see `departure`."""

    def fuse(self, decoder: Decoder) -> bool:
        """Take our own kernels in place of the passes, for models that they can serve; tell if this is one."""
        try:
            from specdec.compiled.fused_layers import fused_pass, fuses  # needs Triton, which torch for GPUs has
        except ImportError:
            return False
        if not fuses(decoder, self.size):
            return False
        self._passes = {self.cache.capacity: [fused_pass(decoder)] * self.shapes}
        return True

    def optimise(self) -> None:
        """Have inductor fuse the kernels of the passes, which takes seconds for each bucket of slots."""
        self._passes = {slots: list(map(recorded, passes)) for slots, passes in self._passes.items()}

    def capture(self) -> None:
        """Record the work as CUDA graphs, one for each bucket of slots; call while no text is in the cache."""
        self._replays = {slots: captured(partial(self._run, passes)) for slots, passes in self._passes.items()}

    def departure(self, decoder: Decoder) -> float:
        """Return by how much the work departs from plain calls at most, at the end of every bucket of slots: as a share
        of the largest logit, or as a difference of a law. The cache has to be free, and is free afterwards.
        """
        departures = [0.0]
        with random_slots(self.cache):
            for slots in slot_buckets(self.cache.capacity):
                prefix = min(slots, decoder.context_length) - self.size
                if prefix > 0:
                    departures += self._departures(decoder, prefix)
        return max(departures)

    def _result(self, prefix: int) -> Result:
        """Return the result on the first bucket with room behind `prefix` slots; the next one may overwrite it."""
        slots = next(slots for slots in self._passes if prefix + self.size <= slots)
        replay = self._replays.get(slots)
        return self._run(self._passes[slots]) if replay is None else replay()


class StaticStep(StaticCall[Pass]):
    """A pass on the tokens of a draft behind a prefix.

    Its inputs are the tokens, the length of the prefix and the topology of the draft, so that one graph serves chains
    and trees of up to `size` tokens. A smaller draft is filled up with tokens that nothing else sees.
    """

    def __init__(self, decoder: Decoder, size: int) -> None:
        """Take the number of tokens in every call, the root included."""
        super().__init__(decoder, size)
        device = decoder.device
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
        result = self._result(prefix)
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

    def _departures(self, decoder: Decoder, prefix: int) -> Iterator[float]:
        deep = self.size // 2
        branched = Tree((*range(-1, deep - 1), *[-1] * (self.size - 1 - deep)))
        for tree in (chain_tree(self.size - 1), branched, chain_tree(0)):
            tokens = (torch.arange(len(tree) + 1, device=decoder.device) * 7919 + 1) % decoder.vocab_size
            ours = self(tokens, prefix, tree).logits
            self.cache.length = prefix
            yield logit_departure(ours, decoder.plain(tokens, tree).logits)


class Choice(NamedTuple):
    """Drafted tokens [N], of one step or of a whole draft: `tokens` in the target's vocabulary; `read`, the same ones
    in that of the model that drafts, which reads them next; `q` [N, V], the laws that they were drawn from, None for
    point masses.
    """

    tokens: Tensor
    read: Tensor
    q: Tensor | None


def joined(choices: Sequence[Choice]) -> Choice:
    """Join the choices of all steps into one draft."""
    laws = [choice.q for choice in choices if choice.q is not None]
    return Choice(
        torch.cat([choice.tokens for choice in choices]),
        torch.cat([choice.read for choice in choices]),
        torch.cat(laws) if laws else None,
    )


class StaticLoop(StaticCall[Choice]):
    """The gamma steps of a model that drafts, while the host waits for nothing: the inputs are known before the first
    step, and in between only the device decides. The caller says how a token is chosen from logits, and which token the
    model reads next.

    The first step always reads the last two committed tokens. The cache lacks the last of them, or both after a draft
    that was accepted whole; a slot that is already filled is written again, so that one graph serves both cases.
    """

    shapes = 2  # of passes: on the two tokens that it begins with, and on one

    def __init__(self, decoder: Decoder, gamma: int, choose: Callable[[Tensor, Tensor], Choice]) -> None:
        """Take `choose`, (logits [1, V], a uniform number []) -> the next token, which must not wait for the device."""
        super().__init__(decoder, gamma + 1)
        self.gamma, self._choose = gamma, choose
        self._last = torch.zeros(2, dtype=torch.long, device=decoder.device)
        self._place = torch.zeros(1, dtype=torch.long, device=decoder.device)
        self._uniforms = torch.zeros(gamma, dtype=torch.float64, device=decoder.device)
        self._choice: Choice | None = None

    def __call__(self, last: Sequence[int], place: int, uniforms: Tensor | None) -> Choice:
        """Draft behind the last two committed tokens. The first of them has the slot `place`, and the cache holds all
        tokens before it; `uniforms` [gamma] are float64 in [0, 1), if `choose` draws, else None.
        """
        # `fill_` sends its number with the launch of the kernel; a copy from the host would wait for the device.
        for slot, token in zip(self._last, last, strict=True):
            slot.fill_(token)
        self._place.fill_(place)
        if uniforms is not None:
            self._uniforms.copy_(uniforms)
        self._choice = self._result(place)
        self.cache.length = place + self.size
        # Cloned, because the next draft overwrites these tensors.
        tokens, read, q = self._choice
        return Choice(tokens.clone(), read.clone(), None if q is None else q.clone())

    def _run(self, passes: Sequence[Callable[..., Pass]]) -> Choice:
        on_two, on_one = passes
        choices = [self._choose(on_two(self._last, self._place).logits[-1:], self._uniforms[0])]
        place = self._place + 1
        for uniform in self._uniforms[1:]:
            place = place + 1
            choices.append(self._choose(on_one(choices[-1].read, place).logits, uniform))
        return joined(choices)

    def _departures(self, decoder: Decoder, prefix: int) -> Iterator[float]:
        """Compare one draft with a plain call on the same tokens, by the largest difference of a law, or, for point
        masses, by how far below the largest logit a drafted token's is, as a share of it.
        """
        uniforms = torch.linspace(0.05, 0.95, self.gamma, dtype=torch.float64, device=self._last.device)
        drafted = self([1, 2], prefix, uniforms)
        self.cache.length = prefix
        logits = decoder.plain(torch.cat([self._last, drafted.read[:-1]]), chain_tree(self.gamma)).logits[1:]
        if drafted.q is not None:
            law = joined([self._choose(logits[step : step + 1], uniforms[step]) for step in range(self.gamma)]).q
            assert law is not None
            yield float((law - drafted.q).abs().amax())
            return
        chosen = logits.gather(-1, drafted.read.unsqueeze(-1)).squeeze(-1)
        yield float((logits.amax(-1) - chosen).amax() / logits.abs().amax().clamp_min(1.0))


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


Graphs = TypeVar("Graphs", bound=StaticCall[Any])


def trusted(make: Callable[[], Graphs], decoder: Decoder, what: str) -> Graphs | None:
    """Return captured graphs that do what plain calls do: those of our own kernels, where the model is one that they
    serve, or of kernels that inductor fused, or else of the model's own; None where none can be had. Each fault is a
    warning, which names the call that they stand for, `what`. Call while no text is in the decoder's cache.
    """
    kinds = (
        ("fused", "so inductor compiles it"),
        ("compiled", "so it is captured without inductor"),
        ("captured", "so it is eager"),
    )
    for kind, then in kinds:
        try:
            graphs = make()
            if kind == "fused" and not graphs.fuse(decoder):
                continue
            if kind == "compiled":
                graphs.optimise()
            graphs.capture()
            apart, most = graphs.departure(decoder), tolerance(decoder.model.dtype)
        except Exception as error:  # CUDA, Triton, Dynamo and inductor have no type in common
            raise_swallowed()
            fault = (str(error).strip() or type(error).__name__).splitlines()[0]
        else:
            if apart <= most:
                return graphs
            fault = f"it departs from plain calls by {apart:.3g}, more than {most:g}"
        logger.warning("%s: %s cannot be %s for a CUDA graph, %s: %s", decoder.name, what, kind, then, fault)
    return None


def tolerance(dtype: torch.dtype) -> float:
    """Return the most by which a captured call may depart from a plain one."""
    return _TOLERANCES.get(dtype, _TOLERANCE)


def logit_departure(found: Tensor, plain: Tensor) -> float:
    """Return the largest difference of logits [..., V] over the largest plain one; infinite if any is not finite."""
    share = (found.float() - plain.float()).abs().amax() / plain.float().abs().amax().clamp_min(1.0)
    return float(share.nan_to_num(torch.inf))


@contextmanager
def random_slots(cache: KVCache) -> Iterator[None]:
    """Hold random numbers in every slot of a free cache within the context, so that reading a wrong one shows."""
    layers = [layer for layer in cache.layers if layer.is_initialized]
    for number, layer in enumerate(layers):
        generator = torch.Generator(layer.keys.device).manual_seed(number)
        layer.keys.normal_(generator=generator)
        layer.values.normal_(generator=generator)
    try:
        yield
    finally:
        for layer in layers:
            layer.keys.zero_()
            layer.values.zero_()
        cache.length = 0
