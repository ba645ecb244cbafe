"""Judges outputs: how likely a model finds them, and whether their answer is right.

A rule that is not lossless, or training, may change both. Nothing here is timed; `observe` judges single rounds.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import torch

from specdec.records import Generation
from specdec.targets.base import Target

_NUMBER = re.compile(r"(?:(?<!\w)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")  # a minus between two numbers is no sign
_REFERENCE = "####"  # before the answer in GSM8K


def judged(judge: Target, generation: Generation, text: str, reference: str | None) -> dict[str, Any]:
    """Return the columns of `quality.parquet` that are no key: tokens, log_likelihood of the whole output in nats, and
    correct, None without a reference answer.
    """
    return {
        "tokens": len(generation.tokens),
        "log_likelihood": log_likelihood(judge, generation.prompt, generation.tokens),
        "correct": None if reference is None else answers(text, reference),
    }


def log_likelihood(target: Target, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Return ln of the chance that `target` writes `text` after `prompt` at temperature 1 with nothing cut off; -inf
    where it cannot.
    """
    law = target.score(prompt, text)[: len(text)].double().log_softmax(-1)  # [T, V]
    return float(law.gather(-1, torch.tensor(text, device=law.device).unsqueeze(-1)).sum())


def answers(output: str, reference: str) -> bool:
    """Return True if the last number of an output is the answer of the reference, which stands behind `####` there or
    is its last number.

    The last number, because models that nobody told of the format do not write the mark; evaluation harnesses extract
    answers in the same way. Numbers are compared, not spellings: 1,200 is 1200.0.
    """
    wanted = _last_number(reference.rpartition(_REFERENCE)[2])
    return wanted is not None and _last_number(output) == wanted


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None
