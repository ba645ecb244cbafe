"""Reads published figures, and sets what a paper prints against what follows from its other columns.

The figures come along in `published.csv` (columns in COLUMNS): facts, each line with its source; what was not read in
the source itself says so in its note. A new figure is a new line in that file and nothing else: every table and check
finds it by its metric. Whoever has other figures names a file of their own. Every printed figure stands for all values
that round to it: a disagreement counts only if no such values agree. The last digit of a column is the last that any of
its rows has.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import nan, prod
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from specdec.errors import UsageError
from specdec.theory import capped_geometric as model

COLUMNS = (
    *("source", "table", "model_target", "model_draft", "task", "temperature", "gamma"),
    *("metric", "value", "unit", "note"),
)
SHIPPED = Path(__file__).parent / "published.csv"
LEVIATHAN = "2211.17192"
TABLE_1 = ((0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10))  # alpha, gamma; c and c_ops are 0
ROUNDING = 0.005 + 1e-9  # of a value printed with two decimals
SETTING = ["source", "table", "target", "drafter", "task", "temperature", "gamma"]
KEY = [*SETTING, "variant"]
VARIANT = r"(K=\d+ drafts|lenience l=[\d.]+|batch [2-9])"  # rows that differ in nothing but their note
COST = "cost_coefficient_c"
NOTED = {  # metric: pattern of its figure, where papers print it in a note
    "time_per_token_baseline": r"baseline ([\d.]+) m?s/token",
    COST: r"\bc=([\d.]+)",
}
SAME_ROWS = {"Table 4": "Table 2", "Table 5": "Appendix A.5"}  # of Leviathan et al.: columns of one row, printed apart
ELSEWHERE = {  # (part of the source, table): what uses its figures beside the checks
    (LEVIATHAN, "Table 1"): "recomputed",
    (LEVIATHAN, "Table 3"): "notebook 02",
    ("2401.15077", "Table 5"): "positions",  # the chains whose positions Table 2 prints
}
YES, INPUTS, NO = "yes", "within the rounding of its inputs", "no"


def load_published(path: Path | str = SHIPPED) -> pd.DataFrame:
    """Return the figures of a CSV, one per line. UsageError if it is missing, is no table, or lacks a column."""
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
    """Recompute Table 1 of Leviathan et al.: operations (Theorem 3.11) and speedup (3.8) for a free drafter, beside
    those of `published` (`_printed`, NaN where it has none); agrees: both lie within the rounding of two decimals.
    """
    table = pd.DataFrame(TABLE_1, columns=["alpha", "gamma"])
    table["operations"] = model.operations(table["alpha"].to_numpy(), table["gamma"].to_numpy(), 0.0)
    table["speedup"] = model.speedup(table["alpha"].to_numpy(), table["gamma"].to_numpy(), 0.0)
    metrics = {"operations_factor": "operations", "speedup_ideal": "speedup"}
    printed = {}
    for row in _of_leviathan(published, "Table 1", list(metrics)).itertuples():
        if alpha := re.search(r"\balpha=([0-9.]+)", str(row.note)):  # the file has it in the note
            printed[metrics[row.metric], float(alpha[1]), int(row.gamma)] = float(row.value)
    agrees = pd.Series(True, index=table.index)
    for name in metrics.values():
        table[f"{name}_printed"] = pd.Series([printed.get((name, *key)) for key in TABLE_1], dtype=float)
        agrees &= (table[name] - table[f"{name}_printed"]).abs() <= ROUNDING
    return table.assign(agrees=agrees)


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
    known = table.dropna(subset=["operations_printed", "speedup_printed"])
    if known.empty:
        return "The file of published figures has no row of Leviathan's Table 1."
    absent, off = len(table) - len(known), known[~known["agrees"]]
    missing = f"; {absent} rows are not in the file" if absent else ""
    if off.empty:
        return f"All {len(known)} rows of Table 1 agree with the formulas to the printed decimals{missing}."
    where = ", ".join(f"alpha {row.alpha:g} gamma {row.gamma}" for row in off.itertuples())
    agree = len(known) - len(off)
    return f"{agree} of {len(known)} rows of Table 1 agree with the formulas; not {where}{missing}."


def printed_figures(published: pd.DataFrame) -> pd.DataFrame:
    """Return a line per printed setting (index KEY): a column per metric, and `metric.half`, half its last digit.
    Text such as "7-10" is no figure. Of several figures for one setting and metric the first counts.
    """
    text = published["value"].astype(str)
    rows = published.rename(columns={"model_target": "target", "model_draft": "drafter"}).assign(
        value=pd.to_numeric(text, errors="coerce"), decimals=text.map(_decimals)
    )
    notes = rows["note"].astype(object).fillna("").astype(str)  # a column without any note is one of floats
    rows["variant"] = notes.str.extract(VARIANT, expand=False).fillna("")
    parts = [rows]
    for metric, pattern in NOTED.items():
        stated = notes.str.extract(pattern, expand=False).dropna()
        values = {"value": stated.astype(float), "decimals": stated.map(_decimals)}
        parts.append(rows.loc[stated.index].assign(metric=metric, **values))
    rows = pd.concat(parts, ignore_index=True).dropna(subset="value")
    rows["half"] = 0.5 * 10.0 ** -rows.groupby(["source", "table", "metric"])["decimals"].transform("max")
    leviathan = rows["source"].str.contains(LEVIATHAN, regex=False)
    rows["table"] = rows["table"].where(~leviathan, rows["table"].replace(SAME_ROWS))
    rows[KEY] = rows[KEY].astype(object).where(rows[KEY].notna(), "")
    rows["gamma"] = pd.to_numeric(rows["gamma"], errors="coerce").fillna(0).astype(int)
    first = rows.drop_duplicates([*KEY, "metric"]).set_index([*KEY, "metric"])
    values, halves = first["value"].unstack("metric"), first["half"].unstack("metric").add_suffix(".half")
    return values.join(halves)


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])


def _having(figures: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Keep the settings that have all of `metrics`; these become columns even if no setting has them."""
    wanted = [*metrics, *(f"{metric}.half" for metric in metrics)]
    return figures.reindex(columns=wanted).dropna()


