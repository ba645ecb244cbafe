"""The gamma steps of a model that drafts, unrolled over buffers that stay where they are, so that one CUDA graph holds
them.

Knows the cache and the order of the steps. The caller says how a token is chosen from logits, and which token the model
reads next.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec.compiled.cuda_graphs import CudaGraph, captured, compiled, slot_buckets
from specdec.models.cache import KVCache
from specdec.models.forward_pass import Pass, static_pass


class Choice(NamedTuple):
    """Drafted tokens: those of one step, or of a whole draft.

    Attributes:
        tokens: [N] in the target's vocabulary.
        read: [N] the same tokens in the vocabulary of the model that drafts, which reads them next.
        q: [N, V] the laws that they were drawn from; None for point masses.
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


class StaticLoop:
    """Drafts exactly gamma tokens while the host waits for nothing: its inputs are known before the first step, and in
    between only the device decides.

    The first step always reads the last two committed tokens. The cache lacks the last of them, or both after a draft
    that was accepted whole; a slot that is already filled is written again, so that one graph serves both cases.

    On a CPU nothing is captured, and the same steps run one by one; the tests run them in this way. `capture` follows
    torch's documentation and has not been run on a GPU.

    Attributes:
        gamma: tokens of a draft.
        cache: the cache that the loop reads and writes; a text in another cache needs another loop.
    """

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        windows: Mapping[str, int | None],
        gamma: int,
        choose: Callable[[Tensor, Tensor], Choice],
    ) -> None:
        """
        Args:
            windows: for each kind of attention layer, how many tokens back it sees; None for all.
            choose: (the model's logits [1, V], a uniform number []) -> the next token; must not wait for the device.
        """
        self.gamma, self.cache = gamma, cache
        self._choose = choose
        self._last = torch.zeros(2, dtype=torch.long, device=model.device)
        self._place = torch.zeros(1, dtype=torch.long, device=model.device)
        self._uniforms = torch.zeros(gamma, dtype=torch.float64, device=model.device)
        self._passes = {slots: _Passes.of(model, cache, windows, slots) for slots in slot_buckets(cache.capacity)}
        self._graphs: dict[int, CudaGraph[Choice]] = {}
        self._choice: Choice | None = None

    def optimise(self) -> None:
        """Have inductor fuse the kernels of the passes, which takes seconds for each bucket of slots."""
        self._passes = {slots: passes.compiled() for slots, passes in self._passes.items()}

    def capture(self) -> None:
        """Record the loop as CUDA graphs, one for each bucket of slots; call while no text is in the cache."""
        for slots, passes in self._passes.items():
            self._graphs[slots] = captured(partial(self._run, passes))

    def __call__(self, last: Sequence[int], place: int, uniforms: Tensor | None) -> Choice:
        """
        Args:
            last: the last two committed tokens.
            place: slot of the first of them; the cache holds all tokens before it.
            uniforms: [gamma] float64 in [0, 1), if `choose` draws; else None.
        """
        # `fill_` sends its number with the launch of the kernel; a copy from the host would wait for the device.
        for slot, token in zip(self._last, last, strict=True):
            slot.fill_(token)
        self._place.fill_(place)
        if uniforms is not None:
            self._uniforms.copy_(uniforms)
        slots = next(slots for slots in self._passes if place + self.gamma + 1 <= slots)
        graph = self._graphs.get(slots)
        self._choice = self._run(self._passes[slots]) if graph is None else graph.replay()
        self.cache.length = place + self.gamma + 1
        # Cloned, because the next draft overwrites these tensors.
        tokens, read, q = self._choice
        return Choice(tokens.clone(), read.clone(), None if q is None else q.clone())

    def _run(self, passes: "_Passes") -> Choice:
        places = torch.cat([self._place, self._place + 1])
        choices = [self._choose(passes.first(self._last, places).logits[-1:], self._uniforms[0])]
        place = places[1:]
        for uniform in self._uniforms[1:]:
            place = place + 1
            choices.append(self._choose(passes.next(choices[-1].read, place).logits, uniform))
        return joined(choices)

    def departure(self, plain: Callable[[Tensor, int], Tensor], place: int) -> float:
        """Draft once, behind whatever the cache holds, and return by how much that departs from plain calls on the
        same tokens: the largest difference of a law, or, for point masses, how far below the largest logit a drafted
        token's is, as a share of it.

        Args:
            plain: (tokens [gamma + 1], place) -> their logits [gamma + 1, V] behind the first `place` slots.
        """
        uniforms = torch.linspace(0.05, 0.95, self.gamma, dtype=torch.float64, device=self._last.device)
        drafted = self([1, 2], place, uniforms)
        logits = plain(torch.cat([self._last, drafted.read[:-1]]), place)[1:]
        if drafted.q is not None:
            law = joined([self._choose(logits[step : step + 1], uniforms[step]) for step in range(self.gamma)]).q
            assert law is not None
            return float((law - drafted.q).abs().amax())
        chosen = logits.gather(-1, drafted.read.unsqueeze(-1)).squeeze(-1)
        return float((logits.amax(-1) - chosen).amax() / logits.abs().amax().clamp_min(1.0))


class _Passes(NamedTuple):
    """The passes of a loop: on the two tokens that it begins with, and on one."""

    first: Callable[..., Pass]
    next: Callable[..., Pass]

    @classmethod
    def of(cls, model: Any, cache: KVCache, windows: Mapping[str, int | None], slots: int) -> "_Passes":
        forward = static_pass(model, cache, windows, (), slots)
        return cls(forward, forward)

    def compiled(self) -> "_Passes":
        return _Passes(compiled(self.first), compiled(self.next))
