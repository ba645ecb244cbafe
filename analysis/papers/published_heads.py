"""Published figures of heads: Medusa, Hydra and its preprint on grounded heads, blockwise decoding.

They stand beside measurements, never among them: each table has one source, model and hardware, and says so. Everything
takes the table of `published.load_published`; `paper_tables.identities` checks that rate over overhead is the speedup.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..sections import Section
from .paper_tables import KEY, NO, identities, printed_figures

SYSTEMS = {  # system: pattern of its drafters' names; Medusa's Table 3 names what each line adds ("plus ...")
    "Medusa": r"medusa|^plus ",
    "Hydra": r"hydra|grounded",
    "blockwise": r"blockwise",
}
HARDWARE = r"\b(A100|H100|A6000|A10G?|V100|3090|4090|TPU[ -]?v\d)\b"  # in a table's name or a note
UNKNOWN = "hardware not in the file"
METRICS = {  # metric of the file: its column here
    "tokens_per_round": "rate",
    "round_time_over_baseline": "overhead",
    "speedup_measured": "speedup",
    "tokens_per_round_gain_over_medusa": "gain",
}
COLUMNS = (
    *("system", "table", "drafter", "task", "temperature"),
    *("rate", "overhead", "implied", "speedup", "gain", "agrees"),
)


def heads_tables(published: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the printed settings of heads by title, "SOURCE: MODEL, HARDWARE", in the file's order.

    Columns: COLUMNS. rate: tokens per step (acceleration rate, average acceptance length). overhead: as printed;
    implied: rate over speedup, what a step must have cost. speedup: measured. gain: in rate, over Medusa's heads. NaN
    where not printed. agrees: rate over overhead is the speedup ("yes", "within the rounding of its
    inputs", "no"); "" where one of the three is not printed.
    """
    mine = published[_systems(published["model_draft"]) != ""]
    if mine.empty:
        return {}
    every = printed_figures(mine)
    figures = every.reindex(columns=list(METRICS)).dropna(how="all").rename(columns=METRICS)
    checked = identities(every)
    checked = checked[checked["identity"] == "tokens per round / round time"].set_index(KEY)["agrees"]
    table = figures.assign(agrees=checked.reindex(figures.index).fillna("")).reset_index()
    table["implied"] = table["rate"] / table["speedup"]
    table["system"] = _systems(table["drafter"])
    # The hardware of each line: what the name of its table or a note in it says, else UNKNOWN.
    said = mine["table"].astype(str) + " " + mine["note"].astype(object).fillna("").astype(str)
    named = said.str.extract(HARDWARE, expand=False)
    by_table = named.groupby([mine["source"], mine["table"]]).first().dropna().to_dict()
    keys = list(zip(table["source"], table["table"], strict=True))
    hardware = pd.Series([by_table.get(key, UNKNOWN) for key in keys], index=table.index)
    short = table["source"].str.partition("(")[0].str.strip()
    table["title"] = short + ": " + table["target"] + ", " + hardware
    order = {key: place for place, key in enumerate(zip(mine["source"], mine["table"], strict=True))}
    table = table.iloc[np.argsort([order[key] for key in keys], kind="stable")]
    return {
        str(title): part[list(COLUMNS)].rename_axis(columns=None).reset_index(drop=True)
        for title, part in table.groupby("title", sort=False)
    }


def heads_section(published: pd.DataFrame) -> Section:
    """Return `heads_tables` in words and tables, or a sentence that says why there is nothing to show."""
    title = "What was published about heads"
    tables = heads_tables(published)
    if not tables:
        return Section(title, (f"The file of published figures has no row of {' or '.join(SYSTEMS)}.",))
    shown = []
    for name, table in tables.items():
        kept = table.dropna(axis=1, how="all")
        blank = [column for column in ("temperature", "agrees") if (kept[column].astype(str) == "").all()]
        shown.append((f"Published, {name}", kept.drop(columns=blank).round(3)))
    return Section(title, tuple(_sentences(pd.concat(tables.values()))), tuple(shown))


def _systems(drafters: pd.Series) -> pd.Series:
    """Return the system that each drafter belongs to, or ""."""
    names = drafters.fillna("").astype(str)
    choices = [names.str.contains(pattern, case=False, regex=True) for pattern in SYSTEMS.values()]
    # "grounded Medusa heads" are Hydra's: the later system is asked first.
    return pd.Series(np.select(choices[::-1], list(SYSTEMS)[::-1], ""), index=drafters.index)


def _sentences(table: pd.DataFrame) -> Iterator[str]:
    checked = table[table["agrees"] != ""]
    off = checked[checked["agrees"] == NO]
    if len(checked):
        named = "; ".join(f"{row.rate:g} / {row.overhead:g} against {row.speedup:g}" for row in off.itertuples())
        yield (
            f"In {len(checked) - len(off)} of {len(checked)} rows that print rate, overhead and speedup, rate over "
            f"overhead is the speedup within rounding{f', not in {len(off)} ({named})' if len(off) else ''}."
        )
    for system, part in table[table["overhead"].isna()].groupby("system", sort=False):
        implied = part["implied"].dropna()
        if len(implied):
            yield (
                f"{system}: where no overhead is printed, rate over speedup says that a step took "
                f"{implied.min():.2f} to {implied.max():.2f} tokens of plain decoding ({len(implied)} rows)."
            )
    for row in table[table["gain"].notna()].itertuples():
        yield f"{row.drafter} on {row.task}: {row.gain:+g} tokens per step over Medusa's heads."
    missing = [system for system in SYSTEMS if system not in set(table["system"])]
    if missing:
        yield f"The file has no row of {' or '.join(missing)}."
