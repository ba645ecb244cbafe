"""Study `mt_bench`: which answers lie where for FastChat's judge, and what they took."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..comparisons import compare, finite
from ..figures import pictures, style
from ..findings import About, Findings, Section, Tables, counted, register
from ..intervals import Interval

PLAIN = "plain"
ALL = "all"
JUDGE = "fastchat/llm_judge"
"""The folder of FastChat (lm-sys/FastChat) whose data/mt_bench/model_answer takes the files, and that has the judge."""


@register("mt_bench")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study."""
    outputs, answers = tables["outputs"], tables["answers"].set_index("method")
    drafter = str(next(method for method in answers.index if method != PLAIN))
    parts = {str(name): part for name, part in outputs.groupby("category", sort=False)} | {ALL: outputs}
    cells = [answered(name, part, drafter, about) for name, part in parts.items()]
    mine, plain = answers.loc[drafter], answers.loc[PLAIN]
    everything = cells[-1]
    turns = counted(len(outputs[outputs["method"] == drafter]), "turn")
    text = [
        f"{counted(int(mine['questions']), 'question')} of {about.prompts} ({turns}) answered by {drafter} under "
        f"{mine['verifier']} and by plain decoding, each of which read its own first answer before the second turn: "
        f"{mine['path']} and {plain['path']} in the run's folder.",
        f"With both files in data/mt_bench/model_answer of FastChat's {JUDGE}, the judge is, there, `python "
        f"gen_judgment.py --model-list {mine['model_id']} {plain['model_id']}`, and `python show_result.py` after it. "
        "It demands an answer to every question of its question.jsonl: after a run on fewer, give it the one beside "
        "the answers.",
        f"{drafter} yields {everything.rate:.2f} tokens per call and is {everything.speedup:.2f} times as fast as "
        "plain decoding in time per token; their texts differ, so that this compares whole answers and not the same "
        "tokens.",
        *_notes(mine, plain, about, tables["skipped"]),
    ]
    caption = "Each category at its temperature, with 95% intervals from resampling questions"
    figure = _by_category(
        cells,
        title=f"Tokens per call by category, {mine['verifier']}\n{about.title}",
        caption=f"{counted(int(mine['questions']), 'question')}, {turns}; 95% intervals from resampling questions. "
        "Dotted: plain decoding.",
    )
    section = Section("Answers for a judge", tuple(text), ((caption, _table(cells)),), (("by_category", figure),))
    return Findings((section,), _metrics(cells))


@dataclass(frozen=True)
class Answered:
    """The answers to the questions of one category, or of all.

    Attributes:
        temperature: that of the category; NaN where it differs.
        rate: tokens per call of the drafter.
        speedup: plain seconds per token over the drafter's.
        length, plain_length: tokens of an answer to one turn.
    """

    category: str
    temperature: float
    questions: int
    rate: Interval
    speedup: Interval
    length: Interval
    plain_length: Interval


def answered(category: str, outputs: pd.DataFrame, drafter: str, about: About) -> Answered:
    """Sum up some lines of the table `outputs`; questions are resampled, for both methods at once."""
    columns = ["tokens", "rounds", "seconds", "turns"]
    sums = compare(outputs.assign(turns=1), ["method"], columns, about.replicates, about.seed)
    at = {method: place for place, method in enumerate(sums.cells["method"])}
    per_token, lengths = sums.ratio("seconds", "tokens"), sums.ratio("tokens", "turns")
    temperatures = outputs["temperature"].unique()
    with np.errstate(divide="ignore", invalid="ignore"):
        speedup = per_token[:, at[PLAIN]] / per_token[:, at[drafter]]
    return Answered(
        category=category,
        temperature=float(temperatures[0]) if len(temperatures) == 1 else nan,
        questions=sums.prompts,
        rate=sums.interval(sums.ratio("tokens", "rounds")[:, at[drafter]]),
        speedup=sums.interval(speedup),
        length=sums.interval(lengths[:, at[drafter]]),
        plain_length=sums.interval(lengths[:, at[PLAIN]]),
    )


def _notes(mine: pd.Series, plain: pd.Series, about: About, skipped: pd.DataFrame) -> list[str]:
    """Say how turns were put together, what is missing, and what limits the conclusions."""
    notes = []
    if not mine["chat"]:
        notes.append(
            "The tokenizer has no chat template (or prompts.chat=never): turns are plain text, an empty line between "
            "them, and an answer goes on up to the end token or the limit."
        )
    missing = int(mine["missing"]) + int(plain["missing"])
    if missing:
        notes.append(
            f"{counted(missing, 'turn')} did not fit into the target's context behind what came before, and stand as "
            "ERROR, which is what FastChat writes for an answer that failed."
        )
    return [*notes, *about.caveats(skipped)]


def _table(cells: Sequence[Answered]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "category": each.category,
                "temperature": "–" if isnan(each.temperature) else f"{each.temperature:g}",
                "questions": each.questions,
                "tokens per call": f"{each.rate:.2f}",
                "speedup": f"{each.speedup:.2f}",
                "tokens of a turn": f"{each.length:.0f}",
                "plain, tokens of a turn": f"{each.plain_length:.0f}",
            }
            for each in cells
        ]
    )


def _metrics(cells: Sequence[Answered]) -> dict[str, float]:
    """Return `mt_bench/tokens_per_call`, `mt_bench/speedup`, and both of each category as `mt_bench/CATEGORY.*`."""
    metrics: dict[str, float] = {}
    for each in cells:
        prefix = "mt_bench/" if each.category == ALL else f"mt_bench/{each.category}."
        metrics |= each.rate.as_metrics(f"{prefix}tokens_per_call") | each.speedup.as_metrics(f"{prefix}speedup")
    return finite(metrics)


@style.in_style
def _by_category(cells: Sequence[Answered], *, title: str, caption: str) -> Figure:
    """Draw tokens per call of each category, with its temperature, and of all together as a filled dot."""
    figure, axes = style.new_figure(title, caption, height=2.2 + 0.36 * len(cells))
    names = [
        each.category if isnan(each.temperature) else f"{each.category}, temperature {each.temperature:g}"
        for each in cells
    ]
    pictures.dots(axes, names, [each.rate for each in cells], [each.category == ALL for each in cells], start=1)
    axes.set_xlabel("tokens per call")
    return figure
