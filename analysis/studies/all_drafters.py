"""Study `all_drafters`: speed, costs and needs of every drafter on the same prompts, and how firm their order is."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import finite
from ..figures import style
from ..findings import About, Findings, Section, Tables, counted, register
from ..papers.published import load_published
from ..runs.leaderboard import BASELINE_SUMS, OWN_SUMS, QUANTITIES, ArmSums, Scores, leaderboard_figure, score

PLAIN = "baseline"
PUBLISHED_SOURCE, PUBLISHED_MODEL, PUBLISHED_TASK = "Spec-Bench leaderboard", "Vicuna-7B-v1.3", "Overall"
_METHODS = {  # the drafter that is the published method, in Spec-Bench's words
    "PLD": "ngram",
    "SpS": "small_model",
    "Medusa": "medusa",
    "Hydra": "grounded",
    "EAGLE": "eagle",
    "EAGLE2": "eagle, structure=dynamic",
    "Recycling": "recycling",
    "REST": "retrieval",
    "Lookahead": "lookahead",
    "SAMD[EAGLE2]": "suffix and eagle together",
}
_SETTINGS = {"chain": "chains", "tree": "trees"}


@register("all_drafters")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study."""
    arms, live = tables["arms"].set_index("arm"), tables["live"]
    sums = _arm_sums(live)
    prompts = list(next(iter(sums.values())).sums.index)
    outcomes = live.groupby(["arm", "outcome"]).size().unstack(fill_value=0)
    nodes = live.groupby("arm")["nodes"].sum() / live.groupby("arm")["rounds"].sum()
    sections: list[Section] = []
    metrics: dict[str, float] = {}
    for setting in ("default", *_SETTINGS):
        names = [name for name in arms.index if arms["setting"][name] == setting]
        if not names:
            continue
        labels = [arms["drafter"][name] for name in names]
        scores = score([sums[name] for name in names], labels, prompts, about.replicates, about.seed)
        sections.append(_compared(setting, scores, arms.loc[names], nodes, outcomes, about))
        for place, name in enumerate(names):
            key = f"all_drafters/{name.replace(', ', '.')}"
            metrics |= scores.interval("speedup", place).as_metrics(f"{key}.speedup")
            metrics |= scores.interval("tokens_per_round", place).as_metrics(f"{key}.tokens_per_round")
        if setting == "default":
            sections.append(_frontier(scores, arms.loc[names], about))
    first, *others = sections
    text = (*first.text, *about.caveats(tables["skipped"]))
    first = Section(first.title, text, first.tables, first.figures)
    return Findings((first, *others, _published()), finite(metrics), refuted=_refuted(arms, outcomes))


def _arm_sums(live: pd.DataFrame) -> dict[str, ArmSums]:
    """Return each arm's sums by prompt, with the baseline's beside them."""
    live = live.rename(columns={"seconds": "round_s"}).astype({"rounds": float, "tokens": float})
    by_prompt = live.groupby(["arm", "prompt"])[list(OWN_SUMS)].sum()
    baseline = by_prompt.loc[PLAIN].add_prefix("baseline_")[list(BASELINE_SUMS)]
    category = live.groupby("prompt")["category"].first()
    names = [name for name in by_prompt.index.get_level_values("arm").unique() if name != PLAIN]
    return {name: ArmSums(by_prompt.loc[name].join(baseline), category) for name in names}


# The comparison -------------------------------------------------------------------------------------


