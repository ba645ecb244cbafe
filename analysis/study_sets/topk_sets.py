"""Studies `topk` of several prompt sets side by side: tokens per call against top-k, a panel for each (N-Grammys,
2411.03786).
"""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from ..comparisons import interval, printed, tokens_per_call
from ..sections import Section
from ..studies.topk import ENOUGH, best_of, draw
from .labels import Labelled, caveats, panels, settings


def topk_sets(studies: Sequence[Labelled]) -> list[Section]:
    """Return one section: which strategy yields most on each set, and how many rows that takes."""
    answer, chances, tables, drawn = [], [], [], {}
    for each in studies:
        about = each.study.about
        cells = tokens_per_call(each.study.tables["topk"], ["drafter", "k", "w"], about.replicates, about.seed)
        best = best_of(cells)
        strategies = [f"{name}, w = {w}" for name, w in zip(best["drafter"], best["w"], strict=True)]
        answer.append(f"{each.label}: {strategies[best['tokens'].round(3).idxmax()]}")
        ones = []
        for (name, w), part in cells.groupby(["drafter", "w"]):
            first, last = part.iloc[0], part.iloc[-1]
            ones.append(f"{interval(first, 'tokens'):.3f}" if first["k"] == 1 else "–")
            # At w = 1, tokens per call less one are the chance that a row begins with the target's next token.
            if w == 1 and len(part) > 1 and first["k"] == 1:
                chances.append(
                    f"{each.label}, {name} {first['tokens'] - 1:.0%} and {last['tokens'] - 1:.0%} (k = {last['k']})"
                )
        shown = {
            "prompt set": each.label,
            "strategy": strategies,
            "best k": best["k"],
            "tokens per call": printed(best, "tokens", ".3f"),
            "k = 1": ones,
            f"{ENOUGH:.0%} by k": ["–" if pd.isna(k) else f"{k:.0f}" for k in best["enough"]],
        }
        tables.append(pd.DataFrame(shown))
        drawn[each.label] = partial(draw, cells=cells)
    text = [f"The strategy with most tokens per call at its best k, by prompt set: {'; '.join(answer)}."]
    if chances:
        text.append(
            "Rounds in which the target's next token is among the first k choices, with k = 1 and with the largest k "
            f"(tokens per call less one, at w = 1): {'; '.join(chances)}."
        )
    figure = panels(
        f"Tokens per call against top-k, by prompt set\n{settings(studies)}",
        "Greedy texts replayed; bands: 95% prompt-bootstrap intervals. A colour for each strategy, a dash for each w, "
        "tokens of a row; dotted: plain decoding.",
        drawn,
        2.5,
        legend=(-(-max(map(len, tables)) // 2), 2),
        axis_labels=("k, rows", "tokens per call"),
    )
    caption = f"Best k of each strategy, and the k by which {ENOUGH:.0%} of the gain of the largest k is there"
    table = pd.concat(tables, ignore_index=True)
    title = "Tokens per call against top-k, by prompt set"
    return [Section(title, (*text, *caveats(studies)), ((caption, table),), (("topk_sets", figure),))]
