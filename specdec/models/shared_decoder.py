"""The first layers of a model over the model's own cache: what the model has evaluated is read, never computed again.

The first E layers of a model compute the same keys and values whether the other layers follow or not.
"""

from collections.abc import Collection, Sequence

from specdec.models.cache import KVCache
from specdec.models.compile import Mode
from specdec.models.decoder import Decoder
from specdec.models.packages import PackageFolder
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
        """
        Args:
            layers: how many of the model's layers this one has.
        Raises:
            UsageError: see `partial_model`.
            ModelLoadError: see `Decoder`.
        """
        model = partial_model(decoder.model, block_parts(range(layers, decoder.layers)), decoder.name)
        super().__init__(model, decoder.name, decoder.prefill_chunk)
        self.in_step = False
        self._other = decoder

    def compile(
        self,
        sizes: Collection[int],
        capacity: int,
        mode: Mode,
        copies: int = 1,
        packages: PackageFolder | None = None,
    ) -> None:
        """Make passes that write into the other decoder's compiled cache; without one, everything stays eager. To be
        called while no text is in that cache.
        """
        cache = self._other.compiled_cache
        if self._compiled is not None and self._compiled.cache.over is not cache:
            self._compiled = None
        if cache is not None:
            super().compile(sizes, cache.capacity, mode, cache.allocated if copies > 1 else 1, packages)

    def _cache_for_passes(self, capacity: int, copies: int) -> KVCache:
        assert self._other.compiled_cache is not None
        return self._other.compiled_cache.shared(self.layers)

    @property
    def loops(self) -> bool:
        return False

    def start(self, prompt: Sequence[int], capacity: int, copies: int = 1) -> int:
        """Begin a new text (see `Decoder.start`); nothing is evaluated where the other decoder has done it.

        Args:
            capacity: slots that prompt, output and the largest draft of this decoder need together.
        """
        if self.in_step and capacity <= self._other.cache.capacity:
            self._share()
            self.length = self._other.length
            return prompt[-1]
        made, self._compiled = self._compiled, None  # its passes write into the other decoder's cache
        root = super().start(prompt, capacity, copies)
        self._compiled = made
        return root

    def follow(self) -> int:
        if self.cache.over is None:
            return 0
        self._share()
        return self._other.length

    def _share(self) -> None:
        """Use the slots of the other decoder's present cache, which may be another one than before."""
        cache, made = self._other.cache, self._compiled
        if self.cache.over is cache:
            return
        if made is not None and made.cache.over is cache:
            self.cache, self._steps = made.cache, made.steps
        else:
            self.cache, self._steps = cache.shared(self.layers), {}
