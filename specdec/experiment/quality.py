"""What a rule that is not lossless, or a target trained away from its original, does to an output: its likelihood under
the original model, and whether its answer is right. Nothing here is timed; `observe` has what is said of a round.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

import torch

from specdec.targets.base import Target

_NUMBER = re.compile(r"(?:(?<!\w)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")  # a minus between two numbers is no sign
_REFERENCE = "####"  # before the answer in GSM8K


def log_likelihood(target: Target, prompt: Sequence[int], text: Sequence[int]) -> float:
    """ln of the chance that `target` writes `text` after `prompt` at temperature 1 with nothing cut off; -inf where it
    cannot.
    """
    law = target.score(prompt, text)[: len(text)].double().log_softmax(-1)  # [T, V]
    return float(law.gather(-1, torch.tensor(text, device=law.device).unsqueeze(-1)).sum())


def answers(output: str, reference: str) -> bool:
    """Whether the last number of an output is the reference's answer: what stands behind `####`, or its last number.

    The last number, because models that nobody told of the format do not write the mark; evaluation harnesses extract
    answers in the same way. Numbers are compared, not spellings: 1,200 is 1200.0.
    """
    wanted = _last_number(reference.rpartition(_REFERENCE)[2])
    return wanted is not None and _last_number(output) == wanted


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None