def _compared(
    row: pd.Series, metric: str, inputs: Sequence[str], formula: Callable[..., float]
) -> tuple[float, float, float, float, str]:
    """Return a printed metric, `formula` of the printed inputs, its range over all inputs printed alike, and a word:
    YES if the metric is the formula's value rounded, INPUTS if it follows from other inputs that are printed alike,
    else NO. The formula is monotone in each input.
    """
    corners = product(*((row[name] - row[f"{name}.half"], row[name] + row[f"{name}.half"]) for name in inputs))
    results = [formula(*corner) for corner in corners]
    printed, value, low, high = row[metric], formula(*row[list(inputs)]), min(results), max(results)
    slack = row[f"{metric}.half"] + 1e-9
    near = INPUTS if low - slack <= printed <= high + slack else NO
    return printed, value, low, high, YES if abs(printed - value) <= slack else near


def solved_alpha(tokens: float, gamma: int) -> float:
    """Solve Omega(alpha, gamma) = tokens for alpha; NaN outside 1 to gamma + 1 tokens, where there is none."""
    if not 1 <= tokens <= gamma + 1:
        return nan
    return float(brentq(lambda alpha: float(model.tokens_per_round(alpha, gamma)) - tokens, 0.0, 1.0, xtol=1e-12))


def predictions(figures: pd.DataFrame) -> pd.DataFrame:
    """Set printed speedups of Theorem 3.8 (2211.17192) beside the formula at the printed alpha, gamma (else the best
    one) and c. Columns alpha, c, printed, formula, low, high, agrees.
    """
    rows = []
    for key, row in _having(figures, "alpha", COST, "speedup_predicted").iterrows():
        gamma = key[KEY.index("gamma")]

        def formula(alpha: float, c: float, gamma: int = gamma) -> float:
            return float(model.speedup(alpha, gamma, c)) if gamma else model.optimal_gamma(alpha, c).speedup

        inputs = ["alpha", COST]
        rows.append((*key, *row[inputs], *_compared(row, "speedup_predicted", inputs, formula)))
    return pd.DataFrame(rows, columns=[*KEY, "alpha", "c", "printed", "formula", "low", "high", "agrees"])


def ceilings(figures: pd.DataFrame) -> pd.DataFrame:
    """Set measured speedups beside what no speedup can pass at the printed alpha, if acceptance is i.i.d.

    omega: Omega(alpha, gamma), reached by a drafter that costs nothing; limit: 1 / (1 - alpha), reached by an endless
    draft. exceeds: "", "omega" or "limit"; surely: so even after rounding. formula: Theorem 3.8 at the printed c;
    beyond: the measured speedup is above it (YES: whatever was rounded, INPUTS: as printed, NO); alpha_needed: what the
    theorem would have to be given for the measured speedup. NaN and "" where no c is printed.
    """
    rows = []
    for key, row in _having(figures, "alpha", "speedup_measured").iterrows():
        gamma = key[KEY.index("gamma")]
        if not gamma:
            continue
        alpha, measured = row["alpha"], row["speedup_measured"]
        least, most = measured - row["speedup_measured.half"], min(1.0, alpha + row["alpha.half"])
        omega, limit = float(model.tokens_per_round(alpha, gamma)), float(model.tokens_per_round(alpha, np.inf))
        exceeds = "limit" if measured > limit else "omega" if measured > omega else ""
        ceiling = float(model.tokens_per_round(most, gamma if exceeds == "omega" else np.inf))
        surely = bool(exceeds) and least > ceiling
        c, half = (figures.at[key, name] if name in figures else nan for name in (COST, f"{COST}.half"))
        formula, beyond = nan, ""
        if not np.isnan(c):
            formula = float(model.speedup(alpha, gamma, c))
            highest = float(model.speedup(most, gamma, max(0.0, c - half)))
            beyond = YES if least > highest else INPUTS if measured > formula else NO
        needed = solved_alpha(measured * (1 + gamma * c), gamma)
        rows.append((*key, alpha, measured, omega, limit, exceeds, surely, formula, beyond, needed))
    columns = ["alpha", "speedup", "omega", "limit", "exceeds", "surely", "formula", "beyond", "alpha_needed"]
    return pd.DataFrame(rows, columns=[*KEY, *columns])


