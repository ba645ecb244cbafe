"""Reads the rounds table in little memory: what the statistics count and time, a column after the other, names as
categories and counts as small as they fit. Ten million rounds take some 700 MB.
"""

from collections.abc import Iterable, Sequence
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
    files = [pq.ParquetFile(each) for each in ([path] if path.is_file() else sorted(path.glob("*.parquet")))]
    known = set(files[0].schema_arrow.names)
    columns = {name: _column(files, name) for name in GENERATION if name in known}
    order = _order(columns) if len(columns) == len(GENERATION) else None
    for name in list(columns):
        columns[name] = _taken(columns[name], order)
    for name in COUNTED:
        if name in known and name not in columns:
            columns[name] = _taken(_column(files, name), order)
    # Not copied: a table of many blocks is no slower here, and one large block would be there twice for a while.
    return pd.DataFrame({name: columns[name] for name in COUNTED if name in columns}, copy=False)


def _column(files: Sequence[pq.ParquetFile], name: str) -> Any:
    """Return one column as an array: categories, counts, or seconds. A row group after the other, so that nothing is
    there twice.
    """
    groups = (
        file.read_row_group(group, columns=[name]).column(name)
        for file in files
        for group in range(file.metadata.num_row_groups)
    )
    if name in _NAMES:
        return _names(groups, sum(file.metadata.num_rows for file in files))
    array: np.ndarray | None = None
    done = 0
    for values in groups:
        part = values.to_numpy()
        if array is None:
            array = np.empty(sum(file.metadata.num_rows for file in files), dtype=part.dtype)
        array[done : done + len(part)] = part
        done += len(part)
    if array is None or not len(array):
        return np.empty(0)
    if array.dtype.kind in "if" and array[0] == array.min() == array.max():
        return np.broadcast_to(array[:1].copy(), array.shape)  # a run without repeats, or a clock that stood still
    if array.dtype.kind == "i":
        fits = (each for each in (np.int16, np.int32) if _holds(each, array))
        return array.astype(next(fits, np.int64))
    return array


def _holds(small: Any, array: np.ndarray) -> bool:
    limits = np.iinfo(small)
    return bool(limits.min <= array.min() and array.max() <= limits.max)


def _names(groups: Iterable[pa.ChunkedArray], size: int) -> pd.Categorical:
    """Return text as categories in alphabetical order."""
    codes, done = np.empty(size, dtype=np.int32), 0
    number: dict[str, int] = {}  # of each name in the order in which they come
    for values in groups:
        for chunk in values.chunks:
            if not pa.types.is_dictionary(chunk.type):
                chunk = chunk.dictionary_encode()
            places = [number.setdefault(str(name), len(number)) for name in chunk.dictionary.to_pylist()]
            codes[done : done + len(chunk)] = np.array(places, dtype=np.int32)[chunk.indices.to_numpy()]
            done += len(chunk)
    names = np.array(list(number), dtype=object)
    alphabetical = np.argsort(names, kind="stable")
    place = np.empty(len(names), dtype=np.min_scalar_type(-max(1, len(names))))
    place[alphabetical] = np.arange(len(names))
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(names[alphabetical], dtype="str"))


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