def _compared(
    setting: str, scores: Scores, arms: pd.DataFrame, nodes: pd.Series, outcomes: pd.DataFrame, about: About
) -> Section:
    equal = setting != "default"
    title = "Every drafter in its own structure"
    if equal:
        size = int(arms["nodes"].max())
        title = f"Equal numbers of verified tokens: {_SETTINGS[setting]} of {size}"
    text = (_leader(scores), _pays(scores), _outcomes(arms, outcomes))
    order = scores.order("speedup")
    names = [arms.index[place] for place in order]
    shown = {
        "rank": [str(rank) for rank in range(1, len(order) + 1)],
        "drafter": [arms["drafter"][name] for name in names],
        "structure": [arms["structure"][name] for name in names],
        "speedup": [f"{scores.interval('speedup', place):.2f}" for place in order],
        "held by": [f"{share:.0%}" for share in _held(scores)[order]],
        "tokens per round": [f"{scores.interval('tokens_per_round', place):.2f}" for place in order],
        "nodes per round": [f"{nodes[name]:.1f}" for name in names],
    }
    costs = {
        f"{word} (t(1))": [f"{scores.values[name][place]:.2f}" for place in order]
        for name, word in (("g", "draft"), ("v", "verify"), ("o", "rest"))
    }
    tables = [("Best first; costs of a round in calls on one token; held by: bootstrap share of this rank", shown)]
    if equal:
        tables[0][1].update(costs)
    else:
        tables.append(("What a round costs, and what the drafter needs", _needs(names, arms, outcomes) | costs))
    caption = f"Speedup of every drafter: {title[0].lower()}{title[1:]}\n{about.title}"
    figure = leaderboard_figure(scores, "speedup", title=caption)
    return Section(
        title,
        text,
        tables=tuple((words, pd.DataFrame(columns)) for words, columns in tables),
        figures=((f"all_drafters_{setting}", figure),),
    )


def _held(scores: Scores) -> np.ndarray:
    """Return for each arm the share of replicates in which it holds the rank that it has in the data."""
    order = scores.order("speedup")
    shares = np.nan_to_num(scores.rank_shares("speedup"))
    held = np.empty(len(order))
    held[order] = [shares[arm, rank] for rank, arm in enumerate(order)]
    return held


def _leader(scores: Scores) -> str:
    """Give the answer: who leads, by how much, and who cannot be told from the leader."""
    order = scores.order("speedup")
    best = order[0]
    said = f"Fastest: {scores.labels[best]}, speedup {scores.interval('speedup', best):.2f}"
    if scores.too_few:
        return f"{said}; {scores.too_few}."
    close = [scores.labels[arm] for arm in order[1:] if not scores.apart("speedup", best, arm)]
    if len(order) == 1:
        return said + "."
    if close:
        return f"{said}; not told apart from it on {counted(scores.prompts, 'prompt')}: {', '.join(close)}."
    second = order[1]
    ratio = scores.ratio("speedup", best, second)
    return f"{said}, told apart from all others; the next, {scores.labels[second]}, by a factor of {ratio:.3f}."


def _pays(scores: Scores) -> str:
    """Count the drafters whose interval is above 1, and name those whose interval is below."""
    intervals = [scores.interval("speedup", arm) for arm in range(len(scores.labels))]
    if scores.too_few:
        return f"Nothing is said of which drafters pay: {scores.too_few}."
    pays = sum(each.low > 1 for each in intervals)
    loses = [name for name, each in zip(scores.labels, intervals, strict=True) if each.high < 1]
    said = f"{pays} of {counted(len(intervals), 'drafter')} pay beyond chance"
    return said + (f"; slower than no drafter: {', '.join(loses)}." if loses else ".")


def _outcomes(arms: pd.DataFrame, outcomes: pd.DataFrame) -> str:
    """Say whether outputs were the target's own."""
    claimed = [name for name in arms.index if arms["lossless"][name]]
    found = outcomes.reindex(columns=["same", "near-tie", "differs"], fill_value=0)
    wrong = [arms["drafter"][name] for name in claimed if found["differs"][name]]
    same, all_of = int(found.loc[claimed, "same"].sum()), int(found.loc[claimed].to_numpy().sum())
    said = f"{same} of {counted(all_of, 'output')} of lossless methods equal the target's own text"
    if ties := int(found.loc[claimed, "near-tie"].sum()):
        said += f", {ties} part from it at near-ties that rounding explains"
    said += f"; not explained: {', '.join(wrong)}" if wrong else "; none is unexplained"
    lossy = [arms["drafter"][name] for name in arms.index if not arms["lossless"][name]]
    return said + (f". By its rule not lossless: {', '.join(lossy)}." if lossy else ".")


