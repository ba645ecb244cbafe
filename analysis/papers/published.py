"""Reads published figures, and sets tables of Leviathan et al. (2211.17192) beside their formulas.

The figures come along in `published.csv` (columns in COLUMNS): facts, each line with its source; what was not read in
the source itself says so in its note. A new figure is a new line in that file and nothing else: every table and check
finds it by its metric. Whoever has other figures names a file of their own.
"""

import re
from pathlib import Path

import pandas as pd

from specdec.errors import UsageError
from specdec.theory.speedup import operations, speedup

COLUMNS = (
    *("source", "table", "model_target", "model_draft", "task", "temperature", "gamma"),
    *("metric", "value", "unit", "note"),
)
SHIPPED = Path(__file__).parent / "published.csv"
LEVIATHAN = "2211.17192"
TABLE_1 = ((0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10))  # alpha, gamma; c and c_ops are 0
ROUNDING = 0.005 + 1e-9  # of a value printed with two decimals


def load_published(path: Path | str = SHIPPED) -> pd.DataFrame:
    """Return the figures of a CSV, one per line: those that come along, or those of `path`. UsageError if the file is
    missing, is no table, or lacks a column.
    """
    try:
        table = pd.read_csv(path, dtype={"value": str, "gamma": str})  # as printed: 3.40 is more exact than 3.4
    except FileNotFoundError:
        raise UsageError(f"The file of published figures {path} does not exist.") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"The file of published figures {path} cannot be read: {error}.") from None
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise UsageError(f"The file of published figures {path} lacks the columns {', '.join(missing)}.")
    return table


def leviathan_table_1(published: pd.DataFrame) -> pd.DataFrame:
    """Recompute Table 1 of Leviathan et al.: operations (Theorem 3.11) and speedup (3.8) for a free drafter.

    operations_printed and speedup_printed are those of `published` (see `load_published`), NaN where it has none;
    agrees: both lie within the rounding of two decimals.
    """
    table = pd.DataFrame(TABLE_1, columns=["alpha", "gamma"])
    table["operations"] = operations(table["alpha"].to_numpy(), table["gamma"].to_numpy(), 0.0)
    table["speedup"] = speedup(table["alpha"].to_numpy(), table["gamma"].to_numpy(), 0.0)
    metrics = {"operations_factor": "operations", "speedup_ideal": "speedup"}
    printed = {}
    for row in _of_leviathan(published, "Table 1", list(metrics)).itertuples():
        alpha = re.search(r"\balpha=([0-9.]+)", str(row.note))  # the file has it in the note
        if alpha:
            printed[metrics[row.metric], float(alpha[1]), int(row.gamma)] = float(row.value)
    for name in ("operations", "speedup"):
        values = [printed.get((name, *key)) for key in TABLE_1]
        table[f"{name}_printed"] = pd.Series(values, dtype=float)
    gaps = [(table[name] - table[f"{name}_printed"]).abs() <= ROUNDING for name in ("operations", "speedup")]
    return table.assign(agrees=gaps[0] & gaps[1])


def _of_leviathan(published: pd.DataFrame, table: str, metrics: list[str]) -> pd.DataFrame:
    source = published["source"].astype(str).str.contains(LEVIATHAN, regex=False)
    return published[source & (published["table"] == table) & published["metric"].isin(metrics)]


def leviathan_table_3(published: pd.DataFrame) -> pd.DataFrame:
    """Return the printed alphas of Leviathan et al., Table 3: target, drafter, task, temperature, alpha."""
    rows = _of_leviathan(published, "Table 3", ["alpha"])
    columns = {"target": str, "drafter": str, "task": str, "temperature": float, "alpha": float}
    renamed = rows.rename(columns={"model_target": "target", "model_draft": "drafter", "value": "alpha"})
    return renamed[list(columns)].astype(columns).reset_index(drop=True)


def table_1_in_words(table: pd.DataFrame) -> str:
    """Say in one sentence whether the printed Table 1 agrees with its formulas."""
    absent = int(table[["operations_printed", "speedup_printed"]].isna().any(axis=1).sum())
    if absent == len(table):
        return "The file of published figures has no row of Leviathan's Table 1."
    known = table[table[["operations_printed", "speedup_printed"]].notna().all(axis=1)]
    agree = int(known["agrees"].sum())
    missing = f"; {absent} rows are not in the file" if absent else ""
    if agree == len(known):
        return f"All {agree} rows of Table 1 agree with the formulas to the printed decimals{missing}."
    off = known[~known["agrees"]]
    where = ", ".join(f"alpha {row.alpha:g} gamma {row.gamma}" for row in off.itertuples())
    return f"{agree} of {len(known)} rows of Table 1 agree with the formulas; not {where}{missing}."
