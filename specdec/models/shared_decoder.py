"""The first layers of a model over the model's own cache: what the model has evaluated is read, never computed again.

The first E layers of a model compute the same keys and values whether the other layers follow or not.
"""

from collections.abc import Sequence

from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.models.partial import block_parts, partial_model


class SharedDecoder(Decoder):
    """The first layers of another decoder's model, with its final norm and its output layer (LayerSkip 2404.16710).

    While it is in step with the other decoder, it reads the keys and values of the committed text where that decoder
    wrote them: nothing is prefilled twice or held twice. It writes behind them only, into slots that are free to the
    other decoder and that this one overwrites before it reads them. Both lengths are their own, so that nothing has to
    be rolled back before the other decoder verifies.

    Otherwise, and for a text whose drafts need more slots than the other decoder's cache has (it evaluates the paths of
    a tree apart), it has a cache of its own.

    Attributes:
        in_step: whether the next text is one that the other decoder has begun. Set it before `start`.
    """

    def __init__(self, decoder: Decoder, layers: int) -> None:
        """Raises UsageError: see `partial_model`; ModelLoadError: see `Decoder`."""
        model = partial_model(decoder.model, block_parts(range(layers, decoder.layers)), decoder.name)
        super().__init__(model, decoder.name, decoder.prefill_chunk)
        self.in_step, self.probed = False, decoder.probed
        self._other = decoder

    def cache_for_passes(self, capacity: int, copies: int) -> KVCache | None:
        """Return slots of the cache that the other decoder's passes write into; None where it has none."""
        return None if self._other.passes is None else self._other.passes.cache.shared(self.layers)

    def fits_passes(self, cache: KVCache, capacity: int, copies: int) -> bool:
        return self._other.passes is not None and cache.over is self._other.passes.cache

    @property
    def loops(self) -> bool:
        return False

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text (see `Decoder.start`); nothing is evaluated where the other decoder has done it."""
        if self.in_step and capacity <= self._other.cache.capacity:
            self._share()
            self.length = self._other.length
            return prompt[-1]
        return super().start(prompt, capacity, copies)

    def follow(self) -> int:
        if self.cache.over is None:
            return 0
        self._share()
        return self._other.length

    def _share(self) -> None:
        """Use the slots of the other decoder's present cache, which may be another one than before."""
        cache, passes = self._other.cache, self.passes
        if self.cache.over is not cache:
            kept = passes is not None and passes.cache.over is cache
            self.cache = passes.cache if passes is not None and kept else cache.shared(self.layers)
