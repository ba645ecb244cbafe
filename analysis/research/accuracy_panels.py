"""Accuracy by head of every variant of heads, a panel each beside the plain grounded heads, as the figures of "Not So
Speculative Decoding" have it (its Figures 5 to 8). Reads `results/heads_ablation.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specdec.errors import UsageError

from ..figures import pictures, style
from ..sections import Section, counted
from .heads_ablation import COMMAND, GROUNDED, RESULT, TREE, WORDS, Measured, deepest, load_ablation, steepness

TITLE = "Accuracy by head, for every variant"
COLUMNS = 3  # panels beside each other


def panels_section(path: Path | str = RESULT) -> Section:
    """Draw held-out accuracy by head of every variant, with one choice and with five, and say which of their heads are
    right more often than the plain grounded ones; where there is no result yet, say what makes it.
    """
    try:
        entries = load_ablation(path)
    except UsageError as error:
        return Section(TITLE, (str(error),))
    plain = deepest(entries, GROUNDED, TREE)
    variants = {words: entry for name, words in WORDS.items() if (entry := deepest(entries, name, TREE))}
    if plain is None or not variants:
        return Section(TITLE, (f"The ablations lack {GROUNDED} or its variants: `{COMMAND}` measures them.",))
    beyond = {words: list(steepness(entry, plain).heads["difference"]) for words, entry in variants.items()}
    prompts = counted(len(plain["by_prompt"]["prompts"]), "prompt")
    told = []
    for label, side in (("Right more often", 1), ("Less often", -1)):
        listed = [
            f"{words} (head{'s' * (len(heads) > 1)} {', '.join(heads)})"
            for words, differences in beyond.items()
            if (heads := [str(head) for head, difference in enumerate(differences, 1) if difference.side == side])
        ]
        told += [f"{label}: {'; '.join(listed)}."] if listed else []
    level = [words for words, differences in beyond.items() if not any(difference.side for difference in differences)]
    told += [f"Not told apart at any head: {', '.join(level)}."] if level else []
    text = (
        f"Top-1 accuracy along the target's own text of {prompts}, against plain grounded heads. {' '.join(told)}",
        f"{sum(map(len, beyond.values()))} heads are set against one each: about one in twenty 95% intervals leaves "
        "out 0 by chance. The panels are of held-out text, which the target did not write, without intervals.",
    )
    lines = []
    for words, measured in {"plain": plain, **variants}.items():
        line: dict[str, Any] = {"variant": words, "trained, tokens": int(measured["training"]["tokens"])}
        pairs = zip(measured["heldout"]["top1"], measured["heldout"]["top5"], strict=True)
        line |= {f"head {head}": f"{one:.3f} / {five:.3f}" for head, (one, five) in enumerate(pairs, 1)}
        if words in beyond:
            line["own text, head 1"] = f"{beyond[words][0]:+.3f}"
            line["own text, last head"] = f"{beyond[words][-1]:+.3f}"
        lines.append(line)
    table = pd.DataFrame(lines).fillna("")  # plain heads have nothing to be set against
    caption = "Top-1 / top-5 accuracy on held-out text by head; top-1 beyond plain grounded heads along the own text"
    figure = _panels(
        variants,
        plain,
        title=f"Accuracy by head on held-out text\n{plain['decoding']['model']}, "
        f"{plain['training']['tokens']:,} tokens of training",
        caption="Shares of held-out text, given the true tokens before; no intervals. Filled: the right token is the "
        "first choice; open: it is among five. Grey: plain grounded heads.",
    )
    return Section(TITLE, text, ((caption, table),), (("heads_accuracy_panels", figure),))


@style.in_style
def _panels(variants: Mapping[str, Measured], plain: Measured, *, title: str, caption: str) -> Figure:
    """Draw a panel for each variant over the number of the head, all on one scale."""
    rows = -(-len(variants) // COLUMNS)
    figure, grid = style.new_panels(title, caption, 1.3 + 1.75 * rows, rows, COLUMNS, sharex=True, sharey=True)
    panels = list(grid.flat)
    for axes, (words, measured) in zip(panels, variants.items(), strict=False):
        axes.set_title(style.wrapped(words, 20), fontsize=10)
        _accuracies(axes, plain, style.GREY, "s", style.DOTTED)
        _accuracies(axes, measured, style.BLUE, "o", "-")
    pictures.percent_axis(panels[0])  # once all is drawn: it ends the scaling of the shared axis
    heads = range(1, max(len(entry["heldout"]["top1"]) for entry in (plain, *variants.values())) + 1)
    for place, axes in enumerate(panels):
        axes.tick_params(labelsize=9)
        axes.set_xticks(list(heads))
        if place >= len(variants):
            axes.set_visible(False)
        elif place + COLUMNS >= len(variants):  # the lowest panel of its column
            axes.set_xlabel("head", fontsize=10)
            axes.tick_params(labelbottom=True)
    return figure


def _accuracies(axes: Axes, measured: Measured, colour: str, marker: str, dash: style.Dash) -> None:
    """Draw one entry's held-out accuracies, filled marks for one choice and open ones for five."""
    for top, face in (("top1", colour), ("top5", "white")):
        values = measured["heldout"][top]
        axes.plot(range(1, len(values) + 1), values, color=colour, marker=marker, linestyle=dash, linewidth=1.6,
                  markersize=4.5, markerfacecolor=face)  # fmt: skip
