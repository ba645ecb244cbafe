"""Reads the rounds table in little memory: what the statistics count and time, a column after the other, names as
categories and counts as small as they fit. Ten million rounds take some 700 MB.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..rounds import COUNTED, GENERATION

_NAMES = ("cell", "method", "prompt", "category", "truncation")


def read_round_counts(path: Path) -> pd.DataFrame:
    """Return the columns `COUNTED` of a rounds table, or of a folder of its part-files, sorted by generation.

    Values are those of the file; types are narrower. Names are categories in the order of their letters, so that they
    sort as text does.
    """
    known = set(pq.read_schema(_first_file(path)).names)
    columns = {name: _column(path, name) for name in GENERATION if name in known}
    order = _order(columns) if len(columns) == len(GENERATION) else None
    for name in list(columns):
        columns[name] = _taken(columns[name], order)
    for name in COUNTED:
        if name in known and name not in columns:
            columns[name] = _taken(_column(path, name), order)
    # Not copied: a table of many blocks is no slower here, and one large block would be there twice for a while.
    return pd.DataFrame({name: columns[name] for name in COUNTED if name in columns}, copy=False)


def _first_file(path: Path) -> Path:
    return path if path.is_file() else min(path.glob("*.parquet"))


def _column(path: Path, name: str) -> Any:
    """Return one column as an array: categories, counts, or seconds."""
    read = pq.read_table(path, columns=[name], read_dictionary=[name] if name in _NAMES else [])
    values = read.column(name)
    if name in _NAMES:
        return _names(values)
    array = values.to_numpy()
    if len(array) and array.dtype.kind in "if" and array[0] == array.min() == array.max():
        return np.broadcast_to(array[:1].copy(), array.shape)  # a run without repeats, or a clock that stood still
    if array.dtype.kind == "i" and len(array):
        fits = (each for each in (np.int16, np.int32) if _holds(each, array))
        return array.astype(next(fits, np.int64))
    return array


def _holds(small: Any, array: np.ndarray) -> bool:
    limits = np.iinfo(small)
    return bool(limits.min <= array.min() and array.max() <= limits.max)


def _names(values: pa.ChunkedArray) -> pd.Categorical:
    """Return text as categories in alphabetical order."""
    if not pa.types.is_dictionary(values.type):  # a file that somebody wrote in another way
        values = values.cast(pa.string()).dictionary_encode()
    joined = values.unify_dictionaries().combine_chunks()
    names = np.array(joined.dictionary.to_pylist(), dtype=object)
    alphabetical = np.argsort(names, kind="stable")
    place = np.empty(len(names), dtype=np.int32)
    place[alphabetical] = np.arange(len(names))
    codes = place[joined.indices.to_numpy()] if len(names) else np.empty(0, dtype=np.int32)
    return pd.Categorical.from_codes(codes, categories=pd.Index(names[alphabetical], dtype="str"))


def _order(columns: dict[str, Any]) -> np.ndarray | None:
    """Return the places [R] of the rounds sorted by generation, in a generation as they stand; None if they are so."""
    key = np.zeros(len(columns["cell"]), dtype=np.int64)
    for name in GENERATION:
        values = columns[name].codes if isinstance(columns[name], pd.Categorical) else columns[name]
        if len(values):
            key = key * (int(values.max()) + 1) + values
    if not (np.diff(key) < 0).any():
        return None
    return np.argsort(key, kind="stable")


def _taken(values: Any, order: np.ndarray | None) -> Any:
    if order is None or isinstance(values, np.ndarray) and not values.strides[0]:
        return values
    return values.take(order)
