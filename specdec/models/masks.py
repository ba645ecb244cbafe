"""Attention masks over a preallocated cache: views of buffers that are kept, so that no call allocates one."""

from collections.abc import Mapping

import torch
from torch import Tensor

from specdec.records import Tree

Masks = dict[str, Tensor]
"""Additive masks [1, 1, N+1, prefix + N+1] by the name of each kind of attention layer."""
Mask = Tensor | Mapping[str, Tensor | None] | None
"""Masks as transformers takes them: by kind for a model that mixes kinds of layers, else the only one."""

_COLUMNS = 512  # buffers are this wide or a multiple: caches of texts of similar length then share them
_KEPT = 32  # the most buffers that are kept
_LONG_CHAIN = 64  # tokens; the square buffer of a longer chain, a prefill, is not kept
# The lines of a mask that a GPU reads begin at multiples of this number of elements: torch's memory-efficient kernel
# refuses other addresses, and a view of a buffer begins anywhere.
_ALIGNMENT = 8


class AttentionChunk(int):
    """The size of a text's chunks, where a token sees its own chunk only (Llama 4); it takes the place of a window."""


def within(window: int, queries: Tensor, keys: Tensor) -> Tensor:
    """Return which of the tokens at positions `keys` are not too far back for those at `queries`; both broadcast."""
    return keys >= queries - queries % window if isinstance(window, AttentionChunk) else queries - keys < window


def for_model(masks: Mapping[str, Tensor | None]) -> Mask:
    """Return masks as transformers takes them; None stands for a kind of layer that takes none."""
    return masks if len(masks) > 1 else next(iter(masks.values()), None)


class MaskBuffers:
    """Additive masks of one model: every token sees the prefix, its ancestors and itself, within its window."""

    def __init__(self, windows: Mapping[str, int | None], dtype: torch.dtype, device: torch.device) -> None:
        """Take how many tokens back each kind of attention layer sees (or an `AttentionChunk`); None for all. With
        `aligned`, as on a GPU, a mask is a copy whose lines begin where its kernels can read them.
        """
        self._windows, self._dtype, self._device = dict(windows), dtype, device
        self.aligned = device.type == "cuda"
        self._buffers: dict[tuple[bool, int, int], list[_Buffer]] = {}

    def view(self, tree: Tree, prefix: int, capacity: int, batch: int = 1) -> Masks:
        """Return masks of root and nodes of `tree` behind `prefix` of `capacity` slots, a view for each of `batch`
        sequences, because some models do not take one for all; valid until the next call.
        """
        tokens = len(tree) + 1
        if tree.is_chain and tokens > _LONG_CHAIN:
            buffers = self._made(tokens, capacity)
        else:
            columns = -(-capacity // _COLUMNS) * _COLUMNS
            # Sizes are powers of two, so that drafts of similar size share a buffer, and calls of one size get a mask
            # with the same strides, which compiled passes rely on. Chains have buffers of their own: never written.
            key = (tree.is_chain, 1 << (tokens - 1).bit_length(), columns)
            if key not in self._buffers:
                if len(self._buffers) >= _KEPT:
                    self._buffers.clear()
                self._buffers[key] = self._made(key[1], columns)
            buffers = self._buffers[key]
        views = {kind: buffer.view(tree, prefix) for kind, buffer in zip(self._windows, buffers, strict=True)}
        return views if batch == 1 else {kind: view.expand(batch, -1, -1, -1) for kind, view in views.items()}

    def _made(self, tokens: int, columns: int) -> list["_Buffer"]:
        windows = self._windows.values()
        return [_Buffer(tokens, columns, window, self._dtype, self._device, self.aligned) for window in windows]


class _Buffer:
    """The mask [tokens, columns + tokens] of a kind of layer; column j stands for slot `columns - j` before the root.

    What a token sees depends on distances alone, so one buffer serves every prefix, and its first lines serve every
    shorter chain. Chunks do not move with the text: what they hide is written into a copy at every call.
    """

    def __init__(
        self, tokens: int, columns: int, window: int | None, dtype: torch.dtype, device: torch.device, aligned: bool
    ) -> None:
        self._columns, self._chunk = columns, window if isinstance(window, AttentionChunk) else None
        self._window = window = None if self._chunk else window
        self._hidden = torch.finfo(dtype).min
        hidden = torch.full((tokens, columns + tokens), self._hidden, dtype=dtype, device=device)
        self._mask = hidden.triu(columns + 1)
        if window is not None:
            self._mask += hidden.tril(columns - window)
        self._tree: Tree | None = None  # the tree that was last written over the chain
        # Memory of views that are copies: in one place and with the same strides at every call, as a GPU can read them.
        width = -(-(columns + tokens) // _ALIGNMENT) * _ALIGNMENT
        self._copy = self._mask.new_empty(tokens, width) if aligned or self._chunk else None

    def view(self, tree: Tree, prefix: int) -> Tensor:
        tokens = len(tree) + 1
        if not tree.is_chain and tree != self._tree:
            self._write(tree)
        view = self._mask[:tokens, self._columns - prefix : self._columns + tokens]
        if self._copy is not None:
            with torch.inference_mode():  # it may have been made in this mode
                view = self._copy[:tokens, : prefix + tokens].copy_(view)
                if self._chunk and prefix + tree.depth >= self._chunk:
                    keys = torch.cat([torch.arange(prefix), tree.offsets + prefix])
                    hidden = ~within(self._chunk, keys[prefix:, None], keys)
                    view.masked_fill_(hidden.to(view.device, non_blocking=True), self._hidden)
        return view[None, None]

    @torch.inference_mode()  # the buffer may have been made in this mode
    def _write(self, tree: Tree) -> None:
        """Write what the nodes of a tree see of each other; with a window, also what they see of the prefix."""
        tokens = len(tree) + 1
        visible = tree.visible
        block = self._mask[:tokens, self._columns : self._columns + tokens]
        if self._window is not None:
            block = self._mask[:tokens, : self._columns + tokens]
            keys = torch.cat([torch.arange(-self._columns, 0), tree.offsets])
            near = within(self._window, tree.offsets[:, None], keys)
            near[:, self._columns :] &= visible
            visible = near
        block.fill_(self._hidden).masked_fill_(visible.to(self._mask.device, non_blocking=True), 0.0)
        self._tree = tree
