"""Reads the rounds table an arm at a time, in little memory: a million rounds take some 60 MB."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas.api.types import union_categoricals

from specdec.errors import UsageError
from specdec.tracking.store import reason

from ..busy_machine import DISTURBED, undisturbed
from ..rounds import COUNTED, NAMES, RESTORE, TEXT, Arm, Arms, check_columns, check_once, check_rounds, numbered

_NAMES = ("cell", "method", "prompt", "category", "truncation")
_KEPT = 500_000  # rounds of arms that stay in memory for whoever asks again: all of a run of usual size


def read_arms(path: Path) -> Arms:
    """Return the rounds of a run by arm, from its table or a folder of part-files: the columns `COUNTED`, sorted by
    generation; disturbed rounds with the seconds that they would have taken (`busy_machine.undisturbed`).

    Values are those of the file, in narrower types; names are categories in alphabetical order. Nobody writes to these
    tables. An arm that contradicts itself is a UsageError when it is read. OSError or ValueError if it is no Parquet
    table. UsageError if it lacks a column.
    """
    file = _ArmFile(path)
    texts = file.texts()
    return Arms({arm: partial(file.read, arm) for arm in sorted(file.groups)}, texts)


class _ArmFile:
    """Reads arms of a rounds table, or of a folder of its part-files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        parts = [path] if path.is_file() else sorted(path.glob("*.parquet"))
        self._files = [pq.ParquetFile(part, read_dictionary=_NAMES) for part in parts]
        with named(path):
            for file in self._files:
                check_columns(file.schema_arrow.names)
        self.groups: dict[Arm, list[tuple[int, int]]] = {}  # where the rounds of an arm are: file, row group
        self._open: OrderedDict[Arm, pd.DataFrame] = OrderedDict()

    def texts(self) -> pd.DataFrame:
        """Look up which row groups hold the rounds of which arm; return the texts of all (see `Arms`)."""
        parts = []
        for number, file in enumerate(self._files):
            for group in range(file.metadata.num_row_groups):
                table = file.read_row_group(group, columns=[*TEXT, "committed"])
                texts = table.group_by(TEXT, use_threads=False)
                sums = texts.aggregate([("committed", "sum"), ("committed", "count")])
                parts.append(sums.to_pandas().astype(NAMES))
                for method, gamma in parts[-1][["method", "gamma"]].drop_duplicates().itertuples(index=False):
                    self.groups.setdefault((method, int(gamma)), []).append((number, group))
        totals = pd.concat(parts).groupby(TEXT, sort=False)[["committed_sum", "committed_count"]].sum()
        return totals.set_axis(["tokens", "rounds"], axis=1).reset_index()

    def read(self, arm: Arm) -> pd.DataFrame:
        """Return the rounds of an arm, sorted by generation; UsageError if they contradict themselves."""
        if arm not in self._open:
            try:
                self._open[arm] = self._read(arm)
            except (ValueError, OSError, TypeError, KeyError) as error:  # pages are read here, the footer before
                raise UsageError(
                    f"{self._path} is a damaged Parquet table ({reason(error)}): copy it again, or run again."
                ) from None
        self._open.move_to_end(arm)
        while len(self._open) > 1 and sum(map(len, self._open.values())) > _KEPT:
            self._open.popitem(last=False)
        return self._open[arm]

    def _read(self, arm: Arm) -> pd.DataFrame:
        schemas = [file.schema_arrow.names for file in self._files]
        optional = [name for name in (DISTURBED, RESTORE) if all(name in names for names in schemas)]
        parts: dict[str, list[Any]] = {name: [] for name in (*COUNTED, *optional)}
        for number, group in self.groups[arm]:
            table = self._files[number].read_row_group(group, columns=list(parts))
            table = table.filter(pc.and_(pc.equal(table["method"], arm[0]), pc.equal(table["gamma"], arm[1])))
            for name, values in parts.items():
                column = table[name]
                if name in optional:  # the first sitting of a run may have been of an earlier version
                    column = pc.fill_null(column, False if name == DISTURBED else 0.0)
                values.append(_values(column, name in _NAMES))
        columns: dict[str, Any] = {name: _joined(parts.pop(name)) for name in list(parts)}
        for name in optional:
            if not columns[name].any():
                del columns[name]  # nothing is told of a quiet machine, and no memory taken
        pa.default_memory_pool().release_unused()
        generation = numbered(pd.DataFrame(columns, copy=False))
        if (np.diff(generation) < 0).any():
            order = np.argsort(generation, kind="stable")
            generation = generation[order]
            for name, values in columns.items():
                if not isinstance(values, np.ndarray) or values.strides[0]:  # else one value stands for all
                    columns[name] = values.take(order)
        rounds = pd.DataFrame(columns, copy=False)
        with named(self._path):
            check_rounds(rounds)
            same = generation[1:] == generation[:-1]
            if (same & (np.diff(rounds["round"]) <= 0)).any():  # else no round can be there twice
                check_once(rounds)
        return undisturbed(rounds)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the file in what a check of rounds complains of."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{path}: {error}.") from None


def _values(column: pa.ChunkedArray, names: bool) -> Any:
    """Return names as categories, counts as small as they fit, or seconds."""
    if names:
        array = column.unify_dictionaries().combine_chunks()
        categories = pd.Index(array.dictionary.to_pylist(), dtype="str")
        return pd.Categorical.from_codes(array.indices.to_numpy(), categories=categories)
    array = column.to_numpy()
    if array.dtype.kind == "i" and len(array):
        for small in (np.int16, np.int32):
            if np.iinfo(small).min <= array.min() and array.max() <= np.iinfo(small).max:
                return array.astype(small)
        return array.astype(np.int64)
    return array


def _joined(parts: list[Any]) -> Any:
    """Return a column from its parts: names as categories in alphabetical order, a single value without its copies."""
    if isinstance(parts[0], pd.Categorical):
        return union_categoricals(parts, sort_categories=True)
    array = np.concatenate(parts)
    if len(array) and array.dtype.kind in "if" and array[0] == array.min() == array.max():
        return np.broadcast_to(array[:1].copy(), array.shape)  # a run without repeats, or a clock that stood still
    return array
