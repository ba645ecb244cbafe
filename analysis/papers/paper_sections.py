"""Says whether published figures agree with their own theory: the checks of `paper_tables` in words and figures.

Those of heads (Medusa, Hydra and its preprint on grounded heads, blockwise decoding) stand beside measurements, never
among them: each table has one source, model and hardware, and says so.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..figures import pictures, style
from ..sections import Section, counted
from . import paper_tables
from .paper_tables import INPUTS, KEY, NO, YES, coverage, printed_figures

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


def paper_sections(published: pd.DataFrame) -> list[Section]:
    """Return a section per check that finds figures in `published` (`load_published`), and which tables were used."""
    figures = printed_figures(published)
    tables = {name: check(figures) for name, (check, _) in CHECKS.items()}
    sections = [words(tables[name]) for name, (_, words) in CHECKS.items() if len(tables[name])]
    table = coverage(published, tables)
    used = int((table["checked by"] != "").sum())
    text = (
        f"{used} of {counted(len(table), 'printed table')} hold figures that theory ties together; the other "
        f"{len(table) - used} print speedups, rates or quality alone."
    )
    covered = Section("What could be checked?", (text,), (("Printed tables and the checks that used them", table),))
    return [*sections, covered]


def _shown(table: pd.DataFrame, keep: str = "") -> pd.DataFrame:
    """Return the table with short sources and three decimals, without settings that are the same on all lines."""
    short = table.assign(source=table["source"].map(_short))
    settings = [name for name in KEY if name != "table" and short[name].astype(str).nunique() > 1 or name == keep]
    result = short[[*settings, *(name for name in table if name not in KEY)]]
    return result.replace({"gamma": {0: ""}}).round(3)


def _short(source: object) -> str:
    """Shorten a source to its part before the first comma or bracket, e.g. "Leviathan et al. 2023"."""
    return str(source).partition("(")[0].partition(",")[0].strip()


def _name(row: pd.Series) -> str:
    """Name a printed setting, e.g. "T5-small, CNN/DM, T 0, γ 5"."""
    heat = f"T {row['temperature']:g}" if row["temperature"] != "" else ""
    depth = f"γ {row['gamma']}" if row["gamma"] else ""
    return ", ".join(filter(None, (str(row["drafter"]).partition(" (")[0], row["task"], heat, depth)))


def _listed(table: pd.DataFrame, *columns: str) -> str:
    """List the settings by name, each with its figures in brackets."""
    names = []
    for _, row in table.iterrows():
        values = ", ".join(f"{row[column]:.3f}".rstrip("0").rstrip(".") for column in columns)
        names.append(f"{row['target']} with {_name(row)} ({values})")
    return "; ".join(names)


def _ceilings(table: pd.DataFrame) -> Section:
    over, size = table[table["exceeds"] != ""], counted(len(table), "measured speedup")
    text = [f"None of {size} exceeds Ω(α, γ) at its printed α."]
    if len(over):
        beyond, sure = int((over["exceeds"] == "limit").sum()), int(over["surely"].sum())
        text = [
            f"{len(over)} of {size} exceed Ω(α, γ) at the α printed beside them, {beyond} of these even 1/(1-α), which "
            f"no draft length can pass; {sure} do so whatever was rounded.",
            f"Speedup, Ω and 1/(1-α): {_listed(over, 'speedup', 'omega', 'limit')}.",
            "A drafter that costs something cannot reach Ω under i.i.d. acceptance; where the measurement does, "
            "acceptance was higher in the timed runs than where α was measured, or the baseline was slower than a bare "
            "call.",
        ]
    known = table[table["beyond"] != ""]
    if len(known):
        sure_above = known[known["beyond"] == YES]
        above = int((known["beyond"] != NO).sum())
        text[0] += (
            f" Theorem 3.8, (1-α^(γ+1)) / ((1-α)(γc+1)), explains fewer: {above} of {counted(len(known), 'speedup')} "
            f"with a printed c exceed{'s' * (above == 1)} it, {len(sure_above)} whatever was rounded."
        )
        if len(sure_above):
            what = "Above the formula whatever was rounded, speedup and formula"
            text.insert(2, f"{what}: {_listed(sure_above, 'speedup', 'formula')}.")
    caption = "Measured speedups and their ceilings; formula: Theorem 3.8; alpha_needed: the α that it needs for them"
    figures = (("ceilings", _drawn(table)),)
    return Section("Which speedups exceed their own ceiling?", tuple(text), ((caption, _shown(table)),), figures)


@style.in_style
def _drawn(table: pd.DataFrame) -> Figure:
    """Draw a bar from Omega to 1 / (1 - alpha) per setting, with the measured speedup on it, marked if beyond."""
    sources = ", ".join(dict.fromkeys(map(_short, table["source"])))
    caption = f"{counted(len(table), 'printed row')}: {sources}; no intervals were printed. Blue: what only a free "
    figure, axes = style.new_figure(
        "Measured speedups and what their own α allows",
        caption + "draft longer than γ could reach; beyond it nothing could, if acceptance is i.i.d.",
        height=2.4 + 0.34 * len(table),
    )
    places = np.arange(len(table))
    axes.barh(places, table["limit"] - table["omega"], left=table["omega"], height=0.6, color=style.SKY)
    axes.barh(places, table["omega"], height=0.6, color=style.LIGHT)
    for kind, colour, marker, label in (
        ("", style.BLACK, "o", "measured"),
        ("omega", style.ORANGE, "D", "measured, beyond Ω(α, γ)"),
        ("limit", style.PURPLE, "X", "measured, beyond 1/(1-α)"),
    ):
        part = (table["exceeds"] == kind).to_numpy()
        if part.any():
            axes.plot(table["speedup"][part], places[part], marker, color=colour, markersize=9, label=label)
    pictures.named_rows(axes, [_name(row) for _, row in table.iterrows()])
    axes.set(xlabel="speedup; bars: tokens per round")
    style.legend_above(axes, 1)
    return figure


def _predictions(table: pd.DataFrame) -> Section:
    number = table["agrees"].value_counts()
    off = table[table["agrees"] == NO]
    text = (
        f"{number.get(YES, 0)} of {counted(len(table), 'printed prediction')} are Theorem 3.8 at the printed α, γ and "
        f"c to the last digit, {number.get(INPUTS, 0)} within the rounding of these inputs, {len(off)} not at all"
        + (f": {_listed(off, 'printed', 'formula')}, printed and best over γ." if len(off) else ".")
    )
    caption = "Printed predictions and the formula; low and high: over all inputs that are printed alike"
    return Section("Are printed predictions what their formula gives?", (text,), ((caption, _shown(table)),))


def _round_times(table: pd.DataFrame) -> Section:
    off = table[table["possible"] == NO]
    text = (
        f"{len(off)} of {counted(len(table), 'pair')} of speedup and tokens per round "
        f"{'needs' if len(off) == 1 else 'need'} a round faster than one token of the baseline"
        + (f": {_listed(off, 'speedup', 'tokens_per_round')}." if len(off) else ".")
    )
    by_source = table.groupby(["source", "table"], sort=False)["round_time"].describe()[["count", "min", "50%", "max"]]
    shown = by_source.rename(columns={"50%": "median"}).reset_index().round(3)
    caption = "Tokens per round over speedup: what a round costs, in tokens of the baseline"
    return Section("What does a round cost?", (text,), ((caption, shown),), (("round_times", _strip(table)),))


@style.in_style
def _strip(table: pd.DataFrame) -> Figure:
    """Draw the time of a round for each pair of figures, by printed table; 1 is a token of the baseline."""
    groups = table.groupby(["source", "table"], sort=False)
    figure, axes = style.new_figure(
        "What a round costs, by published tables",
        f"{counted(len(table), 'pair')} of printed tokens per round and speedup; their ratio is the time of a round "
        "over the baseline's time per token. No intervals were printed. Left of the line: faster than a single token.",
        height=2.4 + 0.36 * len(groups),
    )
    generator = np.random.default_rng(0)  # spreads points that would hide each other
    for place, (_, part) in enumerate(groups):
        height = place + generator.uniform(-0.22, 0.22, len(part))
        wrong = (part["possible"] == NO).to_numpy()
        axes.plot(part["round_time"][~wrong], height[~wrong], "o", color=style.BLUE, markersize=5, alpha=0.7)
        axes.plot(part["round_time"][wrong], height[wrong], "X", color=style.ORANGE, markersize=10)
    axes.axvline(1, color=style.BLACK, linewidth=1.6, linestyle=":")
    names = [f"{_short(source)}, {name}".replace(" leaderboard", "") for source, name in groups.groups]
    pictures.named_rows(axes, [style.wrapped(name, 28) for name in names])
    axes.set(xlabel="time of a round, in baseline tokens")
    return figure


def _identities(table: pd.DataFrame) -> Section:
    off = table[table["agrees"] == NO]
    text = f"{len(table) - len(off)} of {len(table)} figures that others of their row determine are what these give"
    text += f"; {len(off)} are not, whatever was rounded: {_listed(off, 'printed', 'computed')}." if len(off) else "."
    caption = "Printed figures and what the others of their row give"
    return Section("Do rates, overheads and speedups multiply out?", (text,), ((caption, _shown(table)),))


def _lengths(table: pd.DataFrame) -> Section:
    off = table[~table["agree"].astype(bool)]
    more, less = off[off["error"] > 0], off[off["error"] < 0]
    parts = [
        f"too {word} in {len(part)} ({', '.join(dict.fromkeys(part['drafter']))}; up to {worst:+.1%})"
        for word, part, worst in (("many", more, more["error"].max()), ("few", less, less["error"].min()))
        if len(part)
    ]
    text = (
        f"In {len(off)} of {counted(len(table), 'pair')} of draft lengths no one α gives both printed tokens per round"
        + (f": at the longer draft, the α of the shorter promises {' and '.join(parts)}." if parts else ".")
    )
    chance = "Rounding is allowed for; chance is not, since no intervals were printed."
    caption = (
        "α solved from tokens per round at two lengths (gamma, longer), and what the first predicts for the second"
    )
    return Section("Which alphas disagree between lengths?", (text, chance), ((caption, _shown(table, "gamma")),))


def _positions(table: pd.DataFrame) -> Section:
    known = table[table["printed"].notna()]
    falling = int((table["last"] < table["first"]).sum())
    text = f"Acceptance at the last printed position is below the first in {falling} of {counted(len(table), 'row')}."
    if len(known):
        text += (
            f" The product of the positions' rates gives tokens per round within "
            f"{known['product_error'].abs().max():.1%} of what is printed in all {len(known)} rows of chains that "
            f"print it; one α, that of the first position, is off by {known['one_alpha_error'].min():+.1%} to "
            f"{known['one_alpha_error'].max():+.1%}."
        )
    note = (
        "A position's rate is among rounds that reach it. Prompt n-grams: the first counts rounds without a proposal "
        "as rejections, so one α that starts from it is far too low."
    )
    caption = "Acceptance by position, and tokens per round from it"
    return Section("Does one alpha stand for all positions?", (text, note), ((caption, _shown(table)),))


def _starts(table: pd.DataFrame) -> Section:
    text = (
        f"Averaged over every position as a start, tokens per round are {table['position_error'].min():+.1%} to "
        f"{table['position_error'].max():+.1%} off those of real rounds, and Ω at the α of every position is "
        f"{table['omega_error'].min():+.1%} to {table['omega_error'].max():+.1%} off ({counted(len(table), 'trace')}): "
        "rounds begin where the draft has just failed."
    )
    caption = "Tokens per round: i.i.d. theory, every position as a start, rounds where they begin"
    figure = _errors(table)
    return Section("Does it matter where rounds begin?", (text,), ((caption, _shown(table)),), (("starts", figure),))


@style.in_style
def _errors(table: pd.DataFrame) -> Figure:
    """Draw two errors per trace: of i.i.d. theory, and of averaging over positions."""
    ordered = table.sort_values(["drafter", "task", "gamma"])
    figure, axes = style.new_figure(
        "How far averages are above what real rounds yield",
        f"{counted(len(table), 'trace')}: {', '.join(dict.fromkeys(map(_short, table['source'])))}; "
        f"{', '.join(dict.fromkeys(table['target']))}; no intervals were printed.",
        height=2.4 + 0.3 * len(table),
    )
    places = np.arange(len(ordered))
    axes.plot(ordered["omega_error"], places, "o", color=style.BLUE, label="Ω at the α of every position")
    axes.plot(ordered["position_error"], places, "D", color=style.ORANGE, label="mean over every position")
    axes.axvline(0, color=style.BLACK, linewidth=1.6, linestyle=":")
    pictures.named_rows(axes, [f"{row.drafter}, {row.task}, γ {row.gamma}" for row in ordered.itertuples()])
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set(xlabel="over tokens per round of real rounds, less 1")
    style.legend_above(axes, 1)
    return figure


def _lenience(table: pd.DataFrame) -> Section:
    inside = int(table["within"].sum())
    text = f"{inside} of {len(table)} lenient alphas lie between α and α/l, where the lenient rule keeps them."
    return Section("Do lenient alphas keep their bounds?", (text,), (("Lenience l and its bound", _shown(table)),))


def _several(table: pd.DataFrame) -> Section:
    text = (
        f"Drafts of one position are not independent: K independent rows would give {table['error'].min():+.1%} to "
        f"{table['error'].max():+.1%} more tokens per round than are printed ({counted(len(table), 'row')}), so what "
        "one draft misses the others mostly miss too."
        if (table["error"] > 0).all()
        else f"{int((table['error'] <= 0).sum())} of {len(table)} rows print at least what K independent rows give."
    )
    caption = "K drafts: printed, and K independent rows at the α of one draft"
    return Section("Are several drafts worth as many chances?", (text,), ((caption, _shown(table)),))


CHECKS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], Callable[[pd.DataFrame], Section]]] = {
    "ceilings": (paper_tables.ceilings, _ceilings),
    "predictions": (paper_tables.predictions, _predictions),
    "round times": (paper_tables.round_times, _round_times),
    "identities": (paper_tables.identities, _identities),
    "lengths": (paper_tables.lengths, _lengths),
    "positions": (paper_tables.positions, _positions),
    "starts": (paper_tables.starts, _starts),
    "lenience": (paper_tables.lenience, _lenience),
    "several drafts": (paper_tables.several_drafts, _several),
}
"""Every check with the words about what it finds, in the order of the page."""


def heads_tables(published: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the printed settings of heads by title, "SOURCE: MODEL, HARDWARE", in the file's order, with COLUMNS.

    rate: tokens per step (acceleration rate, average acceptance length). overhead: as printed; implied: rate over
    speedup, what a step must have cost. speedup: measured. gain: in rate, over Medusa's heads. NaN where not printed.
    agrees: rate over overhead is the speedup (`YES`, `INPUTS`, `NO`); "" where one of the three is not printed.
    """
    mine = published[_systems(published["model_draft"]) != ""]
    if mine.empty:
        return {}
    every = printed_figures(mine)
    figures = every.reindex(columns=list(METRICS)).dropna(how="all").rename(columns=METRICS)
    checked = paper_tables.identities(every)
    checked = checked[checked["identity"] == "tokens per round / round time"].set_index(KEY)["agrees"]
    table = figures.assign(agrees=checked.reindex(figures.index).fillna("")).reset_index()
    table["implied"] = table["rate"] / table["speedup"]
    table["system"] = _systems(table["drafter"])
    # The tables in the file's order, each with the hardware that its name or a note in it says.
    said = mine["table"].astype(str) + " " + mine["note"].astype(object).fillna("").astype(str)
    named = mine[["source", "table"]].astype(object).assign(hardware=said.str.extract(HARDWARE, expand=False))
    hardware = named.groupby(["source", "table"], sort=False)["hardware"].first().fillna(UNKNOWN).reset_index()
    table = hardware.merge(table, on=["source", "table"])
    short = table["source"].str.partition("(")[0].str.strip()
    table["title"] = short + ": " + table["target"] + ", " + table["hardware"]
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
    every = pd.concat(tables.values())
    checked = every[every["agrees"] != ""]
    off = checked[checked["agrees"] == NO]
    text = []
    if len(checked):
        named = "; ".join(f"{row.rate:g} / {row.overhead:g} against {row.speedup:g}" for row in off.itertuples())
        text.append(
            f"In {len(checked) - len(off)} of {len(checked)} rows that print rate, overhead and speedup, rate over "
            f"overhead is the speedup within rounding{f', not in {len(off)} ({named})' if len(off) else ''}."
        )
    for system, part in every[every["overhead"].isna()].groupby("system", sort=False):
        if len(implied := part["implied"].dropna()):
            text.append(
                f"{system}: where no overhead is printed, rate over speedup says that a step took "
                f"{implied.min():.2f} to {implied.max():.2f} tokens of plain decoding ({len(implied)} rows)."
            )
    gains = every[every["gain"].notna()].itertuples()
    text += [f"{row.drafter} on {row.task}: {row.gain:+g} tokens per step over Medusa's heads." for row in gains]
    if missing := [system for system in SYSTEMS if system not in set(every["system"])]:
        text.append(f"The file has no row of {' or '.join(missing)}.")
    return Section(title, tuple(text), tuple(shown))


def _systems(drafters: pd.Series) -> pd.Series:
    """Return the system that each drafter belongs to, or ""."""
    names = drafters.fillna("").astype(str)
    choices = [names.str.contains(pattern, case=False, regex=True) for pattern in SYSTEMS.values()]
    # "grounded Medusa heads" are Hydra's: the later system is asked first.
    return pd.Series(np.select(choices[::-1], list(SYSTEMS)[::-1], ""), index=drafters.index)
