"""One key-value cache for every model, handed to transformers under its `CACHE` name.

A slot holds the key and the value of one token in every layer. The cache is allocated once, for a known capacity:
writing never reallocates, a rejection only sets a length, and committing a path moves its slots next to the prefix. The
cache can hold several copies of one text, for a batch whose sequences continue it in different ways (N-Grammys,
2411.03786). Positions and masks are the caller's business.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


def cache_name(release: str) -> str:
    """Return what a release of transformers calls the cache, as an argument of every model and in its output."""
    major, minor = release.split(".")[:2]
    return "cache" if (int(major), int(minor)) >= (5, 24) else "past_key_values"


CACHE = cache_name(version("transformers"))  # of the installed one


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer, [copies, H, capacity, head]; slots from `length` on are free. A call on B sequences
    writes and reads the first B copies.

    With `places` set (a tensor of slot numbers), a call writes to these slots and gets the first `shown` slots back,
    free ones included: the same shapes at every call, which a CUDA graph needs. The caller then sets `length`.

    Layers with a sliding window keep all slots too: the mask hides what the window excludes, so rolling back is exact.
    """

    is_sliding = False
    is_croppable = True
    indexer_position_ids: Tensor | None = None  # [.., B, S]; Qwen4's, which it keeps in the first layer that has any

    def __init__(self, capacity: int, copies: int) -> None:
        super().__init__()
        self.capacity, self.copies = capacity, copies
        self.length = 0
        self.places: Tensor | None = None
        self.shown = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Zeroed, not empty: attention multiplies masked values by 0, and 0 * NaN would be NaN.
        self.keys, self.values = (
            states.new_zeros(self.copies, states.shape[1], self.capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, H, n, head] to the first B copies; return views of all that these copies hold."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        batch = key_states.shape[0]
        if self.places is not None:
            keys, values = self.keys[:batch], self.values[:batch]
            keys.index_copy_(2, self.places, key_states)
            values.index_copy_(2, self.places, value_states)
            return keys[:, :, : self.shown], values[:, :, : self.shown]
        start, self.length = self.length, self.length + key_states.shape[-2]
        if self.length > self.capacity:
            raise IndexError(f"the cache has {self.capacity} slots, {self.length} were written")
        # A record of a call replays every view, so none is taken that shows the whole buffer.
        keys, values = (self.keys, self.values) if self.copies == 1 else (self.keys[:batch], self.values[:batch])
        keys[:, :, start : self.length] = key_states
        values[:, :, start : self.length] = value_states
        return keys[:, :, : self.length], values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    # transformers 5.17 asks for the same number under this name.
    get_max_cache_shape = get_max_length


class SharedLayer(PreallocatedLayer):
    """The slots of another layer, with a length of its own: what is written behind the other layer's length is free
    space to it, which it overwrites before it reads it.
    """

    def __init__(self, layer: PreallocatedLayer) -> None:
        super().__init__(layer.capacity, layer.copies)
        self._layer = layer
        if layer.is_initialized:
            self.lazy_initialization(layer.keys, layer.values)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        if not self._layer.is_initialized:
            self._layer.lazy_initialization(key_states, value_states)
        self.keys, self.values = self._layer.keys, self._layer.values
        self.dtype, self.device = self._layer.dtype, self._layer.device
        self.is_initialized = True


class KVCache(Cache):
    """The cache of one text, in one copy or in several that a batch continues in different ways.

    Between rounds all copies in use hold the same; a batch makes them differ, and `commit` makes them equal again.
    """

    over: "KVCache | None" = None  # whose slots this one shares (see `shared`); None: they are its own

    def __init__(self, layers: int, capacity: int, copies: int = 1) -> None:
        super().__init__(layers=[PreallocatedLayer(capacity, copies) for _ in range(layers)])
        # Keys of each layer by which sparse attention chooses what it reads (DeepSeek-V3.2), where it has such: slots
        # with the same numbers and lengths as its own.
        self.indexers = [PreallocatedLayer(capacity, copies) for _ in range(layers)]
        self.capacity = capacity  # slots of each copy
        self.allocated = copies  # that the buffers have room for
        self.copies = copies  # that the present text uses

    @property
    def _slotted(self) -> list[PreallocatedLayer]:
        """Return everything that holds slots."""
        return [*self.layers, *self.indexers]

    def update_indexer(self, keys: Tensor, layer_idx: int) -> Tensor:
        """Append an indexer's keys [B, n, D] to the first B copies; return all that these copies hold, [B, S, D]."""
        return self.indexers[layer_idx].update(keys.unsqueeze(1), keys[:, None, :, :0])[0].squeeze(1)

    def shared(self, layers: int) -> "KVCache":
        """Return a cache over the same slots of the first `layers` layers, with a length of its own."""
        view = KVCache(layers, self.capacity, self.allocated)
        view.layers = [SharedLayer(layer) for layer in self.layers[:layers]]
        view.indexers = [SharedLayer(layer) for layer in self.indexers[:layers]]
        view.over = self
        return view

    @property
    def length(self) -> int:
        """The number of slots in use; setting it forgets all slots behind."""
        return self.layers[0].length

    @length.setter
    def length(self, value: int) -> None:
        for layer in self._slotted:
            layer.length = value

    def holds(self, capacity: int, copies: int) -> bool:
        """Tell if there is room for a text of `capacity` slots in as many copies."""
        return capacity <= self.capacity and copies <= self.allocated

    def way(self) -> str:
        """Return how states that cannot be cut are brought back; "" where the cache has none."""
        return ""

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """Hold within the context that no call is rolled back."""
        yield

    def begin(self, sequences: int, tokens: int) -> None:
        """Take note that a call on `tokens` tokens of each of `sequences` sequences begins."""
        length = self.length
        for layer in self.layers:
            if (ids := getattr(layer, "indexer_position_ids", None)) is not None:
                layer.indexer_position_ids = ids[:, :1, :length].expand(-1, sequences, -1)

    def _cut(self, length: int, copy: int) -> None:
        """Keep the first `length` slots, as the last call left them in the given copy."""
        self.length = length

    @contextmanager
    def writing_to(self, places: Tensor, slots: int) -> Iterator[None]:
        """Let calls within the context write to the slots `places` [n] and attend to the first `slots` slots."""
        for layer in self._slotted:
            layer.places, layer.shown = places, slots
        try:
            yield
        finally:
            for layer in self._slotted:
                layer.places = None

    def restart(self, copies: int) -> None:
        """Forget everything; the next text uses the first `copies` of the allocated copies."""
        self.length, self.copies = 0, copies

    def broadcast(self) -> None:
        """Copy what the first copy holds to all other copies in use."""
        for layer in self._slotted:
            if layer.is_initialized and self.copies > 1:
                for buffer in (layer.keys, layer.values):
                    buffer[1 : self.copies, :, : layer.length] = buffer[:1, :, : layer.length]

    def grown(self, copies: int) -> "KVCache":
        """Return a new cache with room for `copies` copies of the present text. The buffers of this one stay, because
        compiled passes may hold them.
        """
        return self._filled(KVCache(len(self.layers), self.capacity, copies))

    def _filled(self, grown: "KVCache") -> "KVCache":
        """Copy all slots in use into each copy of an empty cache, and return it."""
        for layer, twin in zip(self._slotted, grown._slotted, strict=True):
            if layer.is_initialized:
                twin.update(layer.keys[:1, :, : layer.length], layer.values[:1, :, : layer.length])
                twin.indexer_position_ids = layer.indexer_position_ids
        grown.broadcast()
        return grown

    def commit(self, prefix: int, slots: Sequence[int], copy: int = 0) -> None:
        """Keep the first `prefix` slots and, right behind them, the given slots of one copy, increasing numbers, none
        below `prefix`; forget the rest. Other copies receive the given slots; the prefix is already the same in all.
        """
        length = prefix + len(slots)
        if slots and (self.copies > 1 or tuple(slots) != tuple(range(prefix, length))):
            move_slots(self._slotted, copy, slots, prefix, slice(self.copies))
        self._cut(length, copy)

    def read_by(self, batch: int) -> None:
        """Show what the first copy holds to `batch` sequences, as views. For slots that are never written again: those
        of a prompt in cross-attention, which models read from `keys` and `values` directly.
        """
        for layer in self.layers:
            if layer.is_initialized and len(layer.keys) != batch:
                layer.keys, layer.values = (each[:1].expand(batch, -1, -1, -1) for each in (layer.keys, layer.values))

    def state_bytes(self) -> int:
        """Return the bytes of what does not grow with the text: the states of recurrent layers."""
        return 0

    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return buffer_bytes(self._slotted) + self.state_bytes()


def move_slots(
    layers: Iterable[CacheLayerMixin], copy: int, source: Sequence[int], start: int, to: slice | int
) -> None:
    """Copy the slots `source` of one copy to the slots from `start` on, in the copies `to`. Source and destination may
    overlap, because indexing reads into a new tensor before anything is written.
    """
    index = None
    for layer in layers:
        for buffer in (layer.keys, layer.values) if layer.is_initialized else ():
            if index is None or index.device != buffer.device:  # layers may lie on several devices
                index = torch.tensor(tuple(source), dtype=torch.long).to(buffer.device, non_blocking=True)
            buffer[to, :, start : start + len(source)] = buffer[copy][:, index]


def buffer_bytes(layers: Iterable[CacheLayerMixin]) -> int:
    """Return the bytes of the keys and values of these layers."""
    return sum(buffer.nbytes for layer in layers if layer.is_initialized for buffer in (layer.keys, layer.values))
