"""Studies `ablation` of several prompt sets side by side (N-Grammys, 2411.03786): whose rows are accepted, how far."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..comparisons import interval, tokens_per_call
from ..figures import pictures
from ..intervals import Interval
from ..sections import Section
from ..studies.ablation import contributions, distribution, share_groups, strategies
from .labels import Labelled, caveats, panels, settings

_SHARES = {"of_rows": "rows", "of_wins": "accepted\nrows", "tokens": "accepted\ntokens"}


def ablation_sets(studies: Sequence[Labelled]) -> list[Section]:
    """Return one section: each strategy's share of rows, accepted rows and accepted tokens on each set, and the lengths
    that it has accepted.
    """
    rows, shared = [], []
    shares: dict[str, dict[str, list[Interval]]] = {}
    lengths: dict[str, dict[str, pd.DataFrame]] = {}
    for each in studies:
        about, tables = each.study.about, each.study.tables
        replay, histograms = tables["replay"], tables["histograms"]
        names = strategies(histograms)
        tokens = tokens_per_call(replay, ["k", "w"], about.replicates, about.seed).iloc[0]
        parts = contributions(histograms, replay, names, about.replicates, about.seed) if names else pd.DataFrame()
        lines = parts.to_dict("records")
        ordered = sorted(lines, key=lambda line: -line["tokens"] if line["tokens"] > 0 else 0.0)
        said = ", ".join(f"{line['strategy']} {max(0.0, line['tokens']):.0%}" for line in ordered)
        shared.append(f"{each.label}: {said or 'nothing was proposed'}")
        shares[each.label] = {line["strategy"]: [interval(line, key) for key in _SHARES] for line in lines}
        lengths[each.label] = {name: distribution(histograms, replay, "accepted", name, about) for name in names}
        rows += [
            {
                "prompt set": each.label,
                "tokens per call": f"{interval(tokens, 'tokens'):.2f}",
                "strategy": line["strategy"],
                "share of rows": f"{interval(line, 'of_rows'):.0%}",
                "rounds won": f"{interval(line, 'wins'):.0%}",
                "share of accepted tokens": f"{interval(line, 'tokens'):.0%}",
                "accepted length when it wins": f"{interval(line, 'length'):.2f}",
            }
            for line in lines
        ]
    strategies_of_all = list(dict.fromkeys(name for each in shares.values() for name in each))
    none = [Interval(0.0)] * len(_SHARES)
    offered = {label: {name: each.get(name, none) for name in strategies_of_all} for label, each in shares.items()}
    longest = max((int(table["value"].max()) for each in lengths.values() for table in each.values() if len(table)),
                  default=0)  # fmt: skip
    values, empty = range(1, longest + 1), pd.DataFrame({"value": [], "share": []})
    reached = {
        label: share_groups({name: each.get(name, empty) for name in strategies_of_all}, values)
        for label, each in lengths.items()
    }
    titles = f", by prompt set\n{settings(studies)}"
    figures = (
        ("contribution_sets",
         _bars(offered, f"Who has the rows, and whose are accepted{titles}", list(_SHARES.values()), "")),
        ("length_sets",
         _bars(reached, f"Accepted length by strategy{titles}", list(map(str, values)), "accepted tokens")),
    )  # fmt: skip
    text = (f"Share of the accepted draft tokens, by prompt set: {'; '.join(shared)}.", *caveats(studies))
    caption = "Contribution by prompt set and strategy, with 95% prompt-bootstrap intervals"
    return [Section("Contribution of strategies, by prompt set", text, ((caption, pd.DataFrame(rows)),), figures)]


def _bars(groups: dict[str, dict[str, list[Interval]]], title: str, ticks: list[str], below: str) -> Figure:
    step = -(-len(ticks) // 8)

    def draw(panel: Axes, values: dict[str, list[Interval]]) -> None:
        pictures.bars(panel, values)
        pictures.percent_axis(panel)
        panel.set_xticks(range(0, len(ticks), step), ticks[::step], fontsize=9.5)

    caption = "Greedy texts replayed; whiskers: 95% prompt-bootstrap intervals."
    drawn = {label: partial(draw, values=values) for label, values in groups.items()}
    return panels(title, caption, drawn, 2.4, legend=(1, 3), axis_labels=(below, "share"))
