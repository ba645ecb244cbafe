"""Recorded text: prompts and outputs of an earlier run, or of anything that writes the two token lists."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.config import BASELINE
from specdec.errors import UsageError

PROMPT, OUTPUT = "prompt_token_ids", "generated_token_ids"


@dataclass(frozen=True)
class Text:
    """One output of the target.

    Attributes:
        prompt: name of the prompt, the unit of the bootstrap.
        repeat: which of several outputs of that prompt.
        limit: tokens that it was allowed.
    """

    prompt: str
    repeat: int
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    limit: int


def read_texts(path: Path, vocab_size: int, context_length: int, limit: int) -> list[Text]:
    """The texts of a JSON-lines file; of a `generations.jsonl`, the baseline's.

    Raises:
        UsageError: no such file, or file and line of what is wrong in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"Bad value advice.text={path}: {why}; give a generations.jsonl.") from None
    texts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: not JSON ({error.msg}); give a generations.jsonl.") from None
        if not isinstance(record, dict):
            raise UsageError(f"{where}: not a record with {PROMPT} and {OUTPUT}.")
        if record.get("method", BASELINE) != BASELINE:
            continue
        prompt, output = (_tokens(record, key, vocab_size, where) for key in (PROMPT, OUTPUT))
        if len(prompt) + len(output) > context_length:
            raise UsageError(
                f"{where}: {len(prompt)} + {len(output)} tokens do not fit the target's context of {context_length}."
            )
        name, repeat = str(record.get("prompt", f"{path.name}:{number}")), record.get("repeat", 0)
        if not isinstance(repeat, int):
            raise UsageError(f"{where}: repeat is {repeat!r}, not a whole number.")
        texts.append(Text(name, repeat, prompt, output, max(limit, len(output))))
    if not texts:
        raise UsageError(f"{path} holds no text: every line needs {PROMPT} and {OUTPUT} of plain decoding.")
    return texts


def _tokens(record: dict[str, Any], key: str, vocab_size: int, where: str) -> tuple[int, ...]:
    tokens = record.get(key)
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise UsageError(f"{where}: {key} is not a list of token ids (at least one).")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"{where}: token id {token} in {key} is beyond the target's vocabulary of {vocab_size}: "
                "was the text written by another model?"
            )
    return tuple(tokens)