def _refuted(arms: pd.DataFrame, outcomes: pd.DataFrame) -> str:
    """Name the lossless methods whose outputs differ from the target's own for no near-tie; "" where none does."""
    differs = outcomes.reindex(columns=["differs"], fill_value=0)["differs"]
    wrong = [name for name in arms.index if arms["lossless"][name] and differs[name]]
    if not wrong:
        return ""
    named = ", ".join(arms["drafter"][name] for name in wrong)
    return (
        f"Outputs refuted: {counted(int(differs[wrong].sum()), 'output')} of lossless methods ({named}) differ from "
        "the target's own text without a near-tie that rounding could explain."
    )


def _needs(names: Sequence[str], arms: pd.DataFrame, outcomes: pd.DataFrame) -> dict[str, list[str]]:
    def trained(name: str) -> str:
        tokens, seconds = arms["training_tokens"][name], arms["training_seconds"][name]
        if not np.isfinite(seconds):
            return "not recorded"
        return "none" if seconds == 0 else f"{tokens / 1e6:.1f} M tokens, {seconds / 60:.0f} min"

    same = outcomes.get("same", pd.Series(0, outcomes.index))
    return {
        "drafter": [arms["drafter"][name] for name in names],
        "lossless": ["yes" if arms["lossless"][name] else "no" for name in names],
        "same text": [f"{same[name]} of {outcomes.loc[name].sum()}" for name in names],
        "training": [trained(name) for name in names],
        "size (MB)": [f"{arms['weight_bytes'][name] / 1e6:.1f}" for name in names],
    }


# The frontier ---------------------------------------------------------------------------------------


def frontier(costs: Sequence[float], values: Sequence[float]) -> list[int]:
    """Return the places that nothing beats: no other costs as little or less and gives more. Cheapest first."""
    found: list[int] = []
    for place in sorted(range(len(costs)), key=lambda place: (costs[place], -values[place])):
        if not found or values[place] > values[found[-1]]:
            found.append(place)
    return found


def _frontier(scores: Scores, arms: pd.DataFrame, about: About) -> Section:
    seconds = arms["training_seconds"].to_numpy(dtype=float)
    known = np.flatnonzero(np.isfinite(seconds))
    speedups = scores.values["speedup"][known]
    best = [int(known[place]) for place in frontier(seconds[known].tolist(), speedups.tolist())]
    listed = [f"{scores.labels[place]} at {_speedup(scores, place)} with {_minutes(seconds[place])}" for place in best]
    unknown = [scores.labels[place] for place in np.flatnonzero(~np.isfinite(seconds))]
    text = f"What more training buys: {', then '.join(listed)}."
    if len(best) == 1:
        text = f"No drafter with more training is faster than {listed[0]}."
    if unknown:
        text += f" Without a record of their training: {', '.join(unknown)}."
    return Section(
        "Speedup over training",
        (text, "Seconds of training are those that the trainings recorded, on the machines where they ran."),
        figures=(("all_drafters_frontier", _frontier_figure(scores, seconds, best, about)),),
    )


def _speedup(scores: Scores, place: int) -> str:
    """Return an arm's speedup as text."""
    return f"{scores.interval('speedup', place):.2f}"


def _minutes(seconds: float) -> str:
    return "none" if seconds == 0 else f"{seconds / 60:.0f} min"


