"""The figures of a run, drawn from plain numbers and data frames. A caption states how many prompts and rounds a figure
rests on, and the level of its intervals.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from specdec.config import BASELINE, PLAIN
from specdec.theory.capped_geometric import accepted_pmf, tokens_per_round

from ..comparisons import intervals
from ..intervals import SHARE, Columns, bootstrap
from ..rounds import WORK, Arms, counts_by_prompt
from ..sections import counted
from . import pictures, style


@style.in_style
def expected_tokens() -> Figure:
    """Draw tokens per round over alpha: a line for each gamma, and the baseline at 1 (2211.17192, Figure 2)."""
    alpha, gammas, top = np.linspace(0, 1, 401), (1, 3, 5, 7, 10, inf), 12
    caption = (
        "Capped geometric: (1 - α^(γ+1)) / (1 - α) tokens per call of the target, its own token "
        "included. Exact; no measurement."
    )
    figure, axes = style.new_figure("Expected tokens per round", caption)
    for gamma, colour in zip(gammas, [*pictures.shades(len(gammas) - 1, 0.62), style.BLACK], strict=True):
        omega = np.asarray(tokens_per_round(alpha, gamma))
        at_end = isfinite(gamma)
        name = f"γ = {gamma:g}" if at_end else "γ = ∞"
        shown = pictures.below_cut(omega, top)
        axes.plot(alpha, shown, color=colour, label=name, linestyle="-" if at_end else (0, (5, 1.5)))
        last = int(np.flatnonzero(omega <= top)[-1])
        axes.annotate(name, (alpha[last], shown[last]), xytext=(6, 0) if at_end else (-6, -4),
                      textcoords="offset points", ha="left" if at_end else "right", va="center", color=colour,
                      annotation_clip=False)  # fmt: skip
    axes.axhline(1, color=style.BLACK, linewidth=1.6, linestyle=":", label="baseline")
    axes.annotate("no drafter: 1", (0, 1), xytext=(2, -5), textcoords="offset points", va="top")
    axes.set(xlabel="α, chance that a draft token is accepted", ylabel="tokens per round", xlim=(0, 1), ylim=(0, top))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


LINES = {  # name of a model: what it is called, colour, dash, marker
    "capped_geometric": ("capped geometric", style.BLUE, "-", "none"),
    "priced": ("the same at measured t(n) and c", style.ORANGE, "--", "none"),
    "position": ("by position", style.ORANGE, "--", "D"),
    "replay": ("replay", style.GREEN, ":", "^"),
    "predicted": ("predicted beforehand", style.PURPLE, "-.", "v"),
}


class Basis(NamedTuple):
    """Sizes behind the numbers of a figure, for its caption."""

    prompts: int
    rounds: int  # 0 is not stated
    alpha: float | None  # with which the capped geometric was computed; None or NaN is not stated


_PAIRED = (  # the panel below a curve
    " Error: what the capped geometric says over what was measured, less 1; both are resampled together, so that its "
    "interval may leave out 0 where one above reaches the line."
)
_TALLEST = 1.6  # an interval that ends beyond this many times the largest point would flatten all that is of interest


@style.in_style
def curve(
    measured: pd.DataFrame,
    lines: Mapping[str, Mapping[int, float]],
    *,
    title: str,
    ylabel: str = "tokens per round",
    basis: Basis,
    primary_gamma: int | None = None,
) -> Figure:
    """Draw tokens per round or speedup over gamma: each model a line, the measurement points with intervals. Where
    `lines` has the capped geometric and the same at measured costs (`priced`), areas show which part of its gap is
    cost, and which is acceptance.

    measured: columns gamma, value, value_low, value_high; NaN bounds draw no interval. With error, error_low and
    error_high a panel below shows how far the capped geometric is off, with paired intervals. lines: by model, value by
    gamma; empty ones are left out. primary_gamma: its point is larger.
    """
    known = measured[["value_low", "value_high"]].notna().all(axis=1).any()
    sizes = ", ".join(counted(n, name) for n, name in ((basis.prompts, "prompt"), (basis.rounds, "round")) if n)
    notes = [sizes, "measured points with 95% prompt-bootstrap intervals" if known else "no intervals"]
    if basis.alpha is not None and isfinite(basis.alpha):
        notes.append(f"capped geometric: every token accepted with α\u00a0=\u00a0{basis.alpha:.3f}")
    caption = "; ".join(filter(None, notes))
    highest = max([*measured["value"], *(value for values in lines.values() for value in values.values())], default=1.0)
    cut = int((measured["value_high"] > _TALLEST * highest).sum())
    caption += f". {counted(cut, 'interval')} reach{'es' * (cut == 1)} above the top." if cut else "."
    height = style.HEIGHT + 0.4
    paired = bool(lines.get("capped_geometric")) and "error" in measured and bool(measured["error_low"].notna().any())
    if paired:
        figure, panels = style.new_panels(title, caption + _PAIRED, height + 1.4, 2, sharex=True, height_ratios=(3, 1))
        (axes,), (lowest,) = panels
        errors = intervals(measured, "error")
        lowest.axhline(0, color=style.BLACK, linewidth=1.6, linestyle=style.DOTTED)
        lowest.errorbar(measured["gamma"], measured["error"], yerr=pictures.whiskers(errors), fmt="s", color=style.BLUE,
                        markersize=5, elinewidth=1.2)  # fmt: skip
        for gamma, error in zip(measured["gamma"], errors, strict=True):
            style.point_tip(lowest, gamma, error.estimate, f"capped geometric over measured, γ {gamma:g}: {error:+.1%}")
        lowest.set_ylabel("error")
        lowest.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        figure, axes = style.new_figure(title, caption, height)
        lowest = axes
    # Both quantities are 1 without a drafter, by definition.
    axes.axhline(1, color=style.BLACK, linewidth=1.6, linestyle=style.DOTTED, label="no drafter")
    for index, (name, values) in enumerate(item for item in lines.items() if item[1]):
        spare = (style.PURPLE, style.ORANGE, style.GREY)[index % 3]
        label, colour, dash, marker = LINES.get(name, (name.replace("_", " "), spare, "-", "s"))
        gammas = sorted(values)
        axes.plot(gammas, [values[g] for g in gammas], color=colour, linestyle=dash, marker=marker, label=label)
        for gamma in gammas:
            style.point_tip(axes, gamma, values[gamma], f"{label}, γ {gamma:g}: {values[gamma]:.3f}")
    # The gap between capped geometric and measurement is shaded in two parts: what costs explain, then the rest.
    table = measured.sort_values("gamma")
    formula, priced = lines.get("capped_geometric", {}), lines.get("priced", {})
    points = dict(zip(table["gamma"].astype(int), table["value"], strict=True))
    gammas = sorted(points.keys() & formula.keys() & priced.keys())
    if len(gammas) > 1:
        promised, costs, seen = ([values[gamma] for gamma in gammas] for values in (formula, priced, points))
        for first, second, colour, label in (
            (promised, costs, style.SKY, "cost of verifying"),
            (costs, seen, style.YELLOW, "acceptance, and the loop"),
        ):
            axes.fill_between(gammas, first, second, color=colour, alpha=0.3, linewidth=0, zorder=0.5, label=label)
    shown = intervals(table, "value")
    axes.errorbar(table["gamma"], table["value"], yerr=pictures.whiskers(shown), fmt="o", color=style.BLACK,
                  label="measured", zorder=5)  # fmt: skip
    primary = table[table["gamma"] == primary_gamma]
    axes.plot(primary["gamma"], primary["value"], "o", color=style.BLACK, markersize=11, zorder=6)
    for gamma, value in zip(table["gamma"], shown, strict=True):
        style.point_tip(axes, gamma, value.estimate, f"measured, γ {gamma:g}: {value:.3f}")
    gammas = sorted({*measured["gamma"].astype(int), *(int(g) for values in lines.values() for g in values)})
    axes.set_ylabel(ylabel)
    lowest.set_xlabel("γ, depth of a draft in tokens")
    pictures.gamma_ticks(lowest, gammas)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), 1.3 * highest if cut else high + 0.04 * (high - low))
    style.legend_above(axes, 3)
    return figure


def curve_in_words(
    measured: pd.DataFrame,
    lines: Mapping[str, Mapping[int, float]],
    quantity: str = "tokens per round",
    model: str = "capped_geometric",
) -> str:
    """Say at which gammas the model's line lies outside the measured interval, and how large the largest gap is."""
    label = model.replace("_", " ")
    expected = lines.get(model, {})
    table = measured[measured["gamma"].isin(list(expected))].copy()
    if table.empty:
        return f"There is no {label} line to set the measured {quantity} against."
    table["theory"] = [expected[int(gamma)] for gamma in table["gamma"]]
    table["gap"] = table["value"] / table["theory"] - 1
    worst = table.loc[table["gap"].abs().idxmax()]
    size = (
        f"the largest gap is {worst['gap']:+.1%} at gamma {worst['gamma']:g} "
        f"({worst['value']:.3f} measured, {worst['theory']:.3f} expected)"
    )
    tested = table[table[["value_low", "value_high"]].notna().all(axis=1)]
    if tested.empty:
        return f"Without intervals no difference can be called real; {size}."
    pairs = zip(intervals(tested, "value"), tested["theory"], strict=True)
    outside = tested[[not value.contains(theory) for value, theory in pairs]]
    if outside.empty:
        return (
            f"At each of {len(tested)} gammas the {label} model lies within the interval of the measured "
            f"{quantity}; {size}."
        )
    where = ", ".join(f"{gamma:g}" for gamma in outside["gamma"])
    below = outside["gap"] < 0
    side = "below" if below.all() else "off" if below.any() else "above"
    return (
        f"At {len(outside)} of {len(tested)} gammas ({where}) the measured {quantity} lies {side} the "
        f"{label} model by more than its interval allows; {size}."
    )


