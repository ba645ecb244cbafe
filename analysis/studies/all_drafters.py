"""Study `all_drafters`: speed, costs and needs of every drafter on the same prompts, and how firm their order is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..comparisons import finite, listed
from ..figures import style
from ..findings.leaderboard import BASELINE_SUMS, OWN_SUMS, QUANTITIES, ScoredArms, leaderboard_figure, score
from ..papers.paper_tables import load_published
from ..sections import About, Findings, Section, Tables, counted, register

PLAIN = "baseline"
# Published method, in Spec-Bench's words -> the drafter here.
_METHODS = {"PLD": "ngram", "SpS": "small_model", "Medusa": "medusa", "Hydra": "grounded", "EAGLE": "eagle",
            "EAGLE2": "eagle, structure=dynamic", "Recycling": "recycling", "REST": "retrieval",
            "Lookahead": "lookahead", "SAMD[EAGLE2]": "suffix and eagle together"}  # fmt: skip
_SETTINGS = {"chain": "chains", "tree": "trees"}
_RANKED = {"rank": "rank", "drafter": "drafter", "structure": "structure", "speedup": "speedup:.2f",
           "held by": "held:.0%", "tokens per round": "tokens:.2f",
           "nodes per round": "nodes_per_round:.1f"}  # fmt: skip
_COSTS = {"draft (t(1))": "g:.2f", "verify (t(1))": "v:.2f", "rest (t(1))": "o:.2f"}
_NEEDS = {"drafter": "drafter", "lossless": "keeps", "same text": "same", "training": "training", "size (MB)": "mb:.1f"}


@register("all_drafters")
def findings(tables: Tables, about: About) -> Findings:
    arms, live = tables["arms"].set_index("arm").astype({"lossless": bool}), tables["live"]
    live = live.rename(columns={"seconds": "round_s"}).astype({"rounds": float, "tokens": float})
    by_prompt = live.groupby(["arm", "prompt"])[list(OWN_SUMS)].sum()
    baseline = by_prompt.loc[PLAIN].add_prefix("baseline_")[list(BASELINE_SUMS)]
    outcomes = pd.crosstab(live["arm"], live["outcome"]).reindex(columns=["same", "near-tie", "differs"], fill_value=0)
    arms["nodes_per_round"] = live.groupby("arm")["nodes"].sum() / live.groupby("arm")["rounds"].sum()
    wrong = [name for name in arms.index if arms["lossless"][name] and outcomes["differs"][name]]
    sections: list[Section] = []
    metrics: dict[str, float] = {}
    for setting in ("default", *_SETTINGS):
        mine = arms[arms["setting"] == setting]
        if mine.empty:
            continue
        sums = [by_prompt.loc[name].join(baseline) for name in mine.index]
        prompts = list(sums[0].index)
        scores = score(sums, list(mine["drafter"]), prompts, about.replicates, about.seed)
        for place, name in enumerate(mine.index):
            for quantity in ("speedup", "tokens_per_round"):
                key = f"all_drafters/{name.replace(', ', '.')}.{quantity}"
                metrics |= scores.interval(quantity, place).as_metrics(key)
        said = _outcomes(mine, outcomes)
        if wrong:  # what is not the target's own text is not ranked
            sums = [table for table, name in zip(sums, mine.index, strict=True) if name not in wrong]
            mine = mine.drop(wrong, errors="ignore")
            if mine.empty:
                sections.append(Section("No drafter is ranked", (said,)))
                continue
            scores = score(sums, list(mine["drafter"]), prompts, about.replicates, about.seed)
        section = _compared(setting, scores, mine, outcomes, about)
        sections.append(replace(section, text=(*section.text, said)))
        if setting == "default":
            sections.append(_frontier(scores, mine, about))
    sections[0] = replace(sections[0], text=(*sections[0].text, *about.caveats(tables["skipped"])))
    refuted = ""
    if wrong:
        refuted = (
            f"Outputs refuted: {counted(int(outcomes['differs'][wrong].sum()), 'output')} of lossless methods "
            f"({', '.join(arms['drafter'][wrong])}) differ from the target's own text without a near-tie that rounding "
            "could explain."
        )
    return Findings((*sections, _published()), finite(metrics), refuted=refuted)


def _compared(setting: str, scores: ScoredArms, arms: pd.DataFrame, outcomes: pd.DataFrame, about: About) -> Section:
    title = "Every drafter in its own structure"
    if setting != "default":
        title = f"Equal numbers of verified tokens: {_SETTINGS[setting]} of {int(arms['nodes'].max())}"
    intervals = [scores.interval("speedup", arm) for arm in range(len(scores.labels))]
    pays = f"Nothing is said of which drafters pay: {scores.too_few}."
    if not scores.too_few:
        loses = [name for name, each in zip(scores.labels, intervals, strict=True) if each.high < 1]
        paying = f"{sum(each.low > 1 for each in intervals)} of {counted(len(intervals), 'drafter')} pay beyond chance"
        pays = paying + (f"; slower than no drafter: {', '.join(loses)}." if loses else ".")
    order, shares = scores.order("speedup"), scores.rank_shares("speedup")
    ranked = arms.iloc[order].assign(
        rank=[str(rank) for rank in range(1, len(order) + 1)],
        speedup=[intervals[place] for place in order],
        held=[shares[place, rank] for rank, place in enumerate(order)],
        tokens=[scores.interval("tokens_per_round", place) for place in order],
        **{name: scores.values[name][order] for name in ("g", "v", "o")},
    )
    words = "Best first; costs of a round in calls on one token; held by: bootstrap share of this rank"
    tables = [(words, listed(ranked, _RANKED if setting == "default" else _RANKED | _COSTS))]
    if setting == "default":
        mine = outcomes.loc[ranked.index]
        training = [
            "not recorded" if not np.isfinite(seconds) else
            "none" if seconds == 0 else f"{tokens / 1e6:.1f} M tokens, {seconds / 60:.0f} min"
            for tokens, seconds in zip(ranked["training_tokens"], ranked["training_seconds"], strict=True)
        ]  # fmt: skip
        same = [f"{same} of {of}" for same, of in zip(mine["same"], mine.sum(axis=1), strict=True)]
        keeps, mb = ranked["lossless"].map({True: "yes", False: "no"}), ranked["weight_bytes"] / 1e6
        needs = ranked.assign(keeps=keeps, same=same, training=training, mb=mb)
        tables.append(("What a round costs, and what the drafter needs", listed(needs, _NEEDS | _COSTS)))
    caption = f"Speedup of every drafter: {title[0].lower()}{title[1:]}\n{about.title}"
    figure = leaderboard_figure(scores, "speedup", title=caption)
    return Section(title, (_leader(scores), pays), tuple(tables), ((f"all_drafters_{setting}", figure),))


def _leader(scores: ScoredArms) -> str:
    """Give the answer: who leads, by how much, and who cannot be told from the leader."""
    best, *others = scores.order("speedup")
    speedup = scores.interval("speedup", best)
    said = f"{'Fastest' if speedup.estimate > 1 else 'Least slow'}: {scores.labels[best]}, speedup {speedup:.2f}"
    if scores.too_few:
        return f"{said}; {scores.too_few}."
    if not others:
        return said + "."
    if close := [scores.labels[arm] for arm in others if not scores.apart("speedup", best, arm)]:
        return f"{said}; not told apart from it on {counted(scores.prompts, 'prompt')}: {', '.join(close)}."
    ratio = scores.ratio("speedup", best, others[0])
    return f"{said}, told apart from all others; the next, {scores.labels[others[0]]}, by a factor of {ratio:.3f}."


def _outcomes(arms: pd.DataFrame, outcomes: pd.DataFrame) -> str:
    """Say whether outputs were the target's own."""
    claimed = outcomes.loc[arms.index[arms["lossless"]]]
    wrong = arms["drafter"][claimed.index[claimed["differs"] > 0]]
    all_of = counted(int(claimed.to_numpy().sum()), "output")
    said = f"{int(claimed['same'].sum())} of {all_of} of lossless methods equal the target's own text"
    if ties := int(claimed["near-tie"].sum()):
        said += f", {ties} part from it at near-ties that rounding explains"
    said += f"; not explained: {', '.join(wrong)}" if len(wrong) else "; none is unexplained"
    lossy = arms["drafter"][~arms["lossless"]]
    return said + (f". By its rule not lossless: {', '.join(lossy)}." if len(lossy) else ".")


