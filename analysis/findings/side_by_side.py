"""Sets side by side what one session decoded: its drafters, each at its own primary gamma, paired by prompt; and other
engines beside ours, as the run wrote them down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from specdec.config import BASELINE

from ..busy_machine import BusyMachine
from ..figures import pictures, style
from ..intervals import Interval, too_few
from ..read.runs import Run
from ..sections import Section, counted
from .compare import arm_labels, differences_in_words, pair_in_words, pair_table, primary_arm, refuted_in_words
from .leaderboard import MOST_CATEGORIES, RunArm, ScoredArms, open_arms, score
from .run_metrics import by_category, printed_metric

TITLE, PEERS = "Drafters side by side", "Beside other engines"
BARS = {  # what a panel of bars shows: the metric of a drafter, and that of plain decoding
    "tokens per second": ("throughput/tokens_per_s", "throughput/baseline_tokens_per_s"),
    "tokens per round": ("acceleration_rate", ""),  # plain decoding commits one
}
COLUMNS = {  # metric: what the table calls it
    "speedup": "speedup",
    "tokens_per_round": "tokens per round",
    "step_overhead": "overhead of a round",
    "throughput/tokens_per_s": "tokens/s",
    "alpha.mle": "alpha (MLE)",
}
OVERALL = "all"
ByCategory = Mapping[str, Mapping[str, float]]  # metrics by category, and of all prompts


@dataclass(frozen=True)
class SideBySide:
    """The drafters of a session at their primary gammas, on the same prompts."""

    runs: list[Run]
    arms: list[RunArm]
    scores: ScoredArms

    @classmethod
    def of(cls, run: Run) -> "SideBySide":
        arms = [primary_arm(open_arms(drafter)) for drafter in run.drafters]
        prompts = sorted(set.intersection(*(set(arm.sums.index) for arm in arms)))
        doubt = BusyMachine.of(run.arms()).doubt
        scores = score([arm.sums for arm in arms], arm_labels(arms), prompts, run.replicates, doubt=doubt)
        return cls(run.drafters, arms, scores)

    def metrics(self) -> dict[str, float]:
        """Return ratios and differences of the drafter of `+drafter=` to each other one as `drafter/NAME/*`."""
        own = next(place for place, run in enumerate(self.runs) if not run.method)
        metrics: dict[str, float] = {}
        for place, run in enumerate(self.runs):
            if place == own:
                continue
            name = f"drafter/{run.method}"
            for quantity in ("tokens_per_round",) if self.scores.doubt else ("speedup", "tokens_per_round"):
                metrics |= self.scores.ratio(quantity, own, place).as_metrics(f"{name}/{quantity}.ratio")
            difference = self.scores.difference("tokens_per_round", own, place)
            metrics |= difference.as_metrics(f"{name}/tokens_per_round.difference")
        return metrics

    @cached_property
    def ranked(self) -> list[int]:
        """The places of the drafters whose outputs are not refuted, the fastest first."""
        return [place for place in self.scores.order("speedup") if not self.runs[place].refuted]

    def pairs(self) -> list[tuple[int, int]]:
        """Return all pairs of ranked drafters, the faster first."""
        return list(combinations(self.ranked, 2))

    def in_words(self) -> tuple[str, str]:
        """Say of every pair which is faster, and which commits more tokens per round."""
        speed = " ".join(f"{pair_in_words(self.scores, 'speedup', *pair)}." for pair in self.pairs())
        tokens = " ".join(f"{pair_in_words(self.scores, 'tokens_per_round', *pair)}." for pair in self.pairs())
        return f"No verdict on which is faster: {self.scores.doubt}." if self.scores.doubt else speed, tokens

    def two_fastest(self) -> str:
        """Say in a clause whether the two fastest can be told apart; "" where fewer than two are ranked."""
        if self.scores.doubt:
            return "which is faster cannot be told"
        return pair_in_words(self.scores, "speedup", *self.pairs()[0]) if self.pairs() else ""


def drafters_section(run: Run) -> Section:
    """Compare the several drafters of one session in speedup and tokens per round."""
    paired = SideBySide.of(run)
    scores = paired.scores
    clock = "Time is simulated by a cost model. " if run.simulated else ""
    how = (
        f"{clock}One session: {counted(scores.prompts, 'prompt')}, each decoded plainly and by every drafter in random "
        "order, every drafter at its own primary gamma. Ratios and differences are paired: the same prompts are drawn "
        "for both."
    )
    named = differences_in_words(paired.runs, list(scores.labels), who="drafters")
    simulated = "simulated " if run.simulated else ""
    table = pd.DataFrame({"drafter": scores.labels, "gamma": [arm.gamma for arm in paired.arms]})
    for metric, words in COLUMNS.items():
        heading = words if "round" in words or "alpha" in words else f"{simulated}{words}"
        table[heading] = [printed_metric(own.metrics, metric) for own in paired.runs]
    title = f"No drafter is ranked: outputs are refuted\n{run.setting}"
    if paired.ranked:
        best = paired.ranked[0]
        speedup = scores.values["speedup"][best]
        title = f"{scores.labels[best]} is the fastest over all prompts, speedup {speedup:.2f}\n{run.setting}"
    tables = [("Each drafter against the baseline, with 95% prompt-bootstrap intervals", table)]
    if pairs := paired.pairs():
        tables.append(("Pairs: difference and ratio, same prompts resampled for both", pair_table(scores, pairs)))
    said = tuple(filter(None, (*paired.in_words(), how, named)))
    figures = (("drafters_by_category", category_bars(paired.runs, scores.labels, title=title)),)
    return Section(TITLE, said, tuple(tables), figures).beginning(refuted_in_words(paired.runs, scores.labels))


@style.in_style
def category_bars(runs: Sequence[Run], labels: Sequence[str], *, title: str) -> Figure:
    """Draw throughput above and tokens per round below, by category and for all prompts: bars of plain decoding and of
    each drafter ("Not So Speculative Decoding", Figures 3 and 4).
    """
    figures: list[ByCategory] = [{**by_category(run.metrics), OVERALL: run.metrics} for run in runs]
    categories = sorted(set.intersection(*map(set, figures)) - {OVERALL})
    names = [*(categories if len(categories) <= MOST_CATEGORIES else []), OVERALL]

    def values(own: ByCategory, metric: str) -> list[Interval]:
        return [Interval.from_metrics(own[name], metric) if metric else Interval(1.0) for name in names]

    simulated = runs[0].simulated
    timed = "simulated time" if simulated else "prefill apart"
    caption = f"95% prompt-bootstrap intervals, {timed}; all methods decoded the same prompts in one session."
    figure, axes = style.new_panels(title, caption, 6.6, 2, sharex=True)
    for panel, (quantity, (metric, plain)) in zip(axes[:, 0], BARS.items(), strict=True):
        groups = {BASELINE: values(figures[0], plain)}
        groups |= {label: values(own, metric) for label, own in zip(labels, figures, strict=True)}
        pictures.bars(panel, groups)
        panel.set_ylabel(f"simulated {quantity}" if simulated and "second" in quantity else quantity)
    style.legend_above(axes[0, 0], min(3, len(runs) + 1))
    last = axes[-1, 0]
    crowded = len(names) > 5
    last.set_xticks(range(len(names)), names, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    return figure


def peer_notes(described: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
    """Say each peer's time over ours, how both sides ran, and what failed or was left out, by `peers.json`
    (`described`) and by the metrics of the run, where those of peers are `peer/<name>.*`.
    """
    notes = []
    for peer in described["peers"]:
        name, failure = peer["peer"], peer["failure"]
        if f"peer/{name}.ratio" not in metrics:
            notes.append(f"Peer {name} failed: {failure}" if failure else f"Peer {name} has decoded nothing yet.")
            continue
        ratio, same = Interval.from_metrics(metrics, f"peer/{name}.ratio"), metrics.get(f"peer/{name}.identical")
        said = (
            f"Peer {name} ({peer['version']}, {peer['setting']}) takes {ratio:.2f} times our time per token with "
            f"{_arm(peer)} ({peer['ours']['setting']}), prefill included."
        )
        if same is not None:
            said += f" {same:.0%} of its outputs are our baseline's, token for token."
        if len(peer["tried"]) > 1:
            outcomes = (
                f"{tried['setting']} "
                + (f"{tried['seconds']:.3f} s" if "seconds" in tried else f"failed ({tried['failed']})")
                for tried in peer["tried"]
            )
            said += f" Tried on the longest prompt: {', '.join(outcomes)}."
        notes.append(said + (f" It failed and is compared as far as it came: {failure}" if failure else ""))
    return notes + [f"Peer {peer['peer']} is left out: {peer['reason']}" for peer in described.get("left_out", ())]


def _arm(peer: Mapping[str, Any]) -> str:
    ours = peer["ours"]
    return "the baseline" if ours["method"] == BASELINE else f"{ours['method']} at gamma {ours['gamma']}"


def peers_section(run: Run) -> Section:
    """Show each peer's ratio, both sides' settings, and who was left out. UsageError without `peers.json`."""
    described, lines = run.peers(), []
    ratios: dict[str, Interval] = {}
    prompts = len({line["prompt"] for line in described.get("generations", ())})
    for peer in described["peers"]:
        name = peer["peer"]
        ratios[name], same = Interval.from_metrics(run.metrics, f"peer/{name}.ratio"), f"peer/{name}.identical"
        lines.append(
            {
                "peer": name,
                "its time per token over ours": f"{ratios[name]:.2f}",
                "set against": _arm(peer),
                "engine": peer["version"],
                "its setting": peer["setting"],
                "our setting": peer["ours"]["setting"],
                "outputs that are our baseline's": f"{run.metrics[same]:.0%}" if same in run.metrics else "–",
                "left out or failed": peer["failure"] or "–",
            }
        )
    lines += [{"peer": one["peer"], "left out or failed": one["reason"]} for one in described.get("left_out", ())]
    few = too_few(prompts)
    slower = [name for name, ratio in ratios.items() if ratio.low > 1 and not few]
    faster = [name for name, ratio in ratios.items() if ratio.high < 1 and not few]
    rest = sorted(name for name, ratio in ratios.items() if ratio.known and name not in (*slower, *faster))
    said = [
        *([f"**Slower than ours: {', '.join(slower)}.**"] if slower else []),
        *([f"**Faster than ours: {', '.join(faster)}.**"] if faster else []),
        *([f"Not told apart from ours: {', '.join(rest)}{few and f'; {few}'}."] if rest else []),
        "Each engine generated from the same prompts in the same process, in turn with ours, at the fastest of the "
        "settings that were tried. Times include both sides' prefill; intervals are 95% prompt-bootstrap intervals.",
    ]
    return Section(PEERS, (" ".join(said),), (("Every peer, and how both sides ran", pd.DataFrame(lines).fillna("–")),))
