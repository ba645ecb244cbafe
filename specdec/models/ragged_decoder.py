"""A transformers decoder over many texts at once: tokens in, logits out. Shared by batched targets and batched
drafters; `SlotDecoder` is one text of it for what works with a decoder of one.

Each text has its own length, and a call evaluates another number of new tokens of each, padded to the longest. Masks
and positions are explicit, so that no text sees padding or another text. A *slot* is the place of one text in the
cache, and its *places* are numbered by the tokens that it holds. Knows neither sampling nor acceptance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache

from specdec.models.cache import PreallocatedLayer, buffer_bytes, move_slots
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import run_model
from specdec.models.masks import MaskBuffers, Masks
from specdec.records import Tree, chain_tree


class RaggedLayer(PreallocatedLayer):
    """Keys and values of one layer, [slots, H, capacity + 1, head]; the last place takes what pads a call, which reads
    the first `length` places of each text.
    """

    rows: Tensor  # [B, 1] row of the buffers of each text of the next call, on the device
    read: slice | Tensor  # the same rows as a slice where they stand at equal distances, as any two do, or [B]
    places: Tensor  # [B, n] where each token is written; those of padding are the last one, which no mask shows

    def __init__(self, capacity: int, slots: int) -> None:
        super().__init__(capacity + 1, slots)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, H, n, head] behind each text; return what the call reads, [B, H, length, head]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer.transpose(1, 2).index_put_((self.rows, self.places), states.transpose(1, 2))
        return self.keys[self.read, :, : self.length], self.values[self.read, :, : self.length]


class RaggedCache(Cache):
    """The cache of at most `slots` texts, each in `capacity` places. Texts in use stand in the first rows of the
    buffers, side by side, so that a call on all of them reads views. `lengths` and `rows` are the number of places in
    use, and the row of the buffers, by slot; only slots in use are there.
    """

    def __init__(self, layers: int, capacity: int, slots: int) -> None:
        super().__init__(layers=[RaggedLayer(capacity, slots) for _ in range(layers)])
        self.capacity, self.slots = capacity, slots
        self.lengths: dict[int, int] = {}
        self.rows: dict[int, int] = {}

    def take(self, slot: int) -> None:
        """Give a slot to a new text, of length 0; what it held before is forgotten. ValueError for what is no slot."""
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is not one of the {self.slots} slots")
        self.release(slot)
        self.rows[slot], self.lengths[slot] = len(self.rows), 0

    def release(self, slot: int) -> None:
        """Forget the text of a slot. The text in the last row moves to the row that becomes free."""
        free = self.rows.pop(slot, None)
        if free is None:
            return
        del self.lengths[slot]
        last = len(self.rows)
        if free == last:
            return
        moved = next(other for other, row in self.rows.items() if row == last)
        self.rows[moved] = free
        move_slots(self.layers, last, range(self.lengths[moved]), 0, free)

    def append(self, slots: Sequence[int], counts: Sequence[int], device: torch.device) -> None:
        """Prepare the next call: it evaluates `counts[b]` new tokens of the text in `slots[b]`, padded to the longest.
        IndexError if a text becomes longer than the capacity.
        """
        starts = [self.lengths[slot] for slot in slots]
        longest = max(start + count for start, count in zip(starts, counts, strict=True))
        if longest > self.capacity:
            raise IndexError(f"a slot has {self.capacity} places, {longest} were written")
        columns = torch.arange(max(counts))
        places = torch.tensor(starts).unsqueeze(1) + columns  # [B, n]
        places[columns >= torch.tensor(counts).unsqueeze(1)] = self.capacity
        rows = [self.rows[slot] for slot in slots]
        step = rows[1] - rows[0] if len(rows) > 1 else 1
        even = range(rows[0], rows[-1] + 1, step)
        index, places = (each.to(device, non_blocking=True) for each in (torch.tensor(rows).unsqueeze(1), places))
        read = slice(even.start, even.stop, step) if list(even) == rows else index.squeeze(1)  # a view, or a copy
        for layer in self.layers:
            layer.rows, layer.read, layer.places, layer.length = index, read, places, longest
        for slot, start, count in zip(slots, starts, counts, strict=True):
            self.lengths[slot] = start + count

    def commit(self, slot: int, prefix: int, places: Sequence[int]) -> None:
        """Keep the first `prefix` places of a slot and, right behind them, the given places, in increasing order and
        none below `prefix`; forget the rest.
        """
        length = prefix + len(places)
        if tuple(places) != tuple(range(prefix, length)):
            move_slots(self.layers, self.rows[slot], places, prefix, self.rows[slot])
        self.lengths[slot] = length

    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return buffer_bytes(self.layers)


class RaggedDecoder:
    """The model and the settings of a decoder, whose own cache is left alone, and a cache for `slots` texts. Its calls
    are eager.

    `states` are by slot the hidden states [N_b+1, D] of the tokens of the last call that the slot was part of, where
    the decoder keeps states; after `start` those of the prompt without its last token [S-1, D].
    """

    def __init__(self, decoder: Decoder, slots: int) -> None:
        self.decoder, self.slots, self.device = decoder, slots, decoder.device
        self.cache = RaggedCache(decoder.layers, 1, slots)
        self.states: dict[int, Tensor] = {}
        self._prefix: dict[int, int] = {}  # length of each text before its last call
        self._buffers = MaskBuffers(decoder.windows, decoder.model.dtype, decoder.device)

    def reserve(self, capacity: int) -> None:
        """Make a cache of `capacity` places for each slot, as prompt, output and the largest draft of any text to come
        need together, unless there is one already; every text is forgotten.
        """
        if self.cache.capacity < capacity:
            self.cache = RaggedCache(self.decoder.layers, capacity, self.slots)
        self.cache.lengths, self.cache.rows, self.states, self._prefix = {}, {}, {}, {}

    @torch.inference_mode()
    def start(self, slot: int, tokens: Sequence[int]) -> int:
        """Begin a new text of at least one token in a slot: prefill all of its tokens but the last, and return that
        one, the root of round 1. Raises IndexError: the text is longer than what was reserved.
        """
        self.cache.take(slot)
        self._prefix[slot] = 0

        def evaluate(chunk: Tensor) -> Tensor | None:
            self.forward([slot], [chunk], None, **self.decoder.prefill_options)
            return self.states.get(slot)

        states = self.decoder.prefilled(tokens, evaluate)
        if states is not None:
            self.states[slot] = states
        return tokens[-1]

    @torch.inference_mode()
    def forward(
        self, slots: Sequence[int], tokens: Sequence[Tensor], trees: Sequence[Tree] | None = None, **options: int
    ) -> list[Tensor]:
        """Append tokens to the texts in `slots`, all different, in one call of the model: for each of them [N_b+1], at
        least one, the root and the nodes of its tree (None: chains). Return for each text, in the order of `slots`, its
        logits [N_b+1, V]; with `options`, further arguments of the model such as `logits_to_keep`, whatever it gives.
        """
        drafted = [chain_tree(len(each) - 1) for each in tokens] if trees is None else list(trees)
        of_slot = {slot: (each, tree) for slot, each, tree in zip(slots, tokens, drafted, strict=True)}
        order = sorted(slots, key=self.cache.rows.__getitem__)  # in which a call reads them fastest
        texts = [of_slot[slot] for slot in order]
        counts = [len(each) for each, _ in texts]
        prefixes = [self.cache.lengths[slot] for slot in order]
        self._prefix.update(zip(order, prefixes, strict=True))
        self.cache.append(order, counts, self.device)
        masks = self._masks([tree for _, tree in texts], prefixes, max(counts))
        positions = [tree.offsets + prefix for (_, tree), prefix in zip(texts, prefixes, strict=True)]
        padded = pad_sequence([each for each, _ in texts], batch_first=True)  # [B, n]
        places = pad_sequence(positions, batch_first=True).to(self.device, non_blocking=True)
        result = run_model(self.decoder.model, self.cache, self.decoder.kept, padded, places, masks, **options)
        logits: dict[int, Tensor] = {}
        for row, (slot, count) in enumerate(zip(order, counts, strict=True)):
            logits[slot] = result.logits[row, :count]
            if result.states is not None:
                self.states[slot] = result.states[row, :count]
        return [logits[slot] for slot in slots]

    def _masks(self, trees: Sequence[Tree], prefixes: Sequence[int], width: int) -> Masks:
        """Return the additive masks [B, 1, n, longest] of a call, one for each kind of layer."""
        longest = max(prefix + len(tree) + 1 for prefix, tree in zip(prefixes, trees, strict=True))
        shape, dtype = (len(trees), 1, width, longest), self.decoder.model.dtype
        masks = {
            kind: torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device=self.device)
            for kind in self.decoder.windows
        }
        for row, (tree, prefix) in enumerate(zip(trees, prefixes, strict=True)):
            for kind, view in self._buffers.view(tree, prefix, self.cache.capacity).items():
                masks[kind][row, :, : len(tree) + 1, : view.shape[-1]] = view[0]
        return masks

    @torch.inference_mode()
    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the root and the nodes `path` of the last call on this text; forget the other nodes."""
        first = self._prefix[slot] + 1
        self.cache.commit(slot, first, [first + node for node in path])

    def discard(self, slot: int) -> None:
        """Forget the root and all nodes of the last call on this text."""
        self.cache.commit(slot, self._prefix[slot], ())

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Forget the text of a slot."""
        self.cache.release(slot)
        self.states.pop(slot, None)
        self._prefix.pop(slot, None)


class SlotDecoder(Decoder):
    """A decoder whose text stands in one slot; its calls on that text take turns with the ragged decoder's on many."""

    def __init__(self, ragged: RaggedDecoder, slot: int) -> None:
        decoder = ragged.decoder
        super().__init__(decoder.model, decoder.name, decoder.prefill_chunk)
        self._ragged, self._slot = ragged, slot
        self.probed, self.context_length = decoder.probed, decoder.context_length

    @property
    def length(self) -> int:
        """The number of evaluated tokens, 0 before a text; setting it forgets those behind."""
        return self._ragged.cache.lengths.get(self._slot, 0)

    @length.setter
    def length(self, value: int) -> None:
        if self._slot in self._ragged.cache.lengths:
            self._ragged.cache.commit(self._slot, value, ())

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text in the slot; see `Decoder.start`. The ragged decoder has reserved its capacity."""
        return self._ragged.start(self._slot, prompt)

    def forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Evaluate tokens of this text alone; see `Decoder.forward`."""
        return self._ragged.forward([self._slot], [tokens], [tree], **options)[0]
