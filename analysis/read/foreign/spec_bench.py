"""Answer files of Spec-Bench (hemingkx/Spec-Bench, evaluation/eval.py): JSONL, one question per line.

Read are question_id, category and, of every choice, accept_lengths (tokens of each round, the target's own included;
the rounds of all turns joined), new_tokens and wall_time (one per turn, prefill included) and decoding_steps (one per
turn, counted from 0 by some methods). Rounds are whole: these loops look for the end token after a round.
"""

from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from .accepted_lengths import NO_OFFERS
from .imported import Choices, Imported, ImportedText, counts, imported, mapping, needed_gamma, read_lines, within_gamma

KIND = "spec_bench"


def spec_bench(path: Path, choices: Choices) -> list[Imported]:
    """Return the rounds of an answer file; a choice is a repeat, a turn is a text of the same prompt.

    gamma: draft tokens on the longest path (the depth, for trees). UsageError with file and line for another form.
    """
    gamma = needed_gamma(choices)
    texts: list[ImportedText] = []
    joined = 0
    for where, value in read_lines(path):
        question, category, choices = _answer(where, value)
        number = 0  # of the text among those of its question
        for choice in choices:
            accepted = [length - 1 for length in counts(where, "accept_lengths", choice.get("accept_lengths"), least=1)]
            within_gamma(where, accepted, gamma)
            tokens, seconds = _per_turn(where, choice)
            parts = _turns(where, choice, accepted, tokens)
            if len(parts) < len(tokens):
                joined += 1
                tokens, seconds = [sum(tokens)], [sum(seconds)]
            for part, written, time in zip(parts, tokens, seconds, strict=True):
                offered = [gamma] * len(part)
                texts.append(
                    ImportedText(question, category, part, offered, repeat=number, tokens=written, seconds=time)
                )
                number += 1
    notes = [
        "Wall time is per turn, prefill included: speedup is end to end, and there is no t(1), so no account beyond "
        "acceptance.",
        "It has no probabilities, no context lengths and no draft sizes of trees.",
        NO_OFFERS,
        "Rounds are taken as whole and never cut; the file does not say otherwise.",
        "Tokens are those that the method counted itself (new_tokens).",
    ]
    if joined:
        notes.append(
            f"In {joined:,} answers the rounds of several turns could not be told apart (decoding_steps and new_tokens "
            "do not add up): they stand as one text."
        )
    return [imported(path, KIND, gamma, texts, notes)]


def spec_bench_times(path: Path) -> pd.DataFrame:
    """Return tokens and seconds of every answer of a baseline's file: prompt, repeat, tokens, seconds (all turns).

    `accept_lengths` is not needed. UsageError with file and line for another form.
    """
    rows = []
    for where, value in read_lines(path):
        question, _, choices = _answer(where, value)
        for repeat, choice in enumerate(choices):
            tokens, seconds = _per_turn(where, choice)
            rows.append({"prompt": question, "repeat": repeat, "tokens": sum(tokens), "seconds": sum(seconds)})
    return pd.DataFrame(rows)


def _answer(where: str, value: Any) -> tuple[str, str, list[dict[str, Any]]]:
    values = mapping(where, value)
    missing = [key for key in ("question_id", "category", "choices") if key not in values]
    if missing:
        raise UsageError(f"{where}: an answer of Spec-Bench has {', '.join(missing)}, this line has not.")
    choices = values["choices"]
    if not isinstance(choices, list) or not choices:
        raise UsageError(f"{where}: choices must be a list with at least one entry.")
    return str(values["question_id"]), str(values["category"]), [mapping(where, choice) for choice in choices]


def _per_turn(where: str, choice: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Return tokens and seconds of each turn."""
    tokens, times = counts(where, "new_tokens", choice.get("new_tokens")), choice.get("wall_time")
    if not isinstance(times, list) or not all(isinstance(t, (int, float)) and isfinite(t) and t > 0 for t in times):
        raise UsageError(f"{where}: wall_time must be a list of seconds above 0, found {times!r}.")
    if not tokens or len(tokens) != len(times):
        raise UsageError(f"{where}: new_tokens has {len(tokens)} entries and wall_time {len(times)}; one a turn each.")
    return tokens, [float(time) for time in times]


def _turns(where: str, choice: dict[str, Any], accepted: list[int], tokens: list[int]) -> list[list[int]]:
    """Split rounds into turns by decoding_steps (counted from 1 or from 0), else by new_tokens, else not at all."""
    if len(tokens) < 2:
        return [accepted]
    steps = counts(where, "decoding_steps", choice["decoding_steps"]) if "decoding_steps" in choice else []
    for sizes in (steps, [step + 1 for step in steps]):
        if len(sizes) == len(tokens) and sum(sizes) == len(accepted):
            ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
            return [accepted[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return _by_tokens(accepted, tokens) or [accepted]


def _by_tokens(accepted: list[int], tokens: list[int]) -> list[list[int]] | None:
    """Split rounds where the committed tokens reach each turn's count exactly; None if they do not."""
    parts: list[list[int]] = [[]]
    written = 0
    for number in accepted:
        if written == tokens[len(parts) - 1] and len(parts) < len(tokens):
            parts.append([])
            written = 0
        parts[-1].append(number)
        written += number + 1
    whole = len(parts) == len(tokens) and all(sum(p) + len(p) == n for p, n in zip(parts, tokens, strict=True))
    return parts if whole else None
