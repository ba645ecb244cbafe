"""Answers by how much grounded heads are faster than independent ones, from one session that decoded with both."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from specdec.errors import UsageError

from ..findings.side_by_side import drafters_section
from ..intervals import Interval
from ..read.runs import Run
from ..sections import Section
from .committed import RESULTS, Measured

PUBLISHED_SPEEDUP = 1.07  # "Not So Speculative Decoding": grounded over independent heads, Vicuna-7B, MT-Bench, greedy
TITLE = "Grounded heads against independent ones, in one session"
PAIR = "grounded against medusa"
RESULT = RESULTS / "grounded_bars.json"
COLUMNS = {"tokens_per_s": "tokens/s", "tokens_per_round": "tokens per round", "speedup": "speedup"}


def gain_section(run: Run) -> Section:
    """Return the drafters of the session side by side, behind a sentence that sets the paper's ratio beside ours.
    UsageError if the run is not one with drafter grounded and medusa beside it.
    """
    ratio = Interval.from_metrics(run.metrics, "drafter/medusa/speedup.ratio")
    if run.params.get("drafter.name") != "grounded" or "medusa" not in run.beside:
        raise UsageError(
            f"{run.source} did not decode with grounded and independent heads in one session: "
            "`python -m specdec.run +experiment=grounded_bars` does."
        )
    tokens = Interval.from_metrics(run.metrics, "drafter/medusa/tokens_per_round.difference")
    side = drafters_section(run)
    answer = (
        f"Grounded heads are {ratio:.2f} times as fast as independent ones on {run.setting}, and commit {tokens:+.2f} "
        f"tokens per round; the paper has {PUBLISHED_SPEEDUP} for Vicuna-7B on MT-Bench, {_told(ratio)}."
    )
    return replace(side, title=TITLE, text=(answer, *side.text))


def committed_section() -> Section:
    """Return what the committed session on MT-Bench found: the ratio beside the paper's, and throughput and tokens per
    round by category.
    """
    kept = json.loads(RESULT.read_text(encoding="utf-8"))
    table = pd.DataFrame(kept["figures"])
    ratios = {prompts: figure_of(kept["figures"], prompts, "speedup.ratio") for prompts in table["prompts"].unique()}
    texts = [f"{ratio:.2f} on {ratio.prompts} prompts of {name}, {_told(ratio)}" for name, ratio in ratios.items()]
    answer = (
        f"Grounded heads over independent ones, the paper's {PUBLISHED_SPEEDUP}: {'; '.join(texts)} (committed: pocket "
        f"target in float32, {kept['cpu']['model']}, {kept['cpu']['torch_threads']} thread, {kept['date']})."
    )
    bars = table[(table["prompts"] == "mt_bench") & table["figure"].isin(list(COLUMNS))]
    shown = [f"{Interval(line.value, line.low, line.high):.2f}" for line in bars.itertuples(index=False)]
    wide = bars.assign(shown=shown).pivot(index=["category", "method"], columns="figure", values="shown")
    wide = wide[list(COLUMNS)].fillna("–").rename(columns=COLUMNS).reset_index()
    caption = "MT-Bench, with 95% prompt-bootstrap intervals; `+experiment=grounded_bars` draws the bars"
    return Section(TITLE, (answer,), ((caption, wide),))


def sessions() -> list[Measured]:
    """Return the figures of the committed sessions, with their prompts."""
    return list(json.loads(RESULT.read_text(encoding="utf-8"))["figures"])


def figure_of(sessions: Sequence[Measured], prompts: str, figure: str, method: str = PAIR) -> Interval:
    """Return what the session on one set of prompts found: of grounded heads against independent ones the figure
    speedup.ratio, tokens_per_round.ratio or tokens_per_round.difference; of one `method` speedup, tokens_per_round or
    tokens_per_s. KeyError if there is none.
    """
    for row in sessions:
        if (row["prompts"], row["figure"], row["category"]) == (prompts, figure, "all") and row["method"] == method:
            return Interval(row["value"], row["low"], row["high"], prompts=row["count"])
    raise KeyError(f"no {figure} of {method} on {prompts}")


def _told(ratio: Interval) -> str:
    inside = ratio.contains(PUBLISHED_SPEEDUP)
    if inside is None:
        return "and so few prompts give no interval to compare it with"
    if inside:
        return "which our interval contains"
    return "less than our interval allows" if ratio.low > PUBLISHED_SPEEDUP else "more than our interval allows"
