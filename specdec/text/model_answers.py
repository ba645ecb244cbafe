"""Answers to MT-Bench's questions in FastChat's own files, so that its judge reads them as if it had made them itself.

The layout is that of `fastchat/llm_judge` (lm-sys/FastChat): `data/BENCH/question.jsonl`, and for each model
`data/BENCH/model_answer/MODEL_ID.jsonl`. Everything is ASCII, because FastChat opens files in the machine's encoding.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.text.writing import write_atomically

NO_ANSWER = "ERROR"
"""The words that FastChat writes in the place of a turn that could not be answered."""

QuestionId = int | str


@dataclass(frozen=True)
class ModelAnswer:
    """A model's answers to one question.

    Attributes:
        question_id: as the file of questions has it; the judge looks answers up by it.
        choices: for each choice the answers to all turns; the judge reads the first choice.
        seconds: the time of the answer, in seconds since the epoch.
    """

    question_id: QuestionId
    choices: Sequence[Sequence[str]]
    seconds: float


def write_answers(folder: Path, model_id: str, answers: Iterable[ModelAnswer]) -> Path:
    """Write `folder`/model_answer/`model_id`.jsonl, a line for each question in the order of their ids, and return its
    path.
    """
    ordered = sorted(answers, key=lambda answer: (isinstance(answer.question_id, str), answer.question_id))
    path = folder / "model_answer" / f"{model_id}.jsonl"
    lines = []
    for answer in ordered:
        choices = [{"index": index, "turns": list(turns)} for index, turns in enumerate(answer.choices)]
        content = json.dumps([model_id, answer.question_id, choices, answer.seconds])
        record = {
            "question_id": answer.question_id,
            "answer_id": uuid.uuid5(uuid.NAMESPACE_URL, content).hex,
            "model_id": model_id,
            "choices": choices,
            "tstamp": answer.seconds,
        }
        lines.append(json.dumps(record) + "\n")
    write_atomically(path, "".join(lines))
    return path


def write_questions(folder: Path, questions: Iterable[Mapping[str, Any]]) -> Path:
    """Write `folder`/question.jsonl, a line for each question: question_id, category, turns and, where the source has
    one, reference. The judge demands an answer to each of them.
    """
    path = folder / "question.jsonl"
    write_atomically(path, "".join(json.dumps(dict(question)) + "\n" for question in questions))
    return path
