"""A key-value cache of many texts, each with a length of its own, handed to transformers under its `CACHE` name.

It is allocated once, for a known number of slots and a known capacity of each. A call evaluates some of the texts at
once, each with its own number of new tokens. Here a *slot* is the place of one text, and its *places* are numbered by
the tokens that it holds. Positions and masks are the caller's business.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from specdec.models.cache import PreallocatedLayer, buffer_bytes


class RaggedWrite(NamedTuple):
    """The destination of one call's keys and values.

    Attributes:
        rows: of the buffers, one for each text of the call, in the order of the call.
        row_index: [B, 1] the same numbers on the device, made once for all layers.
        places: [B, n] where each token is written; those of padding are the last one of the buffers, which no mask
            shows.
        longest: places that the call reads of each text, from the first on.
    """

    rows: Sequence[int]
    row_index: Tensor
    places: Tensor
    longest: int


class RaggedLayer(PreallocatedLayer):
    """Keys and values of one layer, [slots, H, capacity + 1, head]; the last place takes what pads a call."""

    write: RaggedWrite | None = None

    def __init__(self, capacity: int, slots: int) -> None:
        super().__init__(capacity + 1, slots)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, H, n, head] behind each text; return what the call reads, [B, H, longest, head].

        Rows at equal distances, as any two are, are returned as views, others as copies.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.write is not None and self.keys is not None and self.values is not None
        rows, index, places, longest = self.write
        step = rows[1] - rows[0] if len(rows) > 1 else 1
        even = range(rows[0], rows[-1] + 1, step)
        chosen = slice(even.start, even.stop, step) if list(even) == list(rows) else index.squeeze(1)
        read: list[Tensor] = []
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer.transpose(1, 2).index_put_((index, places), states.transpose(1, 2))
            read.append(buffer[chosen, :, :longest])
        return read[0], read[1]

    def copy_row(self, source: int, row: int, length: int) -> None:
        """Copy the first `length` places of a row to another row."""
        for buffer in (self.keys, self.values):
            buffer[row, :, :length] = buffer[source, :, :length]


class RaggedCache(Cache):
    """The cache of at most `slots` texts. Texts in use stand in the first rows of the buffers, side by side, so that a
    call on all of them reads views.

    Attributes:
        capacity: places of each slot.
        slots: texts that there is room for.
        lengths: number of places in use, by slot; only slots in use are there.
    """

    def __init__(self, layers: int, capacity: int, slots: int) -> None:
        super().__init__(layers=[RaggedLayer(capacity, slots) for _ in range(layers)])
        self.capacity, self.slots = capacity, slots
        self.lengths: dict[int, int] = {}
        self._rows: dict[int, int] = {}

    def take(self, slot: int) -> None:
        """Give a slot to a new text, of length 0; what the slot held before is forgotten.

        Raises:
            ValueError: a number that is no slot.
        """
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is not one of the {self.slots} slots")
        self.release(slot)
        self._rows[slot], self.lengths[slot] = len(self._rows), 0

    def release(self, slot: int) -> None:
        """Forget the text of a slot. The text in the last row moves to the row that becomes free."""
        free = self._rows.pop(slot, None)
        if free is None:
            return
        del self.lengths[slot]
        last = len(self._rows)
        if free == last:
            return
        moved = next(other for other, row in self._rows.items() if row == last)
        self._rows[moved] = free
        for layer in self.layers:
            if layer.is_initialized:
                layer.copy_row(last, free, self.lengths[moved])

    def clear(self) -> None:
        """Forget all texts."""
        self.lengths, self._rows = {}, {}

    def in_order(self, slots: Sequence[int]) -> list[int]:
        """Return the slots in the order of their rows, in which a call reads them fastest."""
        return sorted(slots, key=self._rows.__getitem__)

    def append(self, slots: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        """Prepare the next call: it evaluates `counts[b]` new tokens of the text in `slots[b]`, padded to the longest.

        Raises:
            IndexError: a text becomes longer than the capacity.
        """
        starts = [self.lengths[slot] for slot in slots]
        longest = max(start + count for start, count in zip(starts, counts, strict=True))
        if longest > self.capacity:
            raise IndexError(f"a slot has {self.capacity} places, {longest} were written")
        columns = torch.arange(max(counts))
        places = torch.tensor(starts).unsqueeze(1) + columns  # [B, n]
        places[columns >= torch.tensor(counts).unsqueeze(1)] = self.capacity
        rows = [self._rows[slot] for slot in slots]
        index = torch.tensor(rows).unsqueeze(1).to(device, non_blocking=True)
        write = RaggedWrite(rows, index, places.to(device, non_blocking=True), longest)
        for layer in self.layers:
            layer.write, layer.length = write, longest
        for slot, start, count in zip(slots, starts, counts, strict=True):
            self.lengths[slot] = start + count

    def commit(self, slot: int, prefix: int, places: Sequence[int]) -> None:
        """Keep the first `prefix` places of a slot and, right behind them, the given places; forget the rest.

        Args:
            places: increasing numbers, none below `prefix`.
        """
        length = prefix + len(places)
        if tuple(places) != tuple(range(prefix, length)):
            index = None
            for layer in self.layers:
                if layer.is_initialized:
                    if index is None:
                        index = torch.tensor(tuple(places)).to(layer.keys.device, non_blocking=True)
                    layer.move(self._rows[slot], index, prefix, self._rows[slot])
        self.lengths[slot] = length

    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return buffer_bytes(self.layers)