def round_times(figures: pd.DataFrame) -> pd.DataFrame:
    """Divide tokens per round by the speedup: the time of a round in tokens of the baseline. possible: no if it would
    be less than 1, whatever was rounded.
    """
    both = _having(figures, "tokens_per_round", "speedup_measured").rename_axis(columns=None)
    tokens, gain = both["tokens_per_round"], both["speedup_measured"]
    slowest = (tokens + both["tokens_per_round.half"]) / (gain - both["speedup_measured.half"])
    possible = np.select([tokens >= gain, slowest >= 1], [YES, INPUTS], NO)
    table = pd.DataFrame({"tokens_per_round": tokens, "speedup": gain, "round_time": tokens / gain})
    return table.assign(possible=possible).reset_index()


# Figures that others of the same setting determine: by name the metric as printed and its inputs, the last of which is
# the divisor of the product of the others.
IDENTITIES: dict[str, tuple[str, list[str]]] = {
    "tokens per round / round time": ("speedup_measured", ["tokens_per_round", "round_time_over_baseline"]),
    "tokens per round x baseline / time of a round": (
        "speedup_measured",
        ["tokens_per_round", "time_per_token_baseline", "time_per_round"],
    ),
    "baseline / time per token": ("speedup_measured", ["time_per_token_baseline", "time_per_token_speculative"]),
    "tokens per round / Omega": ("tokens_over_omega", ["tokens_per_round", "omega_of_alpha"]),
}


def identities(figures: pd.DataFrame) -> pd.DataFrame:
    """Compute the figures that IDENTITIES determine. Columns identity, printed, computed, low, high, agrees."""
    rows = []
    for name, (printed, inputs) in IDENTITIES.items():
        for key, row in _having(figures, printed, *inputs).iterrows():
            rows.append((*key, name, *_compared(row, printed, inputs, lambda *values: prod(values[:-1]) / values[-1])))
    return pd.DataFrame(rows, columns=[*KEY, "identity", "printed", "computed", "low", "high", "agrees"])


def lengths(figures: pd.DataFrame) -> pd.DataFrame:
    """Solve for alpha from printed tokens per round at each gamma of a chain, to see whether one alpha gives all.

    A line has two neighbouring gammas (gamma, longer). expected: tokens at the longer one by the alpha of the shorter;
    error: over what is printed there, less 1. agree: some alpha gives both, whatever was rounded.
    """
    chains = _having(figures, "tokens_per_round").reset_index()
    chains = chains[(chains["gamma"] > 0) & chains["variant"].isin(["", "K=1 drafts"])]
    rows = []
    for _, group in chains.groupby([name for name in KEY if name != "gamma"], sort=False):
        ordered = group.sort_values("gamma").to_dict("records")
        for short, long in pairwise(ordered):
            bounds = []
            for row in (short, long):
                tokens, half, gamma = row["tokens_per_round"], row["tokens_per_round.half"], row["gamma"]
                bounds.append([solved_alpha(value, gamma) for value in (tokens - half, tokens, tokens + half)])
            (low, alpha, high), (low_long, alpha_long, high_long) = bounds
            expected = float(model.tokens_per_round(alpha, long["gamma"]))
            agree = low <= high_long and low_long <= high
            error = expected / long["tokens_per_round"] - 1
            values = (long["gamma"], alpha, alpha_long, expected, long["tokens_per_round"], error, agree)
            rows.append((*(short[name] for name in KEY), *values))
    columns = ["longer", "alpha", "alpha_longer", "expected", "printed", "error", "agree"]
    return pd.DataFrame(rows, columns=[*KEY, *columns])


def positions(figures: pd.DataFrame) -> pd.DataFrame:
    """Set printed tokens per round beside what printed acceptances by position give.

    product: 1 + the sum of their running products, exact for any dependence. one_alpha: Omega at the first position's
    acceptance, as if it held everywhere. printed: of the same chain; NaN where only a tree's is printed.
    `_error`: over what is printed, less 1.
    """
    names = sorted(
        (name for name in figures if name.startswith("alpha_position_") and not name.endswith(".half")),
        key=lambda name: int(name.rpartition("_")[2]),
    )
    where = ["source", "target", "task", "temperature", "gamma", "drafter"]
    printed = figures.reindex(columns=["tokens_per_round"]).dropna().reset_index().drop_duplicates(where)
    tokens_printed = printed.set_index(where)["tokens_per_round"].to_dict()
    rows = []
    for key, row in figures[names].dropna(how="all").iterrows():
        rates = row.dropna().to_numpy()
        one = float(model.tokens_per_round(rates[0], len(rates)))
        setting = dict(zip(KEY, key, strict=True))
        *shared, drafter = (setting[name] for name in where)
        own = tokens_printed.get((*shared, drafter), nan) if setting["gamma"] else nan
        measured = tokens_printed.get((*shared, f"{drafter} chain"), own)
        tokens = float(model.product_identity(rates))
        errors = tokens / measured - 1, one / measured - 1
        rows.append((*key, len(rates), rates[0], rates[-1], tokens, one, measured, *errors))
    columns = ["depth", "first", "last", "product", "one_alpha", "printed", "product_error", "one_alpha_error"]
    return pd.DataFrame(rows, columns=[*KEY, *columns])


def starts(figures: pd.DataFrame) -> pd.DataFrame:
    """Compare tokens per round by i.i.d. theory, with every position as a start, and with real rounds."""
    names = {"omega_of_alpha": "omega", "tokens_per_round_uniform_start": "by_position", "tokens_per_round": "by_round"}
    table = _having(figures, *names)[list(names)].rename(columns=names).rename_axis(columns=None).reset_index()
    errors = {"omega_error": table["omega"], "position_error": table["by_position"]}
    return table.assign(**{name: value / table["by_round"] - 1 for name, value in errors.items()})


def lenience(figures: pd.DataFrame) -> pd.DataFrame:
    """Check that printed alphas of a lenient rule, sum min(p / l, q), lie between alpha at l = 1 and alpha / l.
    Columns l, alpha, printed, bound, within.
    """
    rows = _having(figures, "alpha").reset_index()
    rows["l"] = rows["variant"].str.extract(r"lenience l=([\d.]+)", expand=False).astype(float)
    strict = rows[rows["l"] == 1].drop_duplicates(SETTING)
    table = rows[rows["l"] < 1].merge(strict[[*SETTING, "alpha"]], on=SETTING, suffixes=("_l", ""))
    bound = np.minimum(1.0, (table["alpha"] + table["alpha.half"]) / table["l"])
    within = table["alpha_l"].between(table["alpha"], bound + table["alpha.half"])
    table = table.assign(printed=table["alpha_l"], bound=bound, within=within)
    return table[[*KEY, "l", "alpha", "printed", "bound", "within"]]


def several_drafts(figures: pd.DataFrame) -> pd.DataFrame:
    """Set printed tokens per round of K drafts beside those of K independent rows at the alpha of one draft.
    alpha is solved from what is printed for K = 1. expected: (w + 1) - sum_i (1 - alpha^i)^K for rows of width w.
    """
    rows = _having(figures, "tokens_per_round").reset_index()
    rows["drafts"] = rows["variant"].str.extract(r"K=(\d+) drafts", expand=False).astype(float)
    rows = rows[rows["gamma"] > 0]
    single = rows[rows["drafts"] == 1][[*SETTING, "tokens_per_round"]]
    table = rows[rows["drafts"] > 1].merge(single, on=SETTING, suffixes=("", "_single"))
    table["alpha"] = list(map(solved_alpha, table["tokens_per_round_single"], table["gamma"]))
    settings = zip(table["alpha"], table["gamma"], table["drafts"].astype(int), strict=True)
    table["expected"] = [float(model.tokens_per_round_rows(*setting)) for setting in settings]
    table["error"] = table["expected"] / table["tokens_per_round"] - 1
    table = table.rename(columns={"tokens_per_round": "printed"})
    return table[[*KEY, "drafts", "alpha", "expected", "printed", "error"]]


def coverage(published: pd.DataFrame, checks: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a line per printed table: how many figures it has, and which checks used it; "" where none could."""
    rows = []
    for (source, table), part in published.groupby(["source", "table"], sort=False):
        folded = SAME_ROWS.get(table, table) if LEVIATHAN in source else table
        using = {n: (found["source"] == source) & (found["table"] == folded) for n, found in checks.items()}
        used = [name for name, lines in using.items() if lines.any()]
        used += [use for (name, beside), use in ELSEWHERE.items() if name in source and beside == table]
        rows.append((source, table, len(part), ", ".join(used)))
    return pd.DataFrame(rows, columns=["source", "table", "figures", "checked by"])
