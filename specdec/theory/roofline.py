"""The roofline of a model (theory.md 7.1): what one target call on n tokens costs in memory traffic and arithmetic.
In a mixture weights grow with the experts that its tokens choose (7.6).

The bytes of a call are those that it must read once: the weights and the cached keys and values. Activations, which are
small beside both for few tokens, count only in the operations per byte of a single product. ValueError for arguments
outside their range. "rows" are the lines of the matrix that goes into a product, one for each token of the call.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, nonnegative, positive, probability


def distinct_experts(chances: ArrayLike, tokens: ArrayLike) -> Values:
    """Return the expected number of distinct experts that independent tokens choose, sum over e of 1 - (1 - p_e)^n.

    It holds for any way in which one token chooses a set of experts, because expectations add up (occupancy; for equal
    chances k / E it is E (1 - (1 - k / E)^n), MoESD, 2505.19645). chances: [..., E] the chance p_e that a token chooses
    expert e, which sum to the k that each token chooses; tokens: n [...], which broadcasts with their leading axes.
    """
    spared = (1 - probability(chances, "chances")) ** np.expand_dims(count(tokens, "tokens"), -1)
    return (1 - spared).sum(axis=-1)[()]


@dataclass(frozen=True)
class Product:
    """One kind of matrix product in a call: its tokens times a matrix [inputs, outputs] that is read from memory."""

    name: str  # the model's name of the matrix, or "attention scores" and "attention values"
    inputs: int | None  # None, here or as `outputs`, stands for the cached tokens (the matrix is then the cache)
    outputs: int | None
    matrices: int  # number of such matrices that one call reads (layers; layers x kv heads for attention)
    bytes_per_value: float  # size of one stored value
    queries: int = 1  # vectors that each token brings to one matrix (heads per kv head in attention, else 1)
    # a mixture has `experts` matrices in the place of each of the `matrices`, of which each token takes `chosen`, any
    # of them with the same chance and independently of other tokens
    experts: int = 1
    chosen: int = 1

    @property
    def cached(self) -> bool:
        """True if the matrix is the key-value cache, False if it is a weight."""
        return self.inputs is None or self.outputs is None

    def values(self, tokens: ArrayLike) -> Values:
        """Return the stored values that a call on one token, in one expert, reads with `tokens` tokens in the cache."""
        size = (self.inputs or 1) * (self.outputs or 1) * self.matrices
        return size * (count(tokens, "tokens") if self.cached else np.ones(np.shape(tokens)))[()]

    def bytes(self, context: ArrayLike, rows: ArrayLike = 1) -> Values:
        """Return the bytes that a call on `rows` tokens reads with `context` tokens in the cache."""
        read = 1.0 if self.experts == 1 else distinct_experts([self.chosen / self.experts] * self.experts, rows)
        return self.bytes_per_value * self.values(context) * read

    def flops(self, rows: ArrayLike, context: ArrayLike) -> Values:
        """Return the floating-point operations of a call on `rows` tokens. Attention includes the call's own tokens,
        and masked pairs too, because a masked product is computed whole.
        """
        n = count(rows, "rows", minimum=1)
        return 2 * n * self.queries * self.chosen * self.values(n + count(context, "context"))

    def intensity(self, rows: ArrayLike, context: ArrayLike) -> Values:
        """Return the operations per byte moved, of the matrix and of the vectors that go in and come out; those along
        the cached tokens stay on the chip (fused attention).
        """
        n = count(rows, "rows", minimum=1)
        along = (self.inputs or 0) + (self.outputs or 0)
        vectors = n * self.queries * self.chosen * self.matrices * along
        moved = self.bytes(context, n) + self.bytes_per_value * vectors
        return (self.flops(n, context) / moved)[()]


def call_bytes(products: Iterable[Product], context: ArrayLike, rows: ArrayLike = 1) -> Values:
    """Return the bytes of weights and cache that one call reads, W + KV: for any number of tokens in a dense model; in
    a mixture W grows with `rows` towards all experts.
    """
    return sum(product.bytes(context, rows) for product in products)


def call_flops(products: Iterable[Product], rows: ArrayLike, context: ArrayLike) -> Values:
    """Return the floating-point operations of one call: 2 P n and attention."""
    return sum(product.flops(rows, context) for product in products)


def threshold(bandwidth: float, throughput: float) -> float:
    """Return throughput / bandwidth: from so many operations per byte on, a product is bound by arithmetic."""
    return float(positive(throughput, "throughput") / positive(bandwidth, "bandwidth"))


def ridge_rows(read_bytes: ArrayLike, flops_per_row: ArrayLike, bandwidth: float, throughput: float) -> Values:
    """Return n* = (W + KV) F / (2 P BW), the tokens from which on arithmetic bounds a call (below 1: even one)."""
    return nonnegative(read_bytes, "read_bytes") * threshold(bandwidth, throughput) / positive(flops_per_row, "flops")


def padded_rows(rows: ArrayLike, tile: int) -> Values:
    """Return `rows` rounded up to whole tiles of `tile` rows: what a kernel computes."""
    size = count(tile, "tile", minimum=1)
    return (np.ceil(count(rows, "rows") / size) * size)[()]
