"""Studies `ablation` of several prompt sets side by side (N-Grammys, 2411.03786): whose rows are accepted, how far."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import interval, intervals, tokens_per_call
from ..figures import pictures, style
from ..findings import Section
from ..intervals import Interval
from ..studies.ablation import contributions, distribution, strategies
from .labels import Labelled, caveats, panels, settings

_SHARES = {"of_rows": "rows", "of_wins": "accepted\nrows", "tokens": "accepted\ntokens"}


@dataclass(frozen=True)
class Ablated:
    """The numbers of one study.

    Attributes:
        parts: see `contributions`; empty where the drafter proposed nothing.
        lengths: shares of the rounds that a strategy wins by accepted tokens, by strategy.
        tokens: tokens per call.
    """

    parts: pd.DataFrame
    lengths: dict[str, pd.DataFrame]
    tokens: Interval


def ablation_sets(studies: Sequence[Labelled]) -> list[Section]:
    """Return one section: each strategy's share of rows, accepted rows and accepted tokens on each set, and the lengths
    that it has accepted.
    """
    found = {each.label: _ablated(each) for each in studies}
    text = [
        "Share of the accepted draft tokens, by prompt set: "
        + "; ".join(f"{label}: {_shared(each.parts)}" for label, each in found.items())
        + ".",
        *caveats(studies),
    ]
    names = list(dict.fromkeys(name for each in found.values() for name in each.parts["strategy"]))
    figures = [("contribution_sets", _shares(found, names, studies)), ("length_sets", _lengths(found, names, studies))]
    caption = "Contribution by prompt set and strategy, with 95% prompt-bootstrap intervals"
    return [
        Section("Contribution of strategies, by prompt set", tuple(text), ((caption, _table(found)),), tuple(figures))
    ]


def _ablated(each: Labelled) -> Ablated:
    about, replay, histograms = each.study.about, each.study.tables["replay"], each.study.tables["histograms"]
    names = strategies(histograms)
    whole = tokens_per_call(replay, ["k", "w"], about.replicates, about.seed).iloc[0]
    empty = pd.DataFrame({"strategy": []})
    return Ablated(
        contributions(histograms, replay, names, about.replicates, about.seed) if names else empty,
        {name: distribution(histograms, replay, "accepted", name, about) for name in names},
        interval(whole, "tokens"),
    )


def _shared(parts: pd.DataFrame) -> str:
    if parts.empty:
        return "nothing was proposed"
    ordered = parts.fillna(0.0).sort_values("tokens", ascending=False, kind="stable")
    return ", ".join(f"{line['strategy']} {line['tokens']:.0%}" for line in ordered.to_dict("records"))


def _table(found: dict[str, Ablated]) -> pd.DataFrame:
    rows = []
    for label, each in found.items():
        for line in each.parts.to_dict("records"):
            rows.append(
                {
                    "prompt set": label,
                    "tokens per call": f"{each.tokens:.2f}",
                    "strategy": line["strategy"],
                    "share of rows": f"{interval(line, 'of_rows'):.0%}",
                    "rounds won": f"{interval(line, 'wins'):.0%}",
                    "share of accepted tokens": f"{interval(line, 'tokens'):.0%}",
                    "accepted length when it wins": f"{interval(line, 'length'):.2f}",
                }
            )
    return pd.DataFrame(rows)


@style.in_style
def _shares(found: dict[str, Ablated], names: list[str], studies: Sequence[Labelled]) -> Figure:
    none = [Interval(0.0)] * len(_SHARES)
    groups = {
        label: {
            name: next(
                ([interval(line, key) for key in _SHARES] for line in each.parts.to_dict("records")
                 if line["strategy"] == name), none,
            )
            for name in names
        }
        for label, each in found.items()
    }  # fmt: skip
    title = f"Who has the rows, and whose are accepted, by prompt set\n{settings(studies)}"
    return _bars(groups, title, list(_SHARES.values()), "")


@style.in_style
def _lengths(found: dict[str, Ablated], names: list[str], studies: Sequence[Labelled]) -> Figure:
    longest = max((int(table["value"].max()) for each in found.values() for table in each.lengths.values()
                   if len(table)), default=0)  # fmt: skip
    values = range(1, longest + 1)
    groups: dict[str, dict[str, list[Interval]]] = {}
    for label, each in found.items():
        groups[label] = {}
        for name in names:
            table = each.lengths.get(name, pd.DataFrame({"value": []}))
            known = dict(zip(table["value"], intervals(table, "share"), strict=True)) if len(table) else {}
            groups[label][name] = [known.get(value, Interval(0.0)) for value in values]
    title = f"Accepted length by strategy, by prompt set\n{settings(studies)}"
    return _bars(groups, title, [str(value) for value in values], "accepted tokens")


def _bars(groups: dict[str, dict[str, list[Interval]]], title: str, ticks: list[str], below: str) -> Figure:
    caption = "Greedy texts replayed; whiskers: 95% prompt-bootstrap intervals."
    shown = panels(title, caption, len(groups), 2.4, 1)
    step = -(-len(ticks) // 8)
    for panel, (label, values) in zip(shown.every, groups.items(), strict=True):
        pictures.grouped_bars(panel, values)
        own = panel.get_legend()
        if own is not None:
            own.remove()  # one for all stands above
        panel.set_xticks(range(0, len(ticks), step), ticks[::step], fontsize=9.5)
        panel.set_title(style.wrapped(label, 36), fontsize=11)
    shown.label(below, "share")
    shown.legend(3)
    return shown.figure
