"""Models of the accepted counts in words: which describes the rounds best, and acceptance by depth in a figure."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..figures import pictures, style
from ..intervals import SHARE, Columns, bootstrap
from ..sections import Section, counted
from .estimates import depth_sums, estimate_alpha, hazards
from .models import beta_geometric, compare_models, followers
from .prediction import LABELS

TITLE = "Which model describes the rounds?"
AIC_NAMES = LABELS | {"capped_geometric": "capped geometric (one alpha)", "markov": "previous round full or not"}


def fit_section(rounds: pd.DataFrame, largest: pd.DataFrame, title: str, replicates: int, ordered: bool) -> Section:
    """Compare the models by AIC at the primary gamma, and draw acceptance by depth at the largest.

    ordered: False where nobody recorded which round follows which; then there is no model of the round before.
    """
    tables = []
    text = "No round follows another in its generation, so models cannot be compared on the same rounds."
    later = len(followers(rounds)) if ordered else len(rounds)
    if later:
        comparison = compare_models(rounds, ordered)
        best, second = comparison.index[0], comparison.index[1]
        lead = comparison["aic"].iloc[1] - comparison["aic"].iloc[0]
        behind = comparison.loc["capped_geometric", "aic"] - comparison["aic"].iloc[0]
        text = (
            f"By AIC the model “{AIC_NAMES[best]}” describes the rounds best, {lead:.1f} ahead of “{AIC_NAMES[second]}”"
        )
        text += "." if best == "capped_geometric" else f"; the capped geometric is {behind:.1f} behind."
        text += " A lead below about 2 decides nothing. AIC counts rounds as independent and is about this gamma alone."
        shown = comparison.reset_index()
        shown["model"] = shown["model"].map(AIC_NAMES)
        shown.insert(4, "behind", shown["aic"] - shown["aic"].min())
        which = " that follow another" if ordered else ""
        gamma, used = rounds["gamma"].iloc[0], counted(later, "round")
        caption = f"Models of the accepted counts at gamma {gamma}, on {used}{which}; log-likelihood in nats."
        tables.append((caption, shown.round({"log_likelihood": 2, "aic": 2, "behind": 2})))
    figure = acceptance_by_depth(largest, title=title, replicates=replicates)
    return Section(TITLE, (text,), tuple(tables), (("acceptance_by_depth", figure),))


@style.in_style
def acceptance_by_depth(rounds: pd.DataFrame, *, title: str, replicates: int = 2000) -> Figure:
    """Draw acceptance by depth at one gamma with its intervals, beside one alpha and the fitted beta-geometric law."""
    table = hazards(rounds)
    table = table[table["at_risk"] > 0]
    sums = depth_sums(rounds, list(table.index))

    def shares(columns: Columns) -> Mapping[str, np.ndarray]:
        return {str(k): 1 - columns[f"r_{k}"] / columns[f"n_{k}"] for k in table.index}

    intervals = bootstrap(sums, shares, replicates, ranges={str(k): SHARE for k in table.index})
    acceptance = [intervals[str(k)] for k in table.index]
    value = table["acceptance"].to_numpy()
    drawn = any(share.known for share in acceptance)
    gamma = int(rounds["gamma"].iloc[0])
    caption = (
        f"γ = {gamma}: {counted(len(rounds), 'round')} of {counted(len(sums), 'prompt')}, "
        f"{int(table['at_risk'].sum()):,} tests of a draft token; "
        + ("points with 95% prompt-bootstrap intervals." if drawn else "no intervals.")
        + " Bars: share of rounds that test the depth."
    )
    first, last = float(value[0]), float(value[-1])
    ends = f"{first:.0%} at depth {table.index[0]}, {last:.0%} at depth {table.index[-1]}"
    seen = f"Accepted of the tokens tested: {ends}"
    figure, axes = style.new_figure(f"{seen}\n{title}", caption)
    axes.bar(table.index, table["at_risk"] / len(rounds), width=0.75, color=style.LIGHT, label="rounds that get there")
    alpha = estimate_alpha(rounds).alpha
    axes.plot(table.index, np.full(len(table), alpha), color=style.BLUE, label=f"one α (MLE {alpha:.3f})", zorder=3)
    fit = beta_geometric(rounds).parameters
    if fit["rho"] > 0:
        j = table.index.to_numpy() - 1
        law = (fit["m"] * (1 - fit["rho"]) + j * fit["rho"]) / (1 - fit["rho"] + j * fit["rho"])
        axes.plot(
            table.index, law, color=style.PURPLE, linestyle="--", label="rounds differ (beta-geometric)", zorder=3
        )
    bars = pictures.whiskers(acceptance) if drawn else None
    axes.errorbar(table.index, value, yerr=bars, fmt="D", color=style.ORANGE, label="measured", zorder=4)
    for depth, share in zip(table.index, acceptance, strict=True):
        style.point_tip(axes, depth, share.estimate, f"depth {depth}: {share:.1%}")
    axes.set(xlabel="depth of the draft token", ylabel="accepted, of those tested", ylim=(0, 1.03))
    axes.set_xticks(list(table.index))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="x", visible=False)
    style.legend_above(axes, 2)
    return figure
