"""The cache of a model whose layers keep a state in place of slots: linear attention, state-space layers, short
convolutions, alone or beside attention.

Such a state cannot be cut, so that a rejection has to bring an earlier one back. A call keeps the state before it, and
what gives the state after each of its tokens, in one of three ways:

- *recorded*: a state that is only the last inputs of a convolution is cut out of these inputs.
- *replayed*: the layers alone evaluate the accepted tokens again, from the state before the call and the inputs that
  they had in it; attention, experts and the output head do not.
- *stepped*: the layers evaluate the tokens of a call one after another and keep the state after each. The only way for
  layers that begin a call on several tokens from an empty state, as those of Mamba do in transformers.

Between calls there is one state; a batch begins from copies of it, and a commit keeps that of one sequence.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import cache_utils

from specdec.models.cache import CACHE, KVCache, PreallocatedLayer

# transformers asks for this class; releases without it do not open such models (see `decoder.layer_kinds`).
_LinearAttention: Any = getattr(cache_utils, "LinearAttentionCacheLayerMixin", object)

RECURRENT = ("linear_attention", "conv")
HYBRID = ("hybrid", "hybrid_sliding")  # a state and slots


class LayerKind(NamedTuple):
    """The kind of a layer, as transformers names it, and how many convolution states it keeps."""

    name: str
    states: int


class _State(NamedTuple):
    """The state of one layer after some token, [B, ...] each by its number; None before any token."""

    conv: dict[int, Tensor | None]
    recurrent: dict[int, Tensor | None]
    exists: dict[int, bool]


class RecurrentLayer(_LinearAttention):
    """The state of one layer, and what brings back the state after each token of the last call: `before`, the state
    before it; `call`, the module that keeps the state, and the arguments that it was called with; `steps`, the states
    after each token of the call, where they were stepped.
    """

    is_initialized = False  # it has no slots
    keys: Tensor | None = None
    values: Tensor | None = None

    def __init__(self, states: int) -> None:
        super().__init__(number_of_states=states)
        self.record_past = True  # the model hands over all inputs of its convolution, however few the tokens
        self.forget()

    def forget(self) -> None:
        """Go back to the state before any token."""
        numbers = range(self.number_of_states)
        self.set(_State(dict.fromkeys(numbers), dict.fromkeys(numbers), dict.fromkeys(numbers, False)))
        self.begin(1)

    def lazy_initialization(self, *args: object, **options: object) -> None:
        """Nothing is allocated ahead: a state comes with the first call."""

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **options: object
    ) -> Tensor:
        """Take note of inputs [B, D, n] of a convolution; return them behind those that it still sees."""
        size = self.conv_kernel_size[state_idx] or conv_kernel_size or conv_states.shape[-1]
        self.conv_kernel_size[state_idx] = size
        past = self.conv_states[state_idx] if self.has_previous_state[state_idx] else None
        empty = conv_states.new_zeros(*conv_states.shape[:-1], size)
        inputs = torch.cat([empty if past is None else past, conv_states], -1)
        self._inputs[state_idx], self.conv_states[state_idx] = inputs, inputs[..., -size:]
        self.has_previous_state[state_idx] = True
        return conv_states if past is None else inputs

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **options: object) -> Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        self.has_previous_state[state_idx] = True
        return recurrent_states

    def state(self) -> _State:
        """Return the present state; its tensors are written into by the next call, unless `begin` copied them."""
        return _State(dict(self.conv_states), dict(self.recurrent_states), dict(self.has_previous_state))

    def set(self, state: _State) -> None:
        self.conv_states: dict[int, Tensor | None] = dict(state.conv)
        self.recurrent_states: dict[int, Tensor | None] = dict(state.recurrent)
        self.has_previous_state: dict[int, bool] = dict(state.exists)

    def begin(self, batch: int) -> None:
        """Begin a call on `batch` sequences, each from a copy of the state: kernels write into what they are given."""
        self.before, self.steps = self.state(), list[_State]()
        self.call: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
        self._inputs: dict[int, Tensor] = {}  # of the convolutions, behind their state before the call
        self._copy(batch)

    def _copy(self, times: int) -> None:
        for tensors in (self.conv_states, self.recurrent_states):
            for number, tensor in tensors.items():
                tensors[number] = None if tensor is None else tensor.repeat(times, *[1] * (tensor.dim() - 1))

    def step(self, output: Any, tokens: int) -> Any:
        """Evaluate a call's tokens behind the first, whose output is given; keep each state, and return all outputs."""
        assert self.call is not None
        module, args, options = self.call
        outputs, self.steps = [output], [self.state()]
        for token in range(1, tokens):
            self._copy(1)
            own = slice(token, token + 1)
            outputs.append(module.forward(*_cut(args, tokens, own), **_cut(options, tokens, own)))
            self.steps.append(self.state())
        if isinstance(output, tuple):
            return tuple(torch.cat(part, 1) for part in zip(*outputs, strict=True))
        return torch.cat(outputs, 1)

    def keep(self, accepted: int, tokens: int, sequence: int) -> None:
        """Bring the state back that one sequence had after the first `accepted` of the `tokens` of the call."""
        rows = slice(sequence, sequence + 1)
        if accepted == 0:
            self.set(self.before)
            return
        if accepted == tokens:
            pass
        elif self.steps:
            self.set(self.steps[accepted - 1])
        elif self.call is None or all(state is None for state in self.recurrent_states.values()):
            size = self.conv_kernel_size
            for number, inputs in self._inputs.items():
                self.conv_states[number] = inputs[..., accepted : size[number] + accepted]
        else:
            module, args, options = self.call
            self.set(self.before)
            self._copy(1)
            first = slice(accepted)
            module.forward(*_cut(args, tokens, first, rows), **_cut(options, tokens, first, rows))
        for tensors in (self.conv_states, self.recurrent_states):
            for number, tensor in tensors.items():
                tensors[number] = tensor if tensor is None or len(tensor) == 1 else tensor[rows]


class HybridLayer(RecurrentLayer, PreallocatedLayer):  # type: ignore[misc]
    """A state beside the slots of an attention, in one layer."""

    def __init__(self, states: int, capacity: int, copies: int) -> None:
        PreallocatedLayer.__init__(self, capacity, copies)
        RecurrentLayer.__init__(self, states)

    def lazy_initialization(self, *args: Any, **options: Any) -> None:
        PreallocatedLayer.lazy_initialization(self, *args, **options)


class RecurrentCache(KVCache):
    """A cache some of whose layers keep a state. Its length can be set to any place in the last call, or to 0. With
    `stepping`, the layers evaluate the tokens of a call one after another (see the file's head).
    """

    def __init__(self, kinds: Sequence[LayerKind], capacity: int, copies: int = 1, stepping: bool = False) -> None:
        self._length = self._tokens = 0  # of the text, the last call's included; of the last call
        super().__init__(len(kinds), capacity, copies)
        self.kinds, self.stepping, self._prefilling = kinds, stepping, False
        self.layers = [
            HybridLayer(kind.states, capacity, copies) if kind.name in HYBRID
            else RecurrentLayer(kind.states) if kind.name in RECURRENT
            else PreallocatedLayer(capacity, copies)
            for kind in kinds
        ]  # fmt: skip

    @property
    def _recurrent(self) -> list[RecurrentLayer]:
        return [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]

    def way(self) -> str:
        """Return how states are brought back, by its name at the head of the file."""
        if all(state is None for layer in self._recurrent for state in layer.recurrent_states.values()):
            return "recorded"
        return "stepped" if self.stepping else "replayed"

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """Keep nothing of the calls within the context: they are not rolled back."""
        self._prefilling = True
        try:
            yield
        finally:
            self._prefilling = False
            for layer in self._recurrent:
                layer.begin(1)
            self._tokens = 0

    def begin(self, sequences: int, tokens: int) -> None:
        self._cut(self._length, 0)
        super().begin(sequences, tokens)
        for layer in self._recurrent:
            layer.begin(sequences)
        self._length, self._tokens = self._length + tokens, tokens

    @property
    def length(self) -> int:
        return self._length

    @length.setter
    def length(self, value: int) -> None:
        self._cut(value, 0)

    def _cut(self, length: int, copy: int) -> None:
        accepted = self._tokens - (self._length - length)
        if length == 0:
            for layer in self._recurrent:
                layer.forget()
        elif not 0 <= accepted <= self._tokens:
            raise RuntimeError(f"the state after {length} tokens is not kept: the last call began behind them")
        elif self._tokens:
            for layer in self._recurrent:
                layer.keep(accepted, self._tokens, copy)
        for layer in self._slotted:
            if isinstance(layer, PreallocatedLayer) and layer.is_initialized:
                layer.length = length
        self._length, self._tokens = length, 0

    @property
    def _steps(self) -> bool:
        return self.stepping and self._tokens > 1 and not self._prefilling

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length - self._tokens

    def grown(self, copies: int) -> KVCache:
        grown = RecurrentCache(self.kinds, self.capacity, copies, self.stepping)
        self._cut(self._length, 0)
        for layer, own in zip(grown._recurrent, self._recurrent, strict=True):
            layer.conv_kernel_size = own.conv_kernel_size
            layer.set(own.state())
        grown._length = self._length
        return self._filled(grown)

    def state_bytes(self) -> int:
        states = [layer.state() for layer in self._recurrent]
        tensors = [tensor for state in states for kept in state[:2] for tensor in kept.values() if tensor is not None]
        return sum(tensor.nbytes for tensor in tensors)


def record_calls(model: nn.Module) -> None:
    """Have the modules of a model that keep a state tell a `RecurrentCache` of their calls, by hooks of torch. Where
    calls are stepped, the module itself is given the first token, and then its layer steps through the others.
    """

    def entered(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        cache = options.get(CACHE)
        if not isinstance(cache, RecurrentCache) or cache._prefilling:
            return None
        cache.layers[module.layer_idx].call = module, args, options
        tokens, first = cache._tokens, slice(1)
        return (_cut(args, tokens, first), _cut(options, tokens, first)) if cache._steps else None

    def left(module: Any, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        cache = options.get(CACHE)
        if isinstance(cache, RecurrentCache) and cache._steps:
            return cache.layers[module.layer_idx].step(output, cache._tokens)
        return None

    module: Any
    for module in model.modules():
        if hasattr(module, "layer_idx") and any(isinstance(child, nn.Conv1d) for child in module.children()):
            if not getattr(module, "_specdec_records", False):
                module.register_forward_pre_hook(entered, with_kwargs=True)
                module.register_forward_hook(left, with_kwargs=True)
                module._specdec_records = True


def _cut(value: Any, tokens: int, kept: slice, rows: slice = slice(None)) -> Any:
    """Return arguments of a call on `tokens` tokens for some of them alone: every tensor [B, tokens, ...] is cut."""
    if isinstance(value, Tensor):
        if value.dim() < 2 or value.shape[1] != tokens:
            return value
        return value[rows if len(value) > 1 else slice(None), kept]
    if isinstance(value, tuple):
        return tuple(_cut(part, tokens, kept, rows) for part in value)
    if isinstance(value, dict):
        return {name: _cut(part, tokens, kept, rows) for name, part in value.items()}
    return value
