"""Pictures of study `typical_acceptance`."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..figures import style

_LOOKS = {
    "greedy": (style.BLACK, "s", (0, (1, 1.5))),
    "rejection": (style.BLUE, "o", "-"),
    "typical": (style.ORANGE, "^", "--"),
    "plain": (style.GREY, "x", "-"),
}
NAMES = {
    "greedy": "greedy text",
    "rejection": "lossless rejection",
    "typical": "typical acceptance",
    "plain": "without drafts",
}


@style.in_style
def over_temperature(cells: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Tokens per call of each rule over temperature.

    cells: of `typical.rules`, of one epsilon; at temperature 0 greedy stands for all.
    """
    figure, axes = style.new_figure(title, caption)
    greedy = cells[cells["rule"] == "greedy"]
    axes.axhline(float(greedy["rate"].iloc[0]), color=style.BLACK, linewidth=1.6, linestyle=_LOOKS["greedy"][2])
    for rule in ("greedy", "rejection", "typical"):
        part = cells[cells["rule"] == rule] if rule == "greedy" else pd.concat([greedy, cells[cells["rule"] == rule]])
        _points(axes, rule, part.sort_values("temperature"), "temperature", "rate")
    axes.set(xlabel="sampling temperature", ylabel="tokens per call")
    axes.set_xlim(left=-0.03)
    style.legend_above(axes, 3)
    return figure


@style.in_style
def rate_against_quality(cells: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Log-likelihood of a token over tokens per call: a line through the epsilons, and the other rules beside it.

    cells: of `typical.rules` at one temperature, and greedy text.
    """
    figure, axes = style.new_figure(title, caption)
    for rule in ("plain", "greedy", "rejection", "typical"):
        part = cells[cells["rule"] == rule].sort_values("epsilon")
        _points(axes, rule, part, "rate", "log_likelihood")
        for row in part.to_dict("records"):
            if rule == "typical":
                axes.annotate(f"{row['epsilon']:g}", (row["rate"], row["log_likelihood"]), xytext=(5, 5),
                              textcoords="offset points", fontsize=10)  # fmt: skip
    axes.set(xlabel="tokens per call", ylabel="log-likelihood of a token, nats")
    style.legend_above(axes, 2)
    return figure


def _points(axes: Axes, rule: str, part: pd.DataFrame, across: str, up: str) -> None:
    colour, marker, dash = _LOOKS[rule]

    def bars(name: str) -> np.ndarray | None:
        if f"{name}_low" not in part:
            return None
        value, low, high = (part[column].to_numpy(dtype=float) for column in (name, f"{name}_low", f"{name}_high"))
        # A percentile interval need not contain the estimate.
        return np.nan_to_num(np.stack([value - low, high - value]).clip(min=0.0))

    axes.errorbar(part[across], part[up], xerr=bars(across), yerr=bars(up), color=colour, marker=marker,
                  linestyle=dash if len(part) > 1 else "none", elinewidth=1.3, capsize=2.5,
                  label=NAMES[rule])  # fmt: skip
