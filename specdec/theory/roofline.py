"""What one target call on n rows costs by memory traffic and arithmetic (THEORY 7): the roofline of a model.

Bytes of a call are what it must read once: the weights and the cached keys and values. Activations, small beside
both with few rows, count only in the operations per byte of a single product. ValueError for arguments outside
their range.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, nonnegative, positive


@dataclass(frozen=True)
class Product:
    """One kind of matrix product in a call: rows times a matrix [inputs, outputs] that is read from memory.

    Attributes:
        name: what the model calls the matrix, or "attention scores" and "attention values".
        inputs, outputs: size of the matrix; None stands for the cached tokens (the matrix is then the cache).
        matrices: how many of them one call reads (layers; layers x kv heads for attention).
        bytes_per_value: size of one stored value.
        queries: rows that each row of the call brings to one matrix (heads per kv head in attention, else 1).
    """

    name: str
    inputs: int | None
    outputs: int | None
    matrices: int
    bytes_per_value: float
    queries: int = 1

    @property
    def cached(self) -> bool:
        """Whether the matrix is the key-value cache rather than a weight."""
        return self.inputs is None or self.outputs is None

    def values(self, tokens: ArrayLike) -> Values:
        """Stored values that a call reads with `tokens` in the cache."""
        size = (self.inputs or 1) * (self.outputs or 1) * self.matrices
        return size * (count(tokens, "tokens") if self.cached else np.ones(np.shape(tokens)))[()]

    def bytes(self, context: ArrayLike) -> Values:
        """Bytes that a call reads with `context` tokens in the cache."""
        return self.bytes_per_value * self.values(context)

    def flops(self, rows: ArrayLike, context: ArrayLike) -> Values:
        """Floating-point operations of a call on `rows` rows. Attention covers the call's own rows too, masked
        pairs included: that is how a masked product is evaluated.
        """
        n = count(rows, "rows", minimum=1)
        return 2 * n * self.queries * self.values(n + count(context, "context"))

    def intensity(self, rows: ArrayLike, context: ArrayLike) -> Values:
        """Operations per byte moved: the matrix, and the rows that go in and come out. What runs along the cached
        tokens stays on the chip (fused attention).
        """
        n = count(rows, "rows", minimum=1)
        along = (self.inputs or 0) + (self.outputs or 0)
        moved = self.bytes(context) + self.bytes_per_value * n * self.queries * self.matrices * along
        return (self.flops(n, context) / moved)[()]


def call_bytes(products: Iterable[Product], context: ArrayLike) -> Values:
    """Bytes of weights and cache that one call reads, W + KV, at any number of rows."""
    return sum(product.bytes(context) for product in products)


def call_flops(products: Iterable[Product], rows: ArrayLike, context: ArrayLike) -> Values:
    """Floating-point operations of one call: 2 P n and attention."""
    return sum(product.flops(rows, context) for product in products)


def cache_bytes(
    tokens: ArrayLike, layers: int, kv_heads: int, head_size: int, bytes_per_value: float, copies: ArrayLike = 1
) -> Values:
    """KV: bytes of keys and values of `tokens` cached tokens, read once for each copy of the cache."""
    return count(tokens, "tokens") * 2 * layers * kv_heads * head_size * bytes_per_value * count(copies, "copies")


def call_seconds(
    read_bytes: ArrayLike, flops: ArrayLike, bandwidth: float, throughput: float, fixed: ArrayLike = 0.0
) -> Values:
    """t(n) = max(bytes / bandwidth, flops / throughput) + fixed, in seconds.

    Assumes that reading and computing overlap fully; `fixed` is launch and communication.
    """
    reading = nonnegative(read_bytes, "read_bytes") / positive(bandwidth, "bandwidth")
    computing = nonnegative(flops, "flops") / positive(throughput, "throughput")
    return (np.maximum(reading, computing) + nonnegative(fixed, "fixed"))[()]


def threshold(bandwidth: float, throughput: float) -> float:
    """Operations per byte from which a product is bound by arithmetic: throughput / bandwidth."""
    return float(positive(throughput, "throughput") / positive(bandwidth, "bandwidth"))


def ridge_rows(read_bytes: ArrayLike, flops_per_row: ArrayLike, bandwidth: float, throughput: float) -> Values:
    """n* = (W + KV) F / (2 P BW): the rows at which a call leaves the memory-bound region.

    Below 1, even one row is bound by arithmetic.
    """
    return nonnegative(read_bytes, "read_bytes") * threshold(bandwidth, throughput) / positive(flops_per_row, "flops")


def chain_rows(gamma: ArrayLike) -> Values:
    """Rows that the target evaluates for a chain: its gamma tokens and the root."""
    return (count(gamma, "gamma") + 1)[()]


def batch_rows(k: ArrayLike, w: ArrayLike) -> Values:
    """Rows that the target evaluates for k rows of width w as a batch, each with the root: k (w + 1).

    Unless the prefix cache is shared, it is also read k times (`cache_bytes(..., copies=k)`).
    """
    return (count(k, "k", minimum=1) * (count(w, "w") + 1))[()]


def waves(rows: ArrayLike, columns: ArrayLike, tile_rows: int, tile_columns: int, processors: int) -> Values:
    """Waves of tiles that a product [rows, ...] x [..., columns] takes on `processors` processors: why t(n) climbs in
    steps.
    """
    tiles = np.ceil(count(rows, "rows") / count(tile_rows, "tile_rows", minimum=1)) * np.ceil(
        count(columns, "columns") / count(tile_columns, "tile_columns", minimum=1)
    )
    return np.ceil(tiles / count(processors, "processors", minimum=1))[()]


def padded_rows(rows: ArrayLike, tile: int) -> Values:
    """Rows that are computed for `rows` rows by a kernel with tiles of `tile` rows."""
    size = count(tile, "tile", minimum=1)
    return (np.ceil(count(rows, "rows") / size) * size)[()]


def experts_read(rows: ArrayLike, experts: int, per_token: int) -> Values:
    """M (1 - (1 - k/M)^n): experts whose weights a layer reads for n rows, of M, each row choosing k.

    Assumes that rows choose independently and uniformly; rows that prefer the same experts read fewer.
    """
    total = count(experts, "experts", minimum=1)
    chosen = count(per_token, "per_token", minimum=1)
    if np.any(chosen > total):
        raise ValueError(f"per_token must be at most experts, got {per_token!r} of {experts!r}")
    return (total * (1 - (1 - chosen / total) ** count(rows, "rows")))[()]
