"""One key-value cache for every model, handed to transformers as `past_key_values`.

Preallocated to a known capacity: writing never reallocates, rejecting is setting a length, committing a path moves its
rows next to the prefix in place. It can hold one text several times over, for batches whose rows continue it in
different ways (N-Grammys, 2411.03786). Positions, masks and what a row means are the target's business.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer, [copies, H, capacity, head]; rows from `length` on are free. A call on B texts
    writes and reads the first B copies.

    With `places` set (a tensor of row numbers), writing goes there and everything is returned, masked or not: the same
    shapes at every call, which a CUDA graph needs. The caller then sets `length`.

    Sliding-window layers keep all rows too: the mask hides what the window excludes, so rolling back stays exact.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int, copies: int) -> None:
        super().__init__()
        self.capacity, self.copies = capacity, copies
        self.length = 0
        self.places: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        # Zeroed, not empty: attention multiplies masked rows by 0, and 0 * NaN would be NaN.
        self.keys, self.values = (
            states.new_zeros(self.copies, states.shape[1], self.capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, n, head] rows to the first B copies; returns views of everything in them so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        batch = key_states.shape[0]
        if self.places is not None:
            keys, values = self.keys[:batch], self.values[:batch]
            keys.index_copy_(2, self.places, key_states)
            values.index_copy_(2, self.places, value_states)
            return keys, values
        start, self.length = self.length, self.length + key_states.shape[-2]
        if self.length > self.capacity:
            raise IndexError(f"the cache holds {self.capacity} rows, {self.length} were written")
        self.keys[:batch, :, start : self.length] = key_states
        self.values[:batch, :, start : self.length] = value_states
        return self.keys[:batch, :, : self.length], self.values[:batch, :, : self.length]

    def move(self, copy: int, source: Tensor, start: int, copies: int) -> None:
        """Write rows `source` [n] of one copy to `start`..`start + n` of the first `copies`; right when they overlap,
        since the read is a copy.
        """
        assert self.keys is not None and self.values is not None
        for buffer in (self.keys, self.values):
            buffer[:copies, :, start : start + len(source)] = buffer[copy][:, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    # The same question under the name that transformers 5.17 asks it by.
    get_max_cache_shape = get_max_length


class KVCache(Cache):
    """The cache of one text, or of `copies` of it that a batch continues in different ways.

    Between rounds all copies in use hold the same rows; only a batch makes them differ, and `commit` ends that.

    Attributes:
        capacity: rows of each copy.
        allocated: copies that there is room for.
        copies: those in use by the present text.
    """

    def __init__(self, layers: int, capacity: int, copies: int = 1) -> None:
        super().__init__(layers=[PreallocatedLayer(capacity, copies) for _ in range(layers)])
        self.capacity = capacity
        self.allocated = self.copies = copies

    @property
    def length(self) -> int:
        return self.layers[0].length

    @length.setter
    def length(self, value: int) -> None:
        for layer in self.layers:
            layer.length = value

    @contextmanager
    def writing_to(self, places: Tensor) -> Iterator[None]:
        """Within: rows are written to `places` [n], and attention gets the whole capacity."""
        for layer in self.layers:
            layer.places = places
        try:
            yield
        finally:
            for layer in self.layers:
                layer.places = None

    def restart(self, copies: int) -> None:
        """Forget everything; the next text uses so many copies, of those allocated."""
        self.length, self.copies = 0, copies

    def broadcast(self) -> None:
        """Give all copies in use what was written to the first one."""
        for layer in self.layers:
            if layer.is_initialized and self.copies > 1:
                for buffer in (layer.keys, layer.values):
                    buffer[1 : self.copies, :, : layer.length] = buffer[:1, :, : layer.length]

    def grown(self, copies: int) -> "KVCache":
        """Another cache with room for `copies` of the same text. This one's buffers stay: compiled passes may hold
        them.
        """
        grown = KVCache(len(self.layers), self.capacity, copies)
        for index, layer in enumerate(self.layers):
            if layer.is_initialized:
                grown.update(layer.keys[:1, :, : layer.length], layer.values[:1, :, : layer.length], index)
        grown.broadcast()
        return grown

    def commit(self, prefix: int, rows: Sequence[int], copy: int = 0) -> None:
        """Keep `prefix` rows and, right behind them, the given absolute rows of one copy; forget the rest. Only these
        rows go to the other copies, never the prefix.

        Args:
            prefix: rows that stay where they are, alike in all copies.
            rows: increasing absolute row numbers, all >= prefix.
            copy: which copy they are taken from.
        """
        length = prefix + len(rows)
        if rows and (self.copies > 1 or tuple(rows) != tuple(range(prefix, length))):
            index = None
            for layer in self.layers:
                if layer.is_initialized:
                    if index is None:
                        index = torch.tensor(tuple(rows)).to(layer.keys.device, non_blocking=True)
                    layer.move(copy, index, prefix, self.copies)
        self.length = length

    def read_by(self, batch: int) -> None:
        """Make what the first copy holds appear `batch` times, as views: for rows that are never written again, as the
        keys and values of a prompt in cross-attention, which models read from `keys` and `values` directly.
        """
        for layer in self.layers:
            if not layer.is_initialized or len(layer.keys) == batch:
                continue
            layer.keys = layer.keys[:1].expand(batch, -1, -1, -1)
            layer.values = layer.values[:1].expand(batch, -1, -1, -1)

    def nbytes(self) -> int:
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self.layers
            if layer.is_initialized
            for tensor in (layer.keys, layer.values)
        )
