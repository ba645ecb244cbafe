"""The timeline of a few rounds, drawn to scale from the rounds table (Leviathan et al. 2211.17192, Figure 5)."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..arms import WORK, Arms
from . import style

ROUNDS = 5  # of the primary gamma
_TALL = 0.62  # height of a block, where rows are 1 apart
DRAFT, VERIFY, REST = style.YELLOW, style.BLUE, style.LIGHT


@dataclass(frozen=True)
class Stretch:
    """The same stretch of one text, by the baseline and at some gammas."""

    # prompt, repeat: the text; its speedup is the median of all texts
    prompt: str
    repeat: int
    first: int  # place of the stretch's first token in the output, from 0
    tokens: int  # tokens that the primary gamma commits in its rounds here
    # rounds by name, the baseline first: those in which a method commits the stretch, from the round that begins at its
    # first token or next behind it
    rows: dict[str, pd.DataFrame]


def stretch(measured: Arms, primary_gamma: int, count: int = ROUNDS, most: int = 2) -> Stretch:
    """Choose `count` rounds of the primary gamma from the middle of a typical text, and what others do meanwhile.

    The text is the one of median speedup, so that a lucky or a slow one does not stand for all. Beside the primary
    gamma stands at most one other, the largest or else the smallest (`most` in all). ValueError for no text that the
    baseline and the primary gamma both wrote.
    """
    shared = measured.shared()
    arms, plain = shared.by_gamma(), shared.plain()
    if primary_gamma not in arms:
        raise ValueError(f"no rounds at the primary gamma {primary_gamma}, only at {sorted(arms)}")
    seconds = {name: part.groupby(WORK, observed=True)[["round_s", "committed"]].sum() for name, part in
               (("plain", plain), ("ours", arms[primary_gamma]))}  # fmt: skip
    per_token = {name: sums["round_s"] / sums["committed"] for name, sums in seconds.items()}
    speedup = (per_token["plain"] / per_token["ours"]).sort_values(kind="stable")
    prompt, repeat = speedup.index[(len(speedup) - 1) // 2]
    ours = _placed(arms[primary_gamma], prompt, repeat)
    begin = max(0, min(len(ours) // 2, len(ours) - count))
    chosen = ours.iloc[begin : begin + count]
    first, tokens = int(chosen["place"].iloc[0]), int(chosen["committed"].sum())
    others = [gamma for gamma in (max(arms), min(arms)) if gamma != primary_gamma][: most - 1]
    rows = {"baseline": _along(_placed(plain, prompt, repeat), first, tokens)}
    for gamma in sorted({primary_gamma, *others}, reverse=True):
        here = chosen if gamma == primary_gamma else _along(_placed(arms[gamma], prompt, repeat), first, tokens)
        rows[f"γ = {gamma}"] = here
    return Stretch(str(prompt), int(repeat), first, tokens, {name: each for name, each in rows.items() if len(each)})


def _placed(rounds: pd.DataFrame, prompt: str, repeat: int) -> pd.DataFrame:
    """Return the rounds of one text in order, with the place of the first token that each commits."""
    mine = rounds[(rounds["prompt"] == prompt) & (rounds["repeat"] == repeat)].sort_values("round")
    left = mine["tokens_left"].to_numpy()
    return mine.assign(place=left[:1].sum() - left)


def _along(rounds: pd.DataFrame, first: int, tokens: int) -> pd.DataFrame:
    """Keep the rounds from place `first` on until `tokens` are committed."""
    later = rounds[rounds["place"] >= first]
    before = later["committed"].cumsum() - later["committed"]
    return later[before < tokens]


@style.in_style
def timeline(shown: Stretch, *, title: str, simulated: bool = False) -> Figure:
    """Draw each row's calls to scale: drafts, calls of the target, and the rest of each round, from time 0 on.

    The table has the time of a draft, not of its steps, so thin lines divide a draft evenly by the tokens offered. A
    number above a call is the tokens that its round commits.
    """
    clock = "simulated" if simulated else "measured"
    caption = (
        f"Output tokens {shown.first} to {shown.first + shown.tokens - 1} of prompt {shown.prompt}, whose speedup is "
        f"the median; {clock} times, to scale. Numbers: tokens that a round commits. Thin lines divide a draft by the "
        "tokens offered; single steps are not timed."
    )
    figure, axes = style.new_figure(title, caption, height=2.2 + 0.75 * len(shown.rows))
    longest = max(float(rows["round_s"].sum()) for rows in shown.rows.values())
    unit, per_unit = ("ms", 1e3) if longest < 2 else ("s", 1.0)
    for line, rows in enumerate(shown.rows.values()):
        start = 0.0
        for one in rows.itertuples():
            draft, verify, whole = (float(getattr(one, name)) for name in ("draft_s", "verify_s", "round_s"))
            parts = ((0.0, draft, DRAFT), (draft, verify, VERIFY), (draft + verify, whole - draft - verify, REST))
            for offset, length, colour in parts:
                axes.barh(-line, max(0.0, length) * per_unit, left=(start + offset) * per_unit, height=_TALL,
                          color=colour, edgecolor=style.BLACK, linewidth=0.4)  # fmt: skip
            offered = int(one.offered)
            if offered > 1 and draft / offered > 0.002 * longest:
                for step in np.arange(1, offered) * draft / offered:
                    where = (start + step) * per_unit
                    ends = [-line - _TALL / 2, -line + _TALL / 2]
                    axes.plot([where, where], ends, color=style.BLACK, linewidth=0.4)
            middle = (start + draft + verify / 2) * per_unit
            number = f"{int(one.committed)}"
            axes.text(middle, -line + _TALL / 2 + 0.03, number, ha="center", va="bottom", fontsize=9)
            start += whole
        end, tokens = start * per_unit, int(rows["committed"].sum())
        axes.annotate(f"{tokens} tokens, {tokens / rows['round_s'].sum():.0f} per second", (end, -line), xytext=(5, 0),
                      textcoords="offset points", va="center", fontsize=10)  # fmt: skip
    axes.set_yticks([-line for line in range(len(shown.rows))], list(shown.rows))
    axes.set(xlabel=f"time, {unit}", xlim=(0, 1.3 * longest * per_unit), ylim=(0.7 - len(shown.rows), 0.75))
    axes.grid(axis="y", visible=False)
    blocks = (("drafter", DRAFT), ("target", VERIFY), ("accept, commit and the rest", REST))
    patches = [Patch(facecolor=colour, edgecolor=style.BLACK, linewidth=0.5, label=name) for name, colour in blocks]
    axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3)
    return figure
