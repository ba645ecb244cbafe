"""A transformers decoder over many texts at once: tokens in, logits out. Shared by batched targets and batched
drafters; `SlotDecoder` is one text of it for what works with a decoder of one.

Each text has its own length, and a call evaluates another number of new tokens of each, padded to the longest. Masks
and positions are explicit, so that no text sees padding or another text. Knows neither sampling nor acceptance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.models.decoder import Decoder
from specdec.models.forward_pass import run_model
from specdec.models.masks import MaskBuffers, Masks
from specdec.models.ragged_cache import RaggedCache
from specdec.records import Tree, chain_tree


class RaggedDecoder:
    """The model of a decoder, and a cache of its own for several texts. Its calls are eager.

    Attributes:
        decoder: whose model and settings are used; its own cache is left alone.
        slots: texts that there is room for.
        cache: of all texts.
        states: by slot, the hidden states [N_b+1, D] of the tokens of the last call that the slot was part of, where
            the decoder keeps states; after `start` those of the prompt without its last token [S-1, D].
    """

    def __init__(self, decoder: Decoder, slots: int) -> None:
        self.decoder, self.slots, self.device = decoder, slots, decoder.device
        self.cache = RaggedCache(decoder.layers, 1, slots)
        self.states: dict[int, Tensor] = {}
        self._prefix: dict[int, int] = {}  # length of each text before its last call
        self._buffers = MaskBuffers(decoder.windows, decoder.model.dtype, decoder.device)

    def reserve(self, capacity: int) -> None:
        """Make a cache of `capacity` places for each slot, unless there is one already; every text is forgotten.

        Args:
            capacity: tokens that prompt, output and the largest draft of any text to come need together.
        """
        if self.cache.capacity < capacity:
            self.cache = RaggedCache(self.decoder.layers, capacity, self.slots)
        self.cache.clear()
        self.states, self._prefix = {}, {}

    def length(self, slot: int) -> int:
        """Return the number of tokens of the text in a slot that were evaluated and not forgotten."""
        return self.cache.lengths[slot]

    @torch.inference_mode()
    def start(self, slot: int, tokens: Sequence[int]) -> int:
        """Begin a new text in a slot: prefill all of its tokens but the last, and return that one, the root of round 1.

        Args:
            tokens: at least one.
        Raises:
            IndexError: the text is longer than what was reserved.
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
        """Append tokens to several texts in one call of the model.

        Args:
            slots: of these texts, all different.
            tokens: for each of them [N_b+1], the root and the nodes of its tree; at least one.
            trees: for each of them; None: chains.
            options: further arguments of the model, such as `logits_to_keep`.
        Returns:
            For each text, in the order of `slots`, its logits [N_b+1, V]; with `options`, whatever the model gives.
        """
        drafted = [chain_tree(len(each) - 1) for each in tokens] if trees is None else list(trees)
        of_slot = {slot: (each, tree) for slot, each, tree in zip(slots, tokens, drafted, strict=True)}
        order = self.cache.in_order(slots)
        texts = [of_slot[slot] for slot in order]
        counts = [len(each) for each, _ in texts]
        prefixes = [self.cache.lengths[slot] for slot in order]
        self._prefix.update(zip(order, prefixes, strict=True))
        self.cache.append(order, counts, self.device)
        masks = self._masks([tree for _, tree in texts], prefixes, max(counts))
        positions = torch.zeros(len(order), max(counts), dtype=torch.long)
        for line, (_, tree), prefix in zip(positions, texts, prefixes, strict=True):
            line[: len(tree) + 1] = tree.offsets + prefix
        padded = torch.nn.utils.rnn.pad_sequence([each for each, _ in texts], batch_first=True)  # [B, n]
        places = positions.to(self.device, non_blocking=True)
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

    def rewind(self, slot: int, length: int) -> None:
        """Forget all tokens of a text behind the first `length`."""
        self.cache.commit(slot, length, ())

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Forget the text of a slot."""
        self.cache.release(slot)
        self.states.pop(slot, None)
        self._prefix.pop(slot, None)


class SlotDecoder(Decoder):
    """A decoder whose text stands in one slot. Its own calls are on that text alone; calls on many slots at once are
    the ragged decoder's, and both may take turns.
    """

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
            self._ragged.rewind(self._slot, value)

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text in the slot; see `Decoder.start`. The ragged decoder has reserved its capacity."""
        return self._ragged.start(self._slot, prompt)

    def forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Evaluate tokens of this text alone; see `Decoder.forward`."""
        return self._ragged.forward([self._slot], [tokens], [tree], **options)[0]