@style.in_style
def _frontier_figure(scores: Scores, seconds: np.ndarray, best: Sequence[int], about: About) -> Figure:
    known = np.flatnonzero(np.isfinite(seconds))
    figure, axes = style.new_figure(
        f"Speedup over training\n{about.title}",
        f"{counted(scores.prompts, 'prompt')}, each drafter in its own structure; line: the frontier, which no drafter "
        "with as little training exceeds. Bars: 95% prompt-bootstrap intervals.",
    )
    minutes = seconds / 60
    for place in known:
        value = scores.interval("speedup", int(place))
        if value.known:
            axes.vlines(minutes[place], value.low, value.high, color=style.GREY, linewidth=1.2, zorder=2)
        on = place in best
        axes.plot(
            minutes[place],
            value.estimate,
            "o",
            color=style.BLUE,
            markerfacecolor=style.BLUE if on else "white",
            zorder=3,
        )
    axes.plot(minutes[best], scores.values["speedup"][best], color=style.BLUE, drawstyle="steps-post", zorder=1)
    axes.axhline(1, color=style.BLACK, linewidth=1.6, linestyle=style.DOTTED, zorder=1)
    axes.set(xlabel="minutes of training", ylabel=QUANTITIES["speedup"])
    right = max(1.0, float(minutes[known].max()))
    axes.set_xlim(-0.06 * right, 1.35 * right)  # room for names
    points = sorted((float(minutes[place]), float(scores.values["speedup"][place]), int(place)) for place in known)
    bottom, top = axes.get_ylim()
    for column in _columns(points, 0.12 * right):
        heights = spread([speedup for _, speedup, _ in column], 0.045 * (top - bottom))
        beside = max(at for at, _, _ in column) + 0.04 * right
        for (at, speedup, arm), height in zip(column, heights, strict=True):
            axes.plot([at, beside], [speedup, height], color=style.LIGHT, linewidth=0.8, zorder=0)
            axes.text(beside, height, scores.labels[arm], va="center", fontsize=9)
    axes.set_ylim(min(bottom, axes.get_ylim()[0]), max(top, axes.get_ylim()[1]))
    return figure


def _columns(points: Sequence[tuple[float, float, int]], width: float) -> list[list[tuple[float, float, int]]]:
    """Group ordered points (minutes, speedup, place) that are too near for names side by side; lowest speedup first."""
    columns: list[list[tuple[float, float, int]]] = []
    for point in points:
        if columns and point[0] - columns[-1][0][0] < width:
            columns[-1].append(point)
        else:
            columns.append([point])
    return [sorted(column, key=lambda point: point[1]) for column in columns]


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return heights for labels of increasing values: at least `gap` apart, and around where the values are."""
    heights: list[float] = []
    for value in values:
        heights.append(max(value, heights[-1] + gap) if heights else value)
    shift = float(np.mean(heights) - np.mean(values)) if heights else 0.0
    return [height - shift for height in heights]


# Published figures ----------------------------------------------------------------------------------


def _published() -> Section:
    columns: Mapping[str, str] = {"tokens_per_round": "tokens per round", "speedup_measured": "speedup"}
    every = load_published()
    theirs = every["source"].str.startswith(PUBLISHED_SOURCE) & every["metric"].isin(columns)
    theirs &= (every["model_target"] == PUBLISHED_MODEL) & (every["task"] == PUBLISHED_TASK)
    printed = every[theirs].rename(columns={"model_draft": "method", "table": "GPU"})
    wide = printed.pivot(index=["method", "GPU"], columns="metric", values="value").reset_index()
    wide.insert(1, "drafter here", wide["method"].map(_METHODS))
    wide = wide.sort_values(["GPU", "tokens_per_round"], ascending=[True, False]).reset_index(drop=True)
    return Section(
        "The same methods as published",
        (
            "Spec-Bench's own measurements of Vicuna-7B, greedy: another target, other prompts and other hardware, so "
            "they are no standard for the figures above; the order of the methods is what can be compared.",
        ),
        tables=(("hemingkx/Spec-Bench, Leaderboard.md: mean over its six tasks", wide.rename(columns=columns)),),
    )
