"""An n-gram model over token ids: counted with arrays, smoothed by interpolated Kneser-Ney, kept in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdec.ngrams.cache_folder import read_arrays, write_arrays

_CHUNK = 2**23  # n-grams that are sorted at once
_FORMAT = "specdec n-gram table 1"


@dataclass(frozen=True)
class Level:
    """The n-grams of one length n >= 2, sorted by context, then token; the place of an n-gram is its id."""

    offsets: np.ndarray  # [contexts + 1] int64; the ids offsets[i]:offsets[i+1] continue the (n-1)-gram with id i
    tokens: np.ndarray  # [G] int32, the last token of each n-gram
    counts: np.ndarray  # [G] int64, for the longest n its occurrences, else the number of different tokens before it


class NgramTable:
    """p(x | context) by interpolated Kneser-Ney (Kneser and Ney 1995; Chen and Goodman 1999, equations 18 to 21):

        p_n(x | c) = (k(c x) - d)_+ / sum_y k(c y)  +  d N(c) / sum_y k(c y) * p_{n-1}(x | c without its first token)

    with one discount d in (0, 1) and N(c) the number of tokens seen after c. k is the count at the highest order and,
    below it, the number of different tokens seen before; p_0 is uniform, so every token has a positive chance. A
    context that was not seen has the law of the shorter one. A unigram table (order 1) discounts plain counts.
    `unigrams` [V] int64 are k of every single token, `levels` the n-grams of lengths 2 to `order`.
    """

    def __init__(self, unigrams: np.ndarray, levels: Sequence[Level], discount: float) -> None:
        self.unigrams, self.levels, self.discount = unigrams, tuple(levels), discount
        self.vocab_size, self.order = len(unigrams), len(self.levels) + 1
        uniform = np.full(self.vocab_size, 1 / self.vocab_size)
        self._unigram_law = self._interpolated(uniform, np.arange(self.vocab_size), unigrams)

    def law(self, context: Sequence[int]) -> np.ndarray:
        """Return p(. | context) [V] float64; only the last `order` - 1 tokens of the context count."""
        law = self._unigram_law
        for length in range(1, min(len(context), self.order - 1) + 1):
            ids = self._continuations(context[-length:])
            level = self.levels[length - 1]
            counts = level.counts[ids]
            if not counts.any():
                break  # this context was never seen, and so no longer one that ends with it
            law = self._interpolated(law, level.tokens[ids], counts)
        return law

    def _interpolated(self, lower: np.ndarray, tokens: np.ndarray, counts: np.ndarray) -> np.ndarray:
        total = counts.sum()
        if total == 0:
            return lower
        law = lower * (self.discount * np.count_nonzero(counts) / total)
        law[tokens] += np.maximum(counts - self.discount, 0) / total
        return law

    def _continuations(self, context: Sequence[int]) -> slice:
        """Return the ids of the n-grams that continue `context`; an empty slice if it was not seen."""
        node = context[0]
        for level, token in zip(self.levels, context[1:], strict=False):
            start, stop = level.offsets[node : node + 2]
            node = start + np.searchsorted(level.tokens[start:stop], np.int32(token))
            if node == stop or level.tokens[node] != token:
                return slice(0, 0)
        start, stop = self.levels[len(context) - 1].offsets[node : node + 2]
        return slice(int(start), int(stop))

    @classmethod
    def fit(cls, stream: np.ndarray, vocab_size: int, order: int, discount: float) -> "NgramTable":
        """Count a stream of tokens [T] int32 in which negative numbers stand between documents. Working memory is about
        20 bytes a token of text at order 2 and 30 at order 3; 60 and 85 where nothing repeats.
        """
        # k of each length: occurrences, until a longer n-gram shows the different tokens that were seen before.
        counts = [np.bincount(stream[stream >= 0], minlength=vocab_size)]
        arrays = list[tuple[np.ndarray, np.ndarray]]()
        ids, known = stream, vocab_size  # ids: of the n-gram that ends at each place, negative where there is none
        keys = suffixes = np.empty(0, dtype=np.int64)  # suffixes: the id of each n-gram without its first token
        for length in range(2, order + 1):
            below, (keys, occurrences) = keys, _unique(ids, stream, vocab_size)
            contexts, tokens = np.divmod(keys, vocab_size)
            suffixes = tokens if length == 2 else np.searchsorted(below, suffixes[contexts] * vocab_size + tokens)
            counts[-1] = np.bincount(suffixes, minlength=known)
            counts.append(occurrences)
            offsets = np.zeros(known + 1, dtype=np.int64)
            np.cumsum(np.bincount(contexts, minlength=known), out=offsets[1:])
            arrays.append((offsets, tokens.astype(np.int32)))
            if length < order:
                longer = np.full(len(stream), -1, dtype=np.int64)  # -1 near the beginning of a document
                for start in range(0, len(stream) - 1, _CHUNK):
                    own, places = _keys(ids, stream, vocab_size, start)
                    unique, inverse = np.unique(own, return_inverse=True)  # so that the search below walks in order
                    longer[start + 1 + places] = np.searchsorted(keys, unique)[inverse]
                ids, known = longer, len(keys)
        levels = [Level(*own, count) for own, count in zip(arrays, counts[1:], strict=True)]
        return cls(counts[0], levels, discount)

    def save(self, path: Path) -> None:
        """Write the counts; a reader never sees half a file."""
        arrays = {"unigrams": self.unigrams}
        for number, level in enumerate(self.levels, start=2):
            arrays |= {f"{number}.{name}": array for name, array in vars(level).items()}
        write_arrays(path, arrays, _FORMAT)

    @classmethod
    def load(cls, path: Path, discount: float) -> "NgramTable":
        """Read what `save` wrote. Raises ValueError, which says why: a damaged file, or one of something else."""
        arrays = read_arrays(path, _FORMAT)
        numbers = range(2, 2 + len(arrays) // 3)
        levels = [Level(*(arrays[f"{n}.{name}"] for name in ("offsets", "tokens", "counts"))) for n in numbers]
        return cls(arrays["unigrams"], levels, discount)


def _keys(ids: np.ndarray, stream: np.ndarray, vocab_size: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (id before, token) as one number, and its place, for each n-gram in a chunk of places after `start`."""
    before, tokens = ids[start : start + _CHUNK], stream[start + 1 : start + 1 + _CHUNK]
    before = before[: len(tokens)]
    places = np.flatnonzero((before >= 0) & (tokens >= 0))
    return before[places].astype(np.int64) * vocab_size + tokens[places], places


def _unique(ids: np.ndarray, stream: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the different n-grams as sorted keys [G], and their counts; chunks are sorted and then merged."""
    chunks = [
        np.unique(_keys(ids, stream, vocab_size, start)[0], return_counts=True)
        for start in range(0, max(len(stream) - 1, 1), _CHUNK)
    ]
    keys = np.concatenate([chunk for chunk, _ in chunks])
    counts = np.concatenate([count for _, count in chunks])
    if len(chunks) == 1:
        return keys, counts
    order = np.argsort(keys, kind="stable")  # fast, because it merges sorted runs
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts, first) if len(first) else counts
