"""Sets the drafters of one session side by side, each at its own primary gamma, paired by prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import pandas as pd
from matplotlib.figure import Figure

from specdec.config import BASELINE

from ..busy_machine import BusyMachine
from ..figures import pictures, style
from ..intervals import Interval
from ..read.runs import Run
from ..sections import Section, counted
from .compare import arm_labels, differences_in_words, pair_in_words, pair_table, primary_arm, refuted_in_words
from .leaderboard import MOST_CATEGORIES, RunArm, ScoredArms, open_arms, score
from .summary import by_category, printed_metric

TITLE = "Drafters side by side"
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