def accepted_length_table(rounds: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Return shares of rounds by accepted tokens (index), beside the capped-geometric law at `alpha`: share,
    share_low, share_high (prompt bootstrap), rounds, expected.

    Rounds without a proposal, and rounds cut while tokens were still being accepted, are left out; rounds that offered
    fewer tokens have their own law. ValueError if none is left.
    """
    speculative = rounds[rounds["offered"] > 0]
    if speculative.empty:
        raise ValueError("no round has a proposal, so there are no accepted lengths to show")
    kept = speculative[speculative["committed"] > speculative["accepted"]]
    if kept.empty:
        raise ValueError("every round was cut while tokens were still being accepted: no length is complete")
    lengths = range(int(kept["offered"].max()) + 1)
    counts = counts_by_prompt(kept, kept["accepted"].to_numpy(dtype=np.int64), len(lengths))

    def shares(sums: Columns) -> dict[str, np.ndarray]:
        total = np.sum(list(sums.values()), axis=0)
        return {k: count / total for k, count in sums.items()}

    named = counts.rename(columns=str).astype(float)
    drawn = bootstrap(named, shares, replicates=2000, ranges=dict.fromkeys(named, SHARE)).values()
    expected = np.zeros(len(lengths))
    for offered, number in kept["offered"].value_counts().items():
        expected[: int(offered) + 1] += number / len(kept) * accepted_pmf(alpha, int(offered))
    accepted = pd.RangeIndex(len(lengths), name="accepted")
    table = pd.DataFrame([share.as_columns("share") for share in drawn], index=accepted)
    return table.assign(rounds=counts.sum().to_numpy(), expected=expected)


@style.in_style
def accepted_lengths(rounds: pd.DataFrame, alpha: float | None = None, *, title: str) -> Figure:
    """Draw the shares of the rounds of one drafter at one gamma by accepted tokens, against the capped-geometric law at
    `alpha` (None: the MLE). ValueError as `accepted_length_table`.
    """
    tested = rounds["accepted"].sum() + rounds["rejected"].sum()
    chance = float(rounds["accepted"].sum() / max(tested, 1)) if alpha is None else alpha
    table = accepted_length_table(rounds, chance)
    silent = int((rounds["offered"] == 0).sum())
    used, prompts = int(table["rounds"].sum()), rounds["prompt"].nunique()
    shares = intervals(table, "share")
    has_interval = any(share.known for share in shares)
    caption = (
        f"{counted(used, 'round')} of {counted(prompts, 'prompt')}; "
        + ("bars with 95% prompt-bootstrap intervals" if has_interval else "no intervals")
        + f"; law at α\u00a0=\u00a0{chance:.3f}. Left out: {counted(silent, 'round')} without a proposal, "
        f"{len(rounds) - silent - used:,} cut short by the end of the text."
    )
    none, law = (float(table[name].iloc[0]) for name in ("share", "expected"))
    seen = f"{none:.0%} of rounds accept nothing; one α for all tokens says {law:.0%}"
    figure, axes = style.new_figure(f"{seen}\n{title}", caption)
    axes.bar(table.index, table["share"], width=0.72, color=style.SKY, edgecolor=style.BLACK, linewidth=0.8,
             yerr=pictures.whiskers(shares) if has_interval else None, error_kw={"elinewidth": 1.5},
             label="measured")  # fmt: skip
    for bar, length, share, law_there in zip(axes.patches, table.index, shares, table["expected"], strict=True):
        style.tip(bar, f"{length} accepted: {share:.1%} of rounds, {law_there:.1%} by the law")
    axes.plot(table.index, table["expected"], color=style.ORANGE, marker="D", linestyle="--", linewidth=1.2,
              label="capped-geometric law")  # fmt: skip
    axes.set(xlabel=f"draft tokens accepted in a round (γ = {rounds['gamma'].iloc[0]})", ylabel="share of rounds")
    axes.set_xticks(list(table.index))
    pictures.percent_axis(axes)
    axes.grid(axis="x", visible=False)
    style.legend_above(axes, 2)
    return figure


VERBS = {  # column of the rounds table: name, colour, hatch, colour of the figure inside
    "draft_s": ("draft", style.YELLOW, "", style.BLACK),
    "verify_s": ("verify", style.BLUE, "", "white"),
    "accept_s": ("accept", style.GREEN, "///", style.BLACK),
    "commit_s": ("commit", style.PURPLE, "---", "white"),
    "rest_s": ("rest", style.LIGHT, "", style.BLACK),
}


@style.in_style
def time_split(arms: Arms, *, title: str, primary_gamma: int | None = None) -> Figure:
    """Draw a round's draft, verify, accept and commit over t(1), the baseline's mean `verify`: a bar for each gamma;
    `rest` is of no verb. The title is about the primary gamma, or else the largest. ValueError without a positive t(1).
    """
    t1 = float(arms.plain()["verify_s"].mean())
    if not t1 > 0:
        raise ValueError(f"t(1) must be positive, got {t1!r} seconds")
    *verbs, rest = VERBS
    table = pd.DataFrame({key: arm[[*verbs, "round_s"]].mean() for key, arm in arms.items()}).T / t1
    table[rest] = (table["round_s"] - table[verbs].sum(axis=1)).clip(lower=0)
    prompts, rounds = arms.texts["prompt"].nunique(), int(arms.texts["rounds"].sum())
    order = sorted(arms, key=lambda arm: (arm[0] != BASELINE, arm[1]))  # no draft first
    table = table.loc[order, list(VERBS)]
    shown = next((key for key in order if key[1] == primary_gamma and key[0] not in PLAIN), order[-1])
    own = table.loc[shown]
    seen = (
        f"At γ {shown[1]} verifying takes {own['verify_s'] / own.sum():.0%} of a round, drafting "
        f"{own['draft_s'] / own.sum():.0%}"
    )
    caption = (
        f"Mean over {counted(rounds, 'round')} of {counted(prompts, 'prompt')}, prefill apart; no intervals. Unit: "
        f"t(1) = {1e3 * t1:.3g} ms, one call of the target on one token (dotted line). Beside a bar: the whole round, "
        "and the share outside draft and verify."
    )
    figure, axes = style.new_figure(f"{seen}\n{title}", caption, height=2.6 + 0.42 * len(table))
    labels = [method if method in PLAIN else f"γ = {gamma}" for method, gamma in order]
    left = np.zeros(len(table))
    longest = float(table.sum(axis=1).max())
    for column, (name, colour, hatch, ink) in VERBS.items():
        widths = table[column].to_numpy()
        parts = axes.barh(labels, widths, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6,
                          label=name)  # fmt: skip
        for row, width in enumerate(widths):
            style.tip(parts[row], f"{labels[row]}, {name}: {width:.3f} t(1)")
            if width > 0.08 * longest:
                middle = left[row] + width / 2
                number = axes.text(middle, row, f"{width:.2f}", ha="center", va="center", color=ink, size=10)
                number.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 0.8})  # over the hatching
        left = left + widths
    aside = 1 - (table["draft_s"] + table["verify_s"]).to_numpy() / left
    for row, (total, share) in enumerate(zip(left, aside, strict=True)):
        note = axes.text(total, row, f" {total:.2f} ({share:.1%})", ha="left", va="center", size=10)
        note.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.4})  # over the dotted line
    axes.axvline(1, color=style.BLACK, linewidth=1.6, linestyle=":", zorder=0.9)
    axes.invert_yaxis()
    axes.set(xlabel="time of a round, in units of t(1)", xlim=(0, 1.2 * longest))
    axes.grid(axis="y", visible=False)
    style.legend_above(axes, len(VERBS))
    return figure


ROUNDS = 5  # of the primary gamma
_TALL = 0.62  # height of a block, where rows are 1 apart
DRAFT, VERIFY, REST = style.YELLOW, style.BLUE, style.LIGHT


@dataclass(frozen=True)
class Stretch:
    """The same stretch of one text, by the baseline and at some gammas."""

    prompt: str  # of the text, whose speedup is the median of all texts
    first: int  # place of the stretch's first token in the output, from 0
    tokens: int  # tokens that the primary gamma commits in its rounds here
    # by name, the baseline first: the rounds that commit the stretch, from the one at its first token or next behind it
    rows: dict[str, pd.DataFrame]


def stretch(measured: Arms, primary_gamma: int, count: int = ROUNDS) -> Stretch:
    """Choose `count` rounds of the primary gamma from the middle of a typical text, and what others do meanwhile.

    The text is the one of median speedup, so that a lucky or a slow one does not stand for all. Beside the primary
    gamma stands at most one other, the largest or else the smallest. ValueError for no text that the baseline and the
    primary gamma both wrote.
    """
    shared = measured.shared()
    arms, plain = shared.by_gamma(), shared.plain()
    if primary_gamma not in arms:
        raise ValueError(f"no rounds at the primary gamma {primary_gamma}, only at {sorted(arms)}")

    def per_token(rounds: pd.DataFrame) -> pd.Series:
        sums = rounds.groupby(WORK, observed=True)[["round_s", "committed"]].sum()
        return sums["round_s"] / sums["committed"]

    speedup = (per_token(plain) / per_token(arms[primary_gamma])).sort_values(kind="stable")
    prompt, repeat = speedup.index[(len(speedup) - 1) // 2]

    def placed(rounds: pd.DataFrame) -> pd.DataFrame:
        """Return the rounds of this text in order, with the place of the first token that each commits."""
        mine = rounds[(rounds["prompt"] == prompt) & (rounds["repeat"] == repeat)].sort_values("round")
        left = mine["tokens_left"].to_numpy()
        return mine.assign(place=left[:1].sum() - left)

    ours = placed(arms[primary_gamma])
    begin = max(0, min(len(ours) // 2, len(ours) - count))
    chosen = ours.iloc[begin : begin + count]
    first, tokens = int(chosen["place"].iloc[0]), int(chosen["committed"].sum())
    others = [gamma for gamma in (max(arms), min(arms)) if gamma != primary_gamma][:1]
    gammas = sorted({primary_gamma, *others}, reverse=True)
    rows: dict[str, pd.DataFrame] = {}
    for name, rounds in (("baseline", plain), *((f"γ = {gamma}", arms[gamma]) for gamma in gammas)):
        later = placed(rounds)
        later = later[later["place"] >= first]
        before = later["committed"].cumsum() - later["committed"]
        if len(later):
            rows[name] = later[before < tokens]
    return Stretch(str(prompt), first, tokens, rows)


@style.in_style
def timeline(shown: Stretch, *, title: str, simulated: bool = False) -> Figure:
    """Draw each row's calls to scale: drafts, calls of the target, and the rest of each round, from time 0 on. The
    table has the time of a draft, not of its steps, so thin lines divide a draft evenly by the tokens offered. A number
    above a call is the tokens that its round commits.
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
            axes.text(middle, -line + _TALL / 2 + 0.03, f"{one.committed:.0f}", ha="center", va="bottom", fontsize=9)
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
