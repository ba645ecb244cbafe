"""Range checks for the closed forms: each returns its argument as an array or raises ValueError."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
# The result of a closed form: a numpy float if all arguments are scalars, else a broadcast array.
Values: TypeAlias = Any


def probability(value: ArrayLike, name: str) -> FloatArray:
    """Return `value` as floats; ValueError unless all lie in [0, 1]."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")
    return array


def nonnegative(value: ArrayLike, name: str) -> FloatArray:
    """Return `value` as floats; ValueError unless all are finite and at least 0."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all((array >= 0) & np.isfinite(array)):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
    return array


def positive(value: ArrayLike, name: str) -> FloatArray:
    """Return `value` as floats; ValueError unless all are finite and above 0."""
    array = nonnegative(value, name)
    if not np.all(array > 0):
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return array


def count(value: ArrayLike, name: str, minimum: int = 0, infinite: bool = False) -> FloatArray:
    """Return `value` as whole floats of at least `minimum`; infinity only if `infinite`. ValueError for others."""
    array = np.asarray(value, dtype=np.float64)
    whole = (array >= minimum) & (array == np.floor(array)) & (np.isfinite(array) | infinite)
    if not np.all(whole):
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return array


def law(value: ArrayLike, name: str) -> FloatArray:
    """Return `value` [..., V] as floats; ValueError unless they are probabilities that sum to 1 over the last axis."""
    array = probability(value, name)
    if array.ndim == 0 or not np.allclose(array.sum(axis=-1), 1.0, rtol=0, atol=1e-6):
        raise ValueError(f"{name} must hold probabilities that sum to 1 over the last axis, got {value!r}")
    return array
