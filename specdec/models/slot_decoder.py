"""One slot of a ragged decoder, for what works with a decoder of one text."""

from collections.abc import Sequence

from torch import Tensor

from specdec.models.decoder import Decoder
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.records import Tree


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
