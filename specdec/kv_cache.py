"""One key-value cache for every model, handed to transformers as `past_key_values`.

Preallocated to a known capacity: writing never reallocates, rejecting is setting a length, committing a path moves its
rows next to the prefix in place. Positions, masks and what a row means are the target's business.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer, [B, H, capacity, head]; rows from `length` on are free.

    With `places` set (a tensor of row numbers), writing goes there and everything is returned, masked or not: the same
    shapes at every call, which a CUDA graph needs. The caller then sets `length`.

    Sliding-window layers keep all rows too: the mask hides what the window excludes, so rolling back stays exact.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self.places: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, size = key_states.shape
        # Zeroed, not empty: attention multiplies masked rows by 0, and 0 * NaN would be NaN.
        self.keys = key_states.new_zeros(batch, heads, self.capacity, size)
        self.values = value_states.new_zeros(batch, value_states.shape[1], self.capacity, value_states.shape[3])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append [B, H, n, head] rows; returns views of everything written so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        if self.places is not None:
            self.keys.index_copy_(2, self.places, key_states)
            self.values.index_copy_(2, self.places, value_states)
            return self.keys, self.values
        start, self.length = self.length, self.length + key_states.shape[-2]
        if self.length > self.capacity:
            raise IndexError(f"the cache holds {self.capacity} rows, {self.length} were written")
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def move(self, source: Tensor, start: int) -> None:
        """Copy rows `source` [n] to `start`..`start + n`; right when they overlap, since the read is a copy."""
        assert self.keys is not None and self.values is not None
        self.keys[:, :, start : start + len(source)] = self.keys[:, :, source]
        self.values[:, :, start : start + len(source)] = self.values[:, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    # The same question under the name that transformers 5.17 asks it by.
    get_max_cache_shape = get_max_length


class KVCache(Cache):
    """The cache of one text (or of B rows that share their length)."""

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[PreallocatedLayer(capacity) for _ in range(layers)])
        self.capacity = capacity

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

    def commit(self, prefix: int, rows: Sequence[int]) -> None:
        """Keep `prefix` rows and, right behind them, the given absolute rows; forget the rest.

        Args:
            prefix: rows that stay where they are.
            rows: increasing absolute row numbers, all >= prefix.
        """
        length = prefix + len(rows)
        if rows and tuple(rows) != tuple(range(prefix, length)):
            index = None
            for layer in self.layers:
                if layer.is_initialized:
                    if index is None:
                        index = torch.tensor(tuple(rows), device=layer.keys.device)
                    layer.move(index, prefix)
        self.length = length

    def broadcast(self, k: int) -> None:
        """Repeat a single text's rows into a batch of k (the N-Grammys evaluation)."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys = layer.keys.repeat_interleave(k, dim=0)
                layer.values = layer.values.repeat_interleave(k, dim=0)

    def keep(self, row: int) -> None:
        """Shrink the batch to one of its rows."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys = layer.keys[row : row + 1].clone()
                layer.values = layer.values[row : row + 1].clone()

    def nbytes(self) -> int:
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self.layers
            if layer.is_initialized
            for tensor in (layer.keys, layer.values)
        )