def frontier(costs: Sequence[float], values: Sequence[float]) -> list[int]:
    """Return the places that nothing beats: no other costs as little or less and gives more. Cheapest first."""
    found: list[int] = []
    for place in sorted(range(len(costs)), key=lambda place: (costs[place], -values[place])):
        if not found or values[place] > values[found[-1]]:
            found.append(place)
    return found


@style.in_style
def _frontier(scores: ScoredArms, arms: pd.DataFrame, about: About) -> Section:
    seconds = arms["training_seconds"].to_numpy(dtype=float)
    known = np.flatnonzero(np.isfinite(seconds))
    speedups = scores.values["speedup"]
    best = [int(known[place]) for place in frontier(seconds[known].tolist(), speedups[known].tolist())]
    listed = [
        f"{scores.labels[place]} at {scores.interval('speedup', place):.2f} with "
        + ("none" if seconds[place] == 0 else f"{seconds[place] / 60:.0f} min")
        for place in best
    ]
    unknown = [scores.labels[place] for place in np.flatnonzero(~np.isfinite(seconds))]
    answer = f"What more training buys: {', then '.join(listed)}."
    if len(best) == 1:
        answer = f"No drafter with more training is faster than {listed[0]}."
    if unknown:
        answer += f" Without a record of their training: {', '.join(unknown)}."
    text = (answer, "Seconds of training are those that the trainings recorded, on the machines where they ran.")
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
        face = style.BLUE if place in best else "white"
        axes.plot(minutes[place], value.estimate, "o", color=style.BLUE, markerfacecolor=face, zorder=3)
    axes.plot(minutes[best], speedups[best], color=style.BLUE, drawstyle="steps-post", zorder=1)
    axes.axhline(1, color=style.BLACK, linewidth=1.6, linestyle=style.DOTTED, zorder=1)
    axes.set(xlabel="minutes of training", ylabel=QUANTITIES["speedup"])
    right = max(1.0, float(minutes[known].max()))
    axes.set_xlim(-0.06 * right, 1.35 * right)  # room for names
    points = sorted((float(minutes[place]), float(speedups[place]), int(place)) for place in known)
    bottom, top = axes.get_ylim()
    columns: list[list[tuple[float, float, int]]] = []  # points that are too near for names side by side
    for point in points:
        if not columns or point[0] - columns[-1][0][0] >= 0.3 * right:  # about the width of a name
            columns.append([])
        columns[-1].append(point)
    for column in columns:
        column.sort(key=lambda point: point[1])
        heights = spread([speedup for _, speedup, _ in column], 0.045 * (top - bottom))
        beside = max(at for at, _, _ in column) + 0.04 * right
        for (at, speedup, arm), height in zip(column, heights, strict=True):
            axes.plot([at, beside], [speedup, height], color=style.LIGHT, linewidth=0.8, zorder=0)
            axes.text(beside, height, scores.labels[arm], va="center", fontsize=9)
    axes.set_ylim(min(bottom, axes.get_ylim()[0]), max(top, axes.get_ylim()[1]))
    return Section("Speedup over training", text, figures=(("all_drafters_frontier", figure),))


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return heights for labels of increasing values: at least `gap` apart, and around where the values are."""
    heights: list[float] = []
    for value in values:
        heights.append(max(value, heights[-1] + gap) if heights else value)
    shift = float(np.mean(heights) - np.mean(values)) if heights else 0.0
    return [height - shift for height in heights]


def _published() -> Section:
    columns: Mapping[str, str] = {"tokens_per_round": "tokens per round", "speedup_measured": "speedup"}
    every = load_published()
    theirs = every["source"].str.startswith("Spec-Bench leaderboard") & every["metric"].isin(columns)
    theirs &= (every["model_target"] == "Vicuna-7B-v1.3") & (every["task"] == "Overall")
    printed = every[theirs].rename(columns={"model_draft": "method", "table": "GPU"})
    wide = printed.pivot(index=["method", "GPU"], columns="metric", values="value").reset_index()
    wide.insert(1, "drafter here", wide["method"].map(_METHODS))
    wide = wide.sort_values(["GPU", "tokens_per_round"], ascending=[True, False]).reset_index(drop=True)
    text = (
        "Spec-Bench's own measurements of Vicuna-7B, greedy: another target, other prompts and other hardware, so they "
        "are no standard for the figures above; the order of the methods is what can be compared.",
    )
    table = ("hemingkx/Spec-Bench, Leaderboard.md: mean over its six tasks", wide.rename(columns=columns))
    return Section("The same methods as published", text, (table,))
