"""Study `ablation`: whose rows are accepted, how far, at which rank, and which share of the rows each strategy has."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import (
    StrategyComparison,
    curve,
    interval,
    intervals,
    metrics_of,
    printed,
    tokens_per_call,
    with_replicates,
)
from ..figures import pictures, style
from ..intervals import Interval
from ..sections import About, Findings, Section, Tables, counted, register

_MOST = 16  # numbers under the bars
_WON = "share of the rounds that it wins"
_SHARES = {"of_rows": "rows offered", "of_wins": "accepted rows", "tokens": "accepted tokens"}


@register("ablation", overlay="ngrammys_ablation")
def findings(tables: Tables, about: About) -> Findings:
    """Read `replay`, `histograms` and `skipped`."""
    replay, histograms = tables["replay"], tables["histograms"]
    names = strategies(histograms)
    origin = about.origin(replay, tables["skipped"])
    if not names:
        text = f"The drafter proposed nothing in {int(replay['rounds'].sum()):,} rounds: there is nothing to attribute."
        return Findings((Section("Contribution of strategies", (text, *origin)),))
    parts = contributions(histograms, replay, names, about.replicates, about.seed)
    whole = tokens_per_call(replay, ["k", "w"], about.replicates, about.seed).iloc[0]
    found = {
        name: {each: distribution(histograms, replay, name, each, about) for each in names}
        for name in ("accepted", "rank", "allotment")
    }
    for table in found["rank"].values():
        table["value"] += 1  # shown from 1
    sections = (
        _contribution(parts, whole, replay, origin, about),
        _lengths(found["accepted"], parts, replay, about),
        _ranks(found["rank"], replay, about),
        _allotment(found["allotment"], parts, replay, about),
    )
    metrics = {"ablation/tokens_per_call": float(whole["tokens"])}
    quantities = {name: name for name in ("rows", "wins", "of_rows", "of_wins", "per_row", "tokens", "length")}
    metrics |= metrics_of(parts, "ablation/{strategy}.{what}", quantities, bounds=False)
    curves = {
        f"curve/ablation/{name}.{strategy}": curve(table, "value", "share")
        for name, several in found.items()
        for strategy, table in several.items()
    }
    return Findings(sections, metrics, curves)


# Numbers --------------------------------------------------------------------------------------------


def strategies(histograms: pd.DataFrame) -> list[str]:
    """Return the strategies that had rows, the one with most rows first."""
    rows = histograms[histograms["histogram"] == "allotment"]
    total = (rows["value"] * rows["count"]).groupby(rows["strategy"]).sum()
    return [str(name) for name in total.sort_values(ascending=False, kind="stable").index]


def distribution(
    histograms: pd.DataFrame, replay: pd.DataFrame, name: str, strategy: str, about: About
) -> pd.DataFrame:
    """Return how the values of histogram `name` share the rounds of `strategy`: value, count, share, share_low,
    share_high.

    The rounds of "accepted" and "rank" are those that the strategy won; those of "allotment" are all rounds, with those
    in which it had no row.
    """
    mine = histograms[(histograms["histogram"] == name) & (histograms["strategy"] == strategy)]
    wide = mine.pivot_table(index="prompt", columns="value", values="count", aggfunc="sum", fill_value=0)
    wide = wide.reindex(sorted(replay["prompt"].unique()), fill_value=0)
    if name == "allotment":
        rounds = replay.groupby("prompt")["rounds"].sum()
        wide[0] = wide.get(0, 0) + rounds.reindex(wide.index) - wide.sum(axis=1)
    wide = wide[sorted(wide.columns)]
    counts = with_replicates(wide.to_numpy(dtype=float), about.replicates, about.seed)
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=1, keepdims=True)
    cells = pd.DataFrame({"value": wide.columns.to_numpy(dtype=int), "count": wide.sum(axis=0).to_numpy(dtype=int)})
    return StrategyComparison(cells, {}, len(wide)).table({"share": shares})


def contributions(
    histograms: pd.DataFrame, replay: pd.DataFrame, names: Sequence[str], replicates: int, seed: int
) -> pd.DataFrame:
    """Return a line for each strategy: rows (offered in a round), wins (share of rounds in which its row was accepted),
    of_rows and of_wins (its shares of all rows and of all won rounds), per_row (won rounds for each row offered),
    tokens (its share of all accepted tokens), length (mean accepted tokens in the rounds it won); each with _low and
    _high.
    """
    per_prompt = pd.DataFrame({"rounds": replay.groupby("prompt")["rounds"].sum()})
    for index, name in enumerate(names):
        mine = histograms[histograms["strategy"] == name]
        for column, histogram, weighted in (("rows", "allotment", True), ("wins", "accepted", False),
                                            ("tokens", "accepted", True)):  # fmt: skip
            part = mine[mine["histogram"] == histogram]
            values = part["count"] * (part["value"] if weighted else 1)
            per_prompt[f"{column}{index}"] = values.groupby(part["prompt"]).sum()
    drawn = with_replicates(per_prompt.fillna(0).to_numpy(dtype=float), replicates, seed)
    rounds = drawn[:, :1]
    rows, wins, tokens = (drawn[:, 1 + at :: 3] for at in range(3))  # [1 + B, strategies] each

    def share(values: np.ndarray) -> np.ndarray:
        return values / sum(values.T)[:, None]  # added up in their order

    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = {
            "rows": rows / rounds,
            "wins": wins / rounds,
            "of_rows": share(rows),
            "of_wins": share(wins),
            "per_row": wins / rows,
            "tokens": share(tokens),
            "length": tokens / wins,
        }
    return StrategyComparison(pd.DataFrame({"strategy": list(names)}), {}, len(per_prompt)).table(statistics)


# Words ----------------------------------------------------------------------------------------------


def _contribution(
    parts: pd.DataFrame, whole: pd.Series, replay: pd.DataFrame, origin: tuple[str, ...], about: About
) -> Section:
    k, w = int(replay["k"].iloc[0]), int(replay["w"].iloc[0])
    first = parts.loc[parts["tokens"].fillna(0.0).idxmax()]
    text = [
        f"{first['strategy']} has {interval(first, 'tokens'):.0%} of the accepted draft tokens and "
        f"{interval(first, 'of_rows'):.0%} of the rows. With {k} rows of {w} a call yields "
        f"{interval(whole, 'tokens'):.2f} tokens; in {1 - parts['wins'].sum():.0%} of {int(replay['rounds'].sum()):,} "
        "rounds no row is accepted."
    ]
    if len(parts) > 1:
        ordered = parts.sort_values("per_row", ascending=False, kind="stable").to_dict("records")
        others = ", ".join(f"{100 * line['per_row']:.1f} of {line['strategy']}" for line in ordered[1:])
        text.append(
            f"A row of {ordered[0]['strategy']} is worth most: {100 * ordered[0]['per_row']:.1f} of a hundred are "
            f"accepted, {others}. Strategies are not alternatives here: the first that offers a row is credited with "
            "it, and later ones fill the places that are left."
        )
    shown = pd.DataFrame(
        {
            "strategy": parts["strategy"],
            "rows a round": printed(parts, "rows", ".2f"),
            "share of rows": printed(parts, "of_rows", ".0%"),
            "rounds won": printed(parts, "wins", ".0%"),
            "share of accepted rows": printed(parts, "of_wins", ".0%"),
            "accepted of its rows": printed(parts, "per_row", ".1%"),
            "share of accepted tokens": printed(parts, "tokens", ".0%"),
            "accepted length when it wins": printed(parts, "length", ".2f"),
        }
    )
    groups = {line["strategy"]: [interval(line, name) for name in _SHARES] for line in parts.to_dict("records")}
    title = "Who has the rows, and whose are accepted"
    figure = _bars(groups, list(_SHARES.values()), "", "share by strategy", title, replay, about)
    figure.axes[0].set_ylim(0, 1)
    return Section(
        "Contribution of strategies",
        (*text, *origin),
        tables=(("Contribution by strategy, with 95% prompt-bootstrap intervals", shown),),
        figures=(("contribution", figure),),
    )


def _lengths(found: Mapping[str, pd.DataFrame], parts: pd.DataFrame, replay: pd.DataFrame, about: About) -> Section:
    w = int(replay["w"].iloc[0])
    won = [line for line in parts.to_dict("records") if line["wins"] > 0]
    text = ["No row of any strategy was accepted."]
    if won:
        listed = "; ".join(f"{line['strategy']} {interval(line, 'length'):.2f}" for line in won)
        text = [f"Mean accepted tokens in the rounds that a strategy wins: {listed}."]
    full = "; ".join(
        f"{name} {table.loc[table['value'] == w, 'share'].sum():.0%}" for name, table in found.items() if len(table)
    )
    if full:
        text.append(
            f"Share of the rounds that a strategy wins with all {w} tokens of its row: {full}. There longer rows would "
            "give more."
        )
    figure = _bars_of(found, "accepted tokens", _WON, "Accepted length by strategy", replay, about)
    return Section("Accepted length", tuple(text), _table(found, "accepted tokens"), (("accepted_lengths", figure),))


def _ranks(found: Mapping[str, pd.DataFrame], replay: pd.DataFrame, about: About) -> Section:
    listed = []
    for name, table in found.items():
        if table.empty:
            continue
        first = table.loc[table["value"] == 1, "share"].sum()
        needed = int(table["value"].iloc[int(np.searchsorted(table["share"].cumsum(), 0.9 - 1e-9))])
        listed.append(f"{name} {first:.0%} at rank 1, 90% up to rank {needed}")
    text = [f"Where the accepted row stood in its strategy's own order: {'; '.join(listed)}."] if listed else []
    text.append("Where several rows begin alike, the tokens that they share count for the first of them.")
    below = "rank that the strategy gave the accepted row"
    figure = _bars_of(found, below, _WON, "Rank of the accepted row by strategy", replay, about)
    return Section("Rank of the accepted row", tuple(text), _table(found, "rank"), (("ranks", figure),))


def _allotment(found: Mapping[str, pd.DataFrame], parts: pd.DataFrame, replay: pd.DataFrame, about: About) -> Section:
    listed = []
    for line in parts.to_dict("records"):
        table = found[str(line["strategy"])]
        none = table.loc[table["value"] == 0, "share"].sum()
        listed.append(f"{line['strategy']} {interval(line, 'rows'):.2f} rows, none in {none:.0%} of the rounds")
    title = "Rows of a round by strategy; a row that two offer counts for the first"
    figure = _bars_of(found, "rows that the strategy has in a round", "share of all rounds", title, replay, about)
    text = (f"A round has {int(replay['k'].iloc[0])} rows; on average they are: {'; '.join(listed)}.",)
    return Section("Allotment of rows", text, _table(found, "rows in a round"), (("allotment", figure),))


def _table(found: Mapping[str, pd.DataFrame], what: str) -> tuple[tuple[str, pd.DataFrame]]:
    """Return a table of shares: values down, strategies across."""
    columns = {
        name: pd.Series(printed(table, "share", ".1%"), index=table["value"], dtype=object)
        for name, table in found.items()
    }
    wide = pd.DataFrame(columns).sort_index().fillna("–").rename_axis(what).reset_index()
    return (("Shares of rounds", wide),)


# Pictures -------------------------------------------------------------------------------------------


def share_groups(found: Mapping[str, pd.DataFrame], values: Sequence[int]) -> dict[str, list[Interval]]:
    """Return the shares of each strategy at some values, 0 where it has none."""
    groups = {}
    for name, table in found.items():
        known = dict(zip(table["value"], intervals(table, "share"), strict=True))
        groups[name] = [known.get(value, Interval(0.0)) for value in values]
    return groups


def _bars_of(
    found: Mapping[str, pd.DataFrame], xlabel: str, ylabel: str, title: str, replay: pd.DataFrame, about: About
) -> Figure:
    values = sorted({int(value) for table in found.values() for value in table["value"]})
    drawn = {name: table for name, table in found.items() if len(table)}
    return _bars(share_groups(drawn, values), list(map(str, values)), xlabel, ylabel, title, replay, about)


@style.in_style
def _bars(
    groups: Mapping[str, Sequence[Interval]],
    ticks: Sequence[str],
    xlabel: str,
    ylabel: str,
    title: str,
    replay: pd.DataFrame,
    about: About,
) -> Figure:
    """Draw bars of each strategy side by side."""
    k, w, prompts = replay["k"].iloc[0], replay["w"].iloc[0], replay["prompt"].nunique()
    whiskers = "whiskers: 95% prompt-bootstrap intervals" if prompts > 1 else "no intervals"
    caption = f"{counted(prompts, 'prompt')}, {counted(int(replay['rounds'].sum()), 'round')}, replayed; {whiskers}."
    figure, axes = style.new_figure(f"{title}, {k} rows of {w}\n{about.title}", caption)
    pictures.grouped_bars(axes, groups)
    step = -(-len(ticks) // _MOST)
    axes.set_xticks(range(0, len(ticks), step), ticks[::step])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure
