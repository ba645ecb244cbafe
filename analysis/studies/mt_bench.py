"""Study `mt_bench`: which answers lie where for FastChat's judge, and what they took."""

from math import isnan

import pandas as pd

from ..comparisons import compare, interval, intervals, listed, metrics_of
from ..figures import pictures, style
from ..intervals import Range
from ..sections import About, Findings, Section, Tables, counted, register

PLAIN = "plain"
ALL = "all"
JUDGE = "fastchat/llm_judge"  # the folder of FastChat (lm-sys/FastChat) that takes the files, and has the judge
_COLUMNS = {"category": "category", "temperature": "temperature:g", "questions": "questions",
            "tokens per call": "rate:.2f", "speedup": "speedup:.2f", "tokens of a turn": "length:.0f",
            "plain, tokens of a turn": "plain_length:.0f"}  # fmt: skip


@register("mt_bench")
def findings(tables: Tables, about: About) -> Findings:
    outputs, answers = tables["outputs"], tables["answers"].set_index("method")
    drafter = str(next(method for method in answers.index if method != PLAIN))
    cells = answered(outputs, drafter, about)
    mine, plain = answers.loc[drafter], answers.loc[PLAIN]
    rate, speedup = (interval(cells.iloc[-1], name) for name in ("rate", "speedup"))
    turns = counted(len(outputs[outputs["method"] == drafter]), "turn")
    text = [
        f"{counted(int(mine['questions']), 'question')} of {about.prompts} ({turns}) answered by {drafter} under "
        f"{mine['verifier']} and by plain decoding, each of which read its own first answer before the second turn: "
        f"{mine['path']} and {plain['path']} in the run's folder.",
        f"With both files in data/mt_bench/model_answer of FastChat's {JUDGE}, the judge is, there, `python "
        f"gen_judgment.py --model-list {mine['model_id']} {plain['model_id']}`, and `python show_result.py` after it. "
        "It demands an answer to every question of its question.jsonl: after a run on fewer, give it the one beside "
        "the answers.",
        f"{drafter} yields {rate:.2f} tokens per call and is {speedup:.2f} times as fast as "
        "plain decoding in time per token; their texts differ, so that this compares whole answers and not the same "
        "tokens.",
    ]
    if not mine["chat"]:
        text.append(
            "The tokenizer has no chat template (or prompts.chat=never): turns are plain text, an empty line between "
            "them, and an answer goes on up to the end token or the limit."
        )
    if missing := int(mine["missing"]) + int(plain["missing"]):
        text.append(
            f"{counted(missing, 'turn')} did not fit into the target's context behind what came before, and stand as "
            "ERROR, which is what FastChat writes for an answer that failed."
        )
    text += about.caveats(tables["skipped"])
    caption = "Each category at its temperature, with 95% intervals from resampling questions"
    names = [
        category if isnan(temperature) else f"{category}, temperature {temperature:g}"
        for category, temperature in zip(cells["category"], cells["temperature"], strict=True)
    ]
    with style.styled():  # all categories together have a filled dot
        figure, axes = style.new_figure(
            f"Tokens per call by category, {mine['verifier']}\n{about.title}",
            f"{counted(int(mine['questions']), 'question')}, {turns}; 95% intervals from resampling questions. Dotted: "
            "plain decoding.",
            height=2.2 + 0.36 * len(cells),
        )
        pictures.dots(axes, names, intervals(cells, "rate"), cells["category"].eq(ALL).tolist(), start=1)
        axes.set_xlabel("tokens per call")
    shown = ((caption, listed(cells, _COLUMNS)),)
    section = Section("Answers for a judge", tuple(text), shown, (("by_category", figure),))
    quantities = {"tokens_per_call": "rate", "speedup": "speedup"}
    metrics = metrics_of(cells.iloc[-1:], "mt_bench/{what}", quantities)
    metrics |= metrics_of(cells.iloc[:-1], "mt_bench/{category}.{what}", quantities)
    return Findings((section,), metrics)


def answered(outputs: pd.DataFrame, drafter: str, about: About) -> pd.DataFrame:
    """Return a line for each category, and for ALL: temperature (NaN where it differs), questions, and with _low and
    _high rate (tokens per call of the drafter), speedup (plain seconds per token over the drafter's), length and
    plain_length (tokens of an answer to one turn). Questions are resampled, for both methods at once.
    """
    columns = ["tokens", "rounds", "seconds", "turns"]
    lines = []
    for category, part in [*outputs.groupby("category", sort=False), (ALL, outputs)]:
        compared = compare(part.assign(turns=1), ["method"], columns, about.replicates, about.seed)
        per_token, lengths = compared.ratio("seconds", "tokens"), compared.ratio("tokens", "turns")
        speedup = compared.beside(per_token, method=PLAIN) / per_token
        statistics = {"rate": compared.ratio("tokens", "rounds"), "speedup": speedup, "length": lengths}
        statistics |= {"plain_length": compared.beside(lengths, method=PLAIN)}
        table = compared.table(statistics, {"rate": Range(low=1.0)})
        same = part["temperature"].iloc[0] if part["temperature"].nunique() == 1 else float("nan")
        line = table.assign(category=str(category), temperature=same, questions=compared.prompts)
        lines.append(line[line["method"] == drafter])
    return pd.concat(lines, ignore_index=True)
