"""Attention masks over a preallocated cache, as views of buffers: neither a growing prefix nor a tree that changes in
every round makes a call allocate one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from specdec.records import Tree

_COLUMNS = 512  # in steps of so many, so that caches of texts of similar length share their buffers
_KEPT = 32  # buffers
_LONG_CHAIN = 64  # rows: a prefill's square is not worth keeping


class Masks:
    """Additive 4-D masks of one model: every row sees the prefix, its ancestors and itself, within its window."""

    def __init__(self, windows: Mapping[str, int | None], dtype: torch.dtype, device: torch.device) -> None:
        """
        Args:
            windows: kinds of attention layers, and how far each sees.
        """
        self._windows, self._dtype, self._device = dict(windows), dtype, device
        self._buffers: dict[tuple[bool, int, int], list[_Buffer]] = {}

    def view(self, tree: Tree, prefix: int, capacity: int) -> Tensor | dict[str, Tensor]:
        """The mask of root and nodes of `tree` [1, 1, N+1, prefix + N+1] behind `prefix` rows of a cache. It holds
        until the next call.

        Returns:
            One mask, or one by the name of each kind of layer where the model mixes kinds.
        """
        rows = len(tree) + 1
        if tree.is_chain and rows > _LONG_CHAIN:
            buffers = self._made(rows, capacity)
        else:
            columns = -(-capacity // _COLUMNS) * _COLUMNS
            # Sizes in powers of two: drafts with a few nodes more or less meet in one buffer. Its rows are as long at
            # every call of a size, which compiled passes rely on. Chains are kept apart, since theirs is never written.
            key = (tree.is_chain, 1 << (rows - 1).bit_length(), columns)
            if key not in self._buffers:
                if len(self._buffers) >= _KEPT:
                    self._buffers.clear()
                self._buffers[key] = self._made(key[1], columns)
            buffers = self._buffers[key]
        views = {kind: buffer.view(tree, prefix) for kind, buffer in zip(self._windows, buffers, strict=True)}
        return views if len(views) > 1 else next(iter(views.values()))

    def _made(self, rows: int, columns: int) -> list["_Buffer"]:
        return [_Buffer(rows, columns, window, self._dtype, self._device) for window in self._windows.values()]


class _Buffer:
    """[rows, columns + rows] of one kind of layer: column j stands for the row `columns - j` before the root. What a
    row sees depends on distances alone, so this serves every prefix; and the first rows of a chain are a chain.
    """

    def __init__(self, rows: int, columns: int, window: int | None, dtype: torch.dtype, device: torch.device) -> None:
        self._columns, self._window = columns, window
        self._hidden = torch.finfo(dtype).min
        hidden = torch.full((rows, columns + rows), self._hidden, dtype=dtype, device=device)
        self._mask = hidden.triu(columns + 1)
        if window is not None:
            self._mask += hidden.tril(columns - window)
        self._tree: Tree | None = None  # what was written over the chain

    def view(self, tree: Tree, prefix: int) -> Tensor:
        rows = len(tree) + 1
        if not tree.is_chain and tree != self._tree:
            self._write(tree)
        return self._mask[None, None, :rows, self._columns - prefix : self._columns + rows]

    @torch.inference_mode()  # where the buffer may have been made
    def _write(self, tree: Tree) -> None:
        """Without a window all rows see all of the prefix, whatever the tree: only its own square is new."""
        rows = len(tree) + 1
        visible = tree.visible
        block = self._mask[:rows, self._columns : self._columns + rows]
        if self._window is not None:
            block = self._mask[:rows, : self._columns + rows]
            keys = torch.cat([torch.arange(-self._columns, 0), tree.offsets])
            within = tree.offsets[:, None] - keys < self._window
            within[:, self._columns :] &= visible
            visible = within
        block.fill_(self._hidden).masked_fill_(visible.to(self._mask.device, non_blocking=True), 0.0)
        self._tree = tree
