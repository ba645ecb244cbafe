"""Times of target calls in closed form (theory.md 7.1), and the batch up to which speculation pays (7.3)."""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, nonnegative, positive


def cache_bytes(
    tokens: ArrayLike, layers: int, kv_heads: int, head_size: int, bytes_per_value: float, copies: ArrayLike = 1
) -> Values:
    """Return KV, the bytes of keys and values of `tokens` cached tokens, once for each copy."""
    return count(tokens, "tokens") * 2 * layers * kv_heads * head_size * bytes_per_value * count(copies, "copies")


def call_seconds(
    read_bytes: ArrayLike, flops: ArrayLike, bandwidth: float, throughput: float, fixed: ArrayLike = 0.0
) -> Values:
    """Return t(n) = max(bytes / bandwidth, flops / throughput) + fixed, in seconds.

    It assumes that reading and computing overlap fully; `fixed` is launch and communication.
    """
    reading = nonnegative(read_bytes, "read_bytes") / positive(bandwidth, "bandwidth")
    computing = nonnegative(flops, "flops") / positive(throughput, "throughput")
    return (np.maximum(reading, computing) + nonnegative(fixed, "fixed"))[()]


def verification_ratio(batch: ArrayLike, gamma: ArrayLike, fixed: ArrayLike, token: ArrayLike) -> Values:
    """Return v = t(B (gamma + 1)) / t(B) where a call on n tokens takes t(n) = fixed + token n.

    It rises from (fixed + token (gamma + 1)) / (fixed + token) at B = 1 to gamma + 1: what is shared by the tokens of a
    call is spent on the batch before speculation can spend it.
    """
    sequences, offered = count(batch, "batch", minimum=1), count(gamma, "gamma") + 1
    shared, each = nonnegative(fixed, "fixed"), positive(token, "token")
    return (shared + each * sequences * offered) / (shared + each * sequences)


def break_even_batch(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike, spare: ArrayLike) -> Values:
    """Return the batch at which E / (v + gamma c) = 1 where t(n) = fixed + token n; below it speculation pays.

    With x = E - gamma c, the longest verification that still pays, it is spare (x - 1) / (gamma + 1 - x). It is 0 where
    no batch pays (x at most 1), and infinite where all do (x at least gamma + 1: a free drafter that is always right).

    Args:
        spare: fixed / token, the number of tokens whose own time equals the shared time of a call.
    """
    offered, affordable = count(gamma, "gamma", minimum=1) + 1, _affordable(tokens, gamma, c)
    with np.errstate(divide="ignore", invalid="ignore"):
        batch = positive(spare, "spare") * (affordable - 1) / (offered - affordable)
    return np.where(affordable <= 1, 0.0, np.where(affordable >= offered, np.inf, batch))[()]


def roofline_break_even_batch(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike, ridge: ArrayLike) -> Values:
    """Return the same batch where reading and computing overlap: t(n) is flat up to n* tokens, then proportional to n.

    v is 1 up to B = n* / (gamma + 1) and gamma + 1 from B = n* on; in between it is B (gamma + 1) / n*, so that the
    batch is n* x / (gamma + 1) with x = E - gamma c. 0 where x is at most 1, infinite where it is at least gamma + 1.

    Args:
        ridge: n*, see `roofline.ridge_rows`.
    """
    offered, affordable = count(gamma, "gamma", minimum=1) + 1, _affordable(tokens, gamma, c)
    batch = positive(ridge, "ridge") * affordable / offered
    return np.where(affordable <= 1, 0.0, np.where(affordable >= offered, np.inf, batch))[()]


def _affordable(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike) -> Values:
    """Return E - gamma c: the longest verification, in plain steps, at which the speedup is still 1."""
    return positive(tokens, "tokens") - count(gamma, "gamma") * nonnegative(c, "c")
