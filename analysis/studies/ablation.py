"""Study `ablation`: whose rows are accepted, how far, at which rank, and which share of the rows each strategy has."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import StrategyComparison, curve, interval, intervals, listed, metrics_of, printed, tokens_per_call
from ..figures import pictures, style
from ..intervals import FEWEST, SHARE, Interval, with_replicates
from ..sections import About, Findings, Section, Tables, counted, register

_MOST = 16  # numbers under the bars
_WON = "share of the rounds that it wins"
_SHARES = {"of_rows": "rows offered", "of_wins": "accepted rows", "tokens": "accepted tokens"}
_COLUMNS = {"strategy": "strategy", "rows a round": "rows:.2f", "share of rows": "of_rows:.0%",
            "rounds won": "wins:.0%", "share of accepted rows": "of_wins:.0%", "accepted of its rows": "per_row:.1%",
            "share of accepted tokens": "tokens:.0%", "accepted length when it wins": "length:.2f"}  # fmt: skip
_HISTOGRAMS = {  # histogram -> heading, name of the figure, its title, words below and beside it, name of a value
    "accepted": ("Accepted length", "accepted_lengths", "Accepted length by strategy", "accepted tokens", _WON,
                 "accepted tokens"),
    "rank": ("Rank of the accepted row", "ranks", "Rank of the accepted row by strategy",
             "rank that the strategy gave the accepted row", _WON, "rank"),
    "allotment": ("Allotment of rows", "allotment", "Rows of a round by strategy; a row that two offer counts for the "
                  "first", "rows that the strategy has in a round", "share of all rounds", "rows in a round"),
}  # fmt: skip


@register("ablation", overlay="ngrammys_ablation")
def findings(tables: Tables, about: About) -> Findings:
    """Read `replay`, `histograms` and `skipped`."""
    replay, histograms = tables["replay"], tables["histograms"]
    names = strategies(histograms)
    origin = about.origin(replay, tables["skipped"])
    if not names:
        text = f"The drafter proposed nothing in {int(replay['rounds'].sum()):,} rounds: there is nothing to attribute."
        return Findings((Section("Contribution of strategies", (text, *origin)),))
    parts = contributions(histograms, replay, names, about)
    whole = tokens_per_call(replay, ["k", "w"], about.replicates, about.seed).iloc[0]
    shares = {
        name: {each: distribution(histograms, replay, name, each, about) for each in names} for name in _HISTOGRAMS
    }
    for table in shares["rank"].values():
        table["value"] += 1  # shown from 1
    k, w, lines = int(replay["k"].iloc[0]), int(replay["w"].iloc[0]), parts.to_dict("records")
    first = parts.loc[parts["tokens"].fillna(0.0).idxmax()]
    answer = [
        f"{first['strategy']} has {interval(first, 'tokens'):.0%} of the accepted draft tokens and "
        f"{interval(first, 'of_rows'):.0%} of the rows. With {k} rows of {w} a call yields "
        f"{interval(whole, 'tokens'):.2f} tokens; in {1 - parts['wins'].sum():.0%} of {int(replay['rounds'].sum()):,} "
        "rounds no row is accepted."
    ]
    if len(parts) > 1:
        ordered = parts.sort_values("per_row", ascending=False, kind="stable").to_dict("records")
        others = ", ".join(f"{100 * line['per_row']:.1f} of {line['strategy']}" for line in ordered[1:])
        answer.append(
            f"A row of {ordered[0]['strategy']} is worth most: {100 * ordered[0]['per_row']:.1f} of a hundred are "
            f"accepted, {others}. Strategies are not alternatives here: the first that offers a row is credited with "
            "it, and later ones fill the places that are left."
        )
    groups = {line["strategy"]: [interval(line, name) for name in _SHARES] for line in lines}
    title = "Who has the rows, and whose are accepted"
    figure = _bars(groups, list(_SHARES.values()), "", "share by strategy", title, replay, about)
    figure.axes[0].set_ylim(0, 1)
    table = ("Contribution by strategy, with 95% prompt-bootstrap intervals", listed(parts, _COLUMNS))
    contribution = (("contribution", figure),)
    sections = [Section("Contribution of strategies", (*answer, *origin), (table,), contribution)]
    words = _words(shares, lines, k, w)
    for histogram, (heading, figure_name, title, below, beside, value) in _HISTOGRAMS.items():
        found = shares[histogram]
        values = sorted({int(each) for table in found.values() for each in table["value"]})
        drawn = share_groups({name: table for name, table in found.items() if len(table)}, values)
        figure = _bars(drawn, list(map(str, values)), below, beside, title, replay, about)
        shown = {name: dict(zip(table["value"], printed(table, "share", ".1%"), strict=True))
                 for name, table in found.items()}  # fmt: skip
        wide = pd.DataFrame(shown, index=values, dtype=object).fillna("–").rename_axis(value).reset_index()
        sections.append(Section(heading, words[histogram], (("Shares of rounds", wide),), ((figure_name, figure),)))
    metrics = {"ablation/tokens_per_call": float(whole["tokens"])}
    quantities = {name: name for name in ("rows", "wins", "of_rows", "of_wins", "per_row", "tokens", "length")}
    metrics |= metrics_of(parts, "ablation/{strategy}.{what}", quantities, bounds=False)
    curves = {
        f"curve/ablation/{name}.{strategy}": curve(table, "value", "share")
        for name, several in shares.items()
        for strategy, table in several.items()
    }
    return Findings(tuple(sections), metrics, curves)


def _words(
    shares: Mapping[str, Mapping[str, pd.DataFrame]], lines: Sequence[Mapping[str, Any]], k: int, w: int
) -> dict[str, tuple[str, ...]]:
    """Say of each histogram what it shows of the strategies, which have a line of `contributions` each."""
    won = "; ".join(f"{line['strategy']} {interval(line, 'length'):.2f}" for line in lines if line["wins"] > 0)
    full, ranks, rows = [], [], []
    for line in lines:
        name = line["strategy"]
        of = {histogram: several[name].set_index("value")["share"] for histogram, several in shares.items()}
        if len(of["accepted"]):
            full.append(f"{name} {of['accepted'].get(w, 0.0):.0%}")
        if len(of["rank"]):
            needed = of["rank"].index[int(np.searchsorted(of["rank"].cumsum(), 0.9 - 1e-9))]
            ranks.append(f"{name} {of['rank'].get(1, 0.0):.0%} at rank 1, 90% up to rank {needed}")
        none = of["allotment"].get(0, 0.0)
        rows.append(f"{name} {interval(line, 'rows'):.2f} rows, none in {none:.0%} of the rounds")
    return {
        "accepted": (
            f"Mean accepted tokens in the rounds that a strategy wins: {won}.",
            f"Share of the rounds that a strategy wins with all {w} tokens of its row: {'; '.join(full)}. There longer "
            "rows would give more.",
        )
        if won
        else ("No row of any strategy was accepted.",),
        "rank": (
            *([f"Where the accepted row stood in its strategy's own order: {'; '.join(ranks)}."] if ranks else []),
            "Where several rows begin alike, the tokens that they share count for the first of them.",
        ),
        "allotment": (f"A round has {k} rows; on average they are: {'; '.join(rows)}.",),
    }


def strategies(histograms: pd.DataFrame) -> list[str]:
    """Return the strategies that had rows, the one with most rows first."""
    rows = histograms[histograms["histogram"] == "allotment"]
    total = (rows["value"] * rows["count"]).groupby(rows["strategy"]).sum()
    return [str(name) for name in total.sort_values(ascending=False, kind="stable").index]


def distribution(
    histograms: pd.DataFrame, replay: pd.DataFrame, name: str, strategy: str, about: About
) -> pd.DataFrame:
    """Return how the values of histogram `name` share the rounds of `strategy`: value, count, share, share_low,
    share_high. The rounds of "accepted" and "rank" are those that the strategy won; those of "allotment" are all
    rounds, with those in which it had no row.
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
    return StrategyComparison(cells, {}, len(wide)).table({"share": shares}, {"share": SHARE})


def contributions(histograms: pd.DataFrame, replay: pd.DataFrame, names: Sequence[str], about: About) -> pd.DataFrame:
    """Return a line for each strategy: rows (of a round), wins (share of the rounds in which its row was accepted),
    of_rows, of_wins and tokens (its shares of all rows, won rounds and accepted tokens), per_row (won rounds for each
    row), and length (mean accepted tokens in the rounds it won); each with _low and _high.
    """
    per_prompt = pd.DataFrame({"rounds": replay.groupby("prompt")["rounds"].sum()})
    for index, name in enumerate(names):
        mine = histograms[histograms["strategy"] == name]
        for column, histogram, weighted in (("rows", "allotment", True), ("wins", "accepted", False),
                                            ("tokens", "accepted", True)):  # fmt: skip
            part = mine[mine["histogram"] == histogram]
            values = part["count"] * (part["value"] if weighted else 1)
            per_prompt[f"{column}{index}"] = values.groupby(part["prompt"]).sum()
    drawn = with_replicates(per_prompt.fillna(0).to_numpy(dtype=float), about.replicates, about.seed)
    rounds = drawn[:, :1]
    rows, wins, tokens = (drawn[:, 1 + at :: 3] for at in range(3))  # [1 + B, strategies] each

    def share(values: np.ndarray) -> np.ndarray:
        return values / sum(values.T)[:, None]  # added up in their order

    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = {"rows": rows / rounds, "wins": wins / rounds, "of_rows": share(rows), "of_wins": share(wins)}
        statistics |= {"per_row": wins / rows, "tokens": share(tokens), "length": tokens / wins}
    compared = StrategyComparison(pd.DataFrame({"strategy": list(names)}), {}, len(per_prompt))
    return compared.table(statistics, dict.fromkeys(("wins", "of_rows", "of_wins", "per_row", "tokens"), SHARE))


def share_groups(found: Mapping[str, pd.DataFrame], values: Sequence[int]) -> dict[str, list[Interval]]:
    """Return the shares of each strategy at some values, 0 where it has none."""
    groups = {}
    for name, table in found.items():
        known = dict(zip(table["value"], intervals(table, "share"), strict=True))
        groups[name] = [known.get(value, Interval(0.0)) for value in values]
    return groups


@style.in_style
def _bars(
    groups: Mapping[str, Sequence[Interval]], ticks: Sequence[str], xlabel: str, ylabel: str, title: str,
    replay: pd.DataFrame, about: About,
) -> Figure:  # fmt: skip
    k, w, prompts = replay["k"].iloc[0], replay["w"].iloc[0], replay["prompt"].nunique()
    whiskers = "whiskers: 95% prompt-bootstrap intervals" if prompts >= FEWEST else "no intervals"
    caption = f"{counted(prompts, 'prompt')}, {counted(int(replay['rounds'].sum()), 'round')}, replayed; {whiskers}."
    figure, axes = style.new_figure(f"{title}, {k} rows of {w}\n{about.title}", caption)
    pictures.bars(axes, groups)
    pictures.percent_axis(axes)
    style.legend_above(axes, min(3, max(1, len(groups))))
    step = -(-len(ticks) // _MOST)
    axes.set_xticks(range(0, len(ticks), step), ticks[::step])
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure
