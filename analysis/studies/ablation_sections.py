"""What study `ablation` says: which strategy's rows are accepted, how far, at which rank, and which share of the rows
each has.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..figures.plots import counted
from ..findings import About, Findings
from ..sections import Section
from .ablation import contributions, distribution, strategies
from .ablation_plots import distributions, shares
from .replayed import bracket, origin, tokens_per_call


def findings(tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """From `replay`, `histograms` and `skipped`."""
    replay, histograms = tables["replay"], tables["histograms"]
    names = strategies(histograms)
    block = int(replay["k"].iloc[0]), int(replay["w"].iloc[0])
    whole = tokens_per_call(replay, ["k", "w"], about.replicates, about.seed).iloc[0]
    if not names:
        text = f"The drafter proposed nothing in {int(replay['rounds'].sum()):,} rounds: there is nothing to attribute."
        notes = origin(replay, tables["skipped"], about.title, about.prompts)
        return Findings((Section("Contribution of strategies", (text, *notes)),))
    parts = contributions(histograms, replay, names, about.replicates, about.seed)
    by_name = {
        name: {
            strategy: distribution(histograms, replay, name, strategy, about.replicates, about.seed)
            for strategy in names
        }
        for name in ("accepted", "rank", "allotment")
    }
    sections = (
        _contribution(parts, whole, replay, tables["skipped"], block, about),
        _lengths(by_name["accepted"], parts, block, replay, about),
        _ranks(by_name["rank"], block, replay, about),
        _allotment(by_name["allotment"], parts, block, replay, about),
    )
    return Findings(sections, _metrics(parts, whole), _curves(by_name))


def _metrics(parts: pd.DataFrame, whole: pd.Series) -> dict[str, float]:
    """`ablation.*`, by strategy."""
    metrics = {"ablation.tokens_per_call": float(whole["value"])}
    for row in parts.to_dict("records"):
        for key in ("rows", "wins", "of_rows", "of_wins", "per_row", "tokens", "length"):
            metrics[f"ablation.{row['strategy']}.{key}"] = float(row[key])
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _curves(by_name: Mapping[str, Mapping[str, pd.DataFrame]]) -> dict[str, dict[int, float]]:
    """Shares: over accepted length, over rank (from 1), over rows of a round."""
    return {
        f"curve.ablation.{name}.{strategy}": {
            int(value) + (name == "rank"): float(share)
            for value, share in zip(table["value"], table["share"], strict=True)
            if np.isfinite(share)
        }
        for name, tables in by_name.items()
        for strategy, table in tables.items()
    }


# Sections -------------------------------------------------------------------------------------------


def _contribution(
    parts: pd.DataFrame, whole: pd.Series, replay: pd.DataFrame, skipped: pd.DataFrame, block: tuple[int, int],
    about: About,
) -> Section:  # fmt: skip
    first = parts.loc[parts["tokens"].fillna(0.0).idxmax()]
    nothing = 1 - parts["wins"].sum()
    text = [
        f"Of the accepted draft tokens {_percent(first, 'tokens')} come from {first['strategy']}, which has "
        f"{_percent(first, 'of_rows')} of the rows; at {block} a call yields {whole['value']:.2f}"
        f"{bracket(whole['low'], whole['high'])} tokens, and in {nothing:.0%} of {int(replay['rounds'].sum()):,} "
        "rounds no row is accepted."
    ]
    best = parts.loc[parts["per_row"].fillna(0.0).idxmax()]
    if len(parts) > 1:
        text.append(
            f"A row of {best['strategy']} is worth most: {100 * best['per_row']:.1f} of a hundred are accepted"
            + "".join(
                f", {100 * row['per_row']:.1f} of {row['strategy']}"
                for row in parts.to_dict("records")
                if row["strategy"] != best["strategy"]
            )
            + ". Strategies are not alternatives here: the first to offer a row is credited with it, and the later "
            "ones fill what is left."
        )
    figure = shares(
        parts,
        title=f"Who has the rows, and whose are accepted, {block[0]} rows of {block[1]}\n{about.title}",
        caption=_caption(replay, about),
    )
    return Section(
        "Contribution of strategies",
        (*text, *origin(replay, skipped, about.title, about.prompts)),
        tables=(("By strategy, with 95% prompt-bootstrap intervals", _table(parts)),),
        figures=(("contribution", figure),),
    )


def _table(parts: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for row in parts.to_dict("records"):
        per_round = f"{row['rows']:.2f}{bracket(row['rows_low'], row['rows_high'])}"
        length = (
            "–" if np.isnan(row["length"]) else f"{row['length']:.2f}{bracket(row['length_low'], row['length_high'])}"
        )
        rows.append(
            {
                "strategy": row["strategy"],
                "rows a round": per_round,
                "share of rows": _percent(row, "of_rows"),
                "rounds won": _percent(row, "wins"),
                "share of accepted rows": _percent(row, "of_wins"),
                "accepted of its rows": _percent(row, "per_row", 1),
                "share of accepted tokens": _percent(row, "tokens"),
                "accepted length when it wins": length,
            }
        )
    return pd.DataFrame(rows)


def _percent(row: Mapping[str, float] | pd.Series, key: str, digits: int = 0) -> str:
    """With its interval."""
    value, low, high = (float(row[name]) for name in (key, f"{key}_low", f"{key}_high"))
    if np.isnan(value):
        return "–"
    interval = f" [{100 * low:.{digits}f}, {100 * high:.{digits}f}]" if np.isfinite(low) and np.isfinite(high) else ""
    return f"{100 * value:.{digits}f}%{interval}"


def _caption(replay: pd.DataFrame, about: About) -> str:
    prompts, rounds = replay["prompt"].nunique(), int(replay["rounds"].sum())
    bars = "whiskers: 95% prompt-bootstrap intervals" if prompts > 1 else "no intervals"
    return f"{counted(prompts, 'prompt')} of {about.prompts}, {counted(rounds, 'round')}, replayed; {bars}."


def _lengths(
    tables: Mapping[str, pd.DataFrame], parts: pd.DataFrame, block: tuple[int, int], replay: pd.DataFrame, about: About
) -> Section:
    won = parts[parts["wins"] > 0]
    listed = "; ".join(
        f"{row['strategy']} {row['length']:.2f}{bracket(row['length_low'], row['length_high'])}"
        for row in won.to_dict("records")
    )
    full = "; ".join(
        f"{name} {table.loc[table['value'] == block[1], 'share'].sum():.0%}"
        for name, table in tables.items()
        if len(table)
    )
    text = (
        f"Accepted tokens in the rounds that a strategy wins, on average: {listed}."
        if listed
        else "No row of any strategy was accepted.",
        f"All {block[1]} tokens of a row are accepted in, of the rounds it wins: {full}; there longer rows would give "
        "more."
        if full
        else "",
    )
    figure = distributions(
        {name: table for name, table in tables.items() if len(table)},
        xlabel="accepted tokens",
        ylabel="share of the rounds that it wins",
        title=f"Accepted length by strategy, {block[0]} rows of {block[1]}\n{about.title}",
        caption=_caption(replay, about),
    )
    return _section("Accepted length", text, "accepted tokens", tables, ("accepted_lengths", figure), 0)


def _ranks(tables: Mapping[str, pd.DataFrame], block: tuple[int, int], replay: pd.DataFrame, about: About) -> Section:
    listed = []
    for name, table in tables.items():
        if len(table):
            first = table.loc[table["value"] == 0, "share"].sum()
            needed = int(table["value"].iloc[int(np.searchsorted(table["share"].cumsum(), 0.9 - 1e-9))]) + 1
            listed.append(f"{name} {first:.0%} at rank 1, 90% up to rank {needed}")
    figure = distributions(
        {name: table for name, table in tables.items() if len(table)},
        xlabel="rank that the strategy gave the accepted row",
        ylabel="share of the rounds that it wins",
        title=f"Rank of the accepted row by strategy, {block[0]} rows of {block[1]}\n{about.title}",
        caption=_caption(replay, about),
        shift=1,
    )
    text = (
        f"Where the accepted row stood in its strategy's own order: {'; '.join(listed)}." if listed else "",
        "Where several rows begin alike, what they share counts for the first of them.",
    )
    return _section("Rank of the accepted row", text, "rank", tables, ("ranks", figure), 1)


def _allotment(
    tables: Mapping[str, pd.DataFrame], parts: pd.DataFrame, block: tuple[int, int], replay: pd.DataFrame, about: About
) -> Section:
    listed = []
    for row in parts.to_dict("records"):
        table = tables[str(row["strategy"])]
        none = table.loc[table["value"] == 0, "share"].sum()
        listed.append(
            f"{row['strategy']} {row['rows']:.2f}{bracket(row['rows_low'], row['rows_high'])} rows, none in {none:.0%} "
            "of the rounds"
        )
    figure: Figure = distributions(
        tables,
        xlabel="rows that the strategy has in a round",
        ylabel="share of all rounds",
        title=f"Allotment of {block[0]} rows of {block[1]} to strategies\n{about.title}",
        caption=_caption(replay, about) + " A row that a second strategy offers too counts for the first.",
    )
    text = (f"Of {block[0]} rows a round has on average: {'; '.join(listed)}.",)
    return _section("Allotment of rows", text, "rows in a round", tables, ("allotment", figure), 0)


def _section(
    title: str,
    text: tuple[str, ...],
    what: str,
    tables: Mapping[str, pd.DataFrame],
    figure: tuple[str, Figure],
    shift: int,
) -> Section:
    """A distribution's figure and its table: values down, strategies across."""
    columns = {
        name: pd.Series(
            [_percent(row, "share", 1) for row in table.to_dict("records")], index=table["value"] + shift, dtype=object
        )
        for name, table in tables.items()
    }
    wide = pd.DataFrame(columns).sort_index().fillna("–").rename_axis(what).reset_index()
    return Section(title, tuple(sentence for sentence in text if sentence), (("Shares of rounds", wide),), (figure,))
