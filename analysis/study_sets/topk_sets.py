"""Studies `topk` of several prompt sets side by side: tokens per call against top-k, a panel for each (N-Grammys,
2411.03786).
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import interval
from ..figures import pictures, style
from ..findings import Section
from ..studies.topk import ENOUGH, Lines, draw, enough, lines_of
from .labels import Labelled, caveats, panels, settings


def topk_sets(studies: Sequence[Labelled]) -> list[Section]:
    """Return one section: which strategy yields most on each set, and how many rows that takes."""
    found = {each.label: lines_of(each.study.tables["topk"], each.study.about) for each in studies}
    table = _table(found)
    answer = "; ".join(
        f"{label}: {part.loc[part['tokens per call'].map(_value).idxmax(), 'strategy']}"
        for label, part in table.groupby("prompt set", sort=False)
    )
    first = _rank_one(found)
    text = [
        f"The strategy with most tokens per call at its best k, by prompt set: {answer}.",
        *first,
        *caveats(studies),
    ]
    caption = f"Best k of each strategy, and the k by which {ENOUGH:.0%} of the gain of the largest k is there"
    return [
        Section(
            "Tokens per call against top-k, by prompt set",
            tuple(text),
            ((caption, table),),
            (("topk_sets", _figure(found, studies)),),
        )
    ]


def _value(printed: str) -> float:
    return float(printed.split()[0])


def _table(found: dict[str, Lines]) -> pd.DataFrame:
    rows = []
    for label, lines in found.items():
        for (name, w), part in lines.items():
            best, k = part.loc[part["tokens"].idxmax()], enough(part)
            rows.append(
                {
                    "prompt set": label,
                    "strategy": f"{name}, w = {w}",
                    "best k": int(best["k"]),
                    "tokens per call": f"{interval(best, 'tokens'):.3f}",
                    "k = 1": f"{interval(part.iloc[0], 'tokens'):.3f}" if part["k"].iloc[0] == 1 else "–",
                    f"{ENOUGH:.0%} by k": "–" if k is None else str(k),
                }
            )
    return pd.DataFrame(rows)


def _rank_one(found: dict[str, Lines]) -> list[str]:
    """Say how the chance of the first choice compares with that of any of the first k: at w = 1, tokens per call less
    one are the chance that one of the rows begins with the target's next token.
    """
    said = []
    for label, lines in found.items():
        for (name, w), part in lines.items():
            if w == 1 and len(part) > 1 and part["k"].iloc[0] == 1:
                first, last = part.iloc[0], part.iloc[-1]
                said.append(f"{label}, {name} {_chance(first):.0%} and {_chance(last):.0%} (k = {int(last['k'])})")
    if not said:
        return []
    return [
        "Rounds in which the target's next token is among the first k choices, with k = 1 and with the largest k "
        f"(tokens per call less one, at w = 1): {'; '.join(said)}."
    ]


def _chance(line: pd.Series) -> float:
    return float(line["tokens"]) - 1


@style.in_style
def _figure(found: dict[str, Lines], studies: Sequence[Labelled]) -> Figure:
    caption = (
        "Greedy texts replayed; bands: 95% prompt-bootstrap intervals. A colour for each strategy, a dash for each w, "
        "tokens of a row; dotted: plain decoding."
    )
    title = f"Tokens per call against top-k, by prompt set\n{settings(studies)}"
    shown = panels(title, caption, len(found), 2.5, -(-max(len(lines) for lines in found.values()) // 2))
    for panel, (label, lines) in zip(shown.every, found.items(), strict=True):
        draw(panel, lines)
        pictures.level(panel, 1)
        panel.set_title(style.wrapped(label, 36), fontsize=11)
    shown.label("k, rows", "tokens per call")
    shown.legend(2)
    return shown.figure
