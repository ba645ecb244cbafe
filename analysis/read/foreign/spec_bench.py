"""Answer files of Spec-Bench (hemingkx/Spec-Bench, evaluation/eval.py): JSONL, one question per line.

Read are question_id, category and, of every choice, accept_lengths (tokens of each round, the target's own included;
the rounds of all turns joined), new_tokens and wall_time (one per turn, prefill included) and decoding_steps (one per
turn, counted from 0 by some methods). Rounds are whole: these loops look for the end token after a round.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.text.lengths import FirstLengths
from specdec.text.lines import BadLine

from ..foreign_lines import NO_OFFERS, ForeignFile, counts, keys_of, mapping
from ..imported import ImportChoices, Imported, ImportedText, imported, within_gamma

KIND = "spec_bench"


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the rounds of an answer file; a choice is a repeat, a turn is a text of the same prompt, and gamma counts
    draft tokens on the longest path (the depth, for trees). UsageError for a length beyond gamma.
    """
    gamma, file = choices.needed_gamma, ForeignFile(path, choices)
    answers: list[tuple[str, str, str, list[Choice]]] = []
    firsts = FirstLengths()
    for line in file.lines():
        with file.line():
            values = answer(line.where, line.value)
            turns: list[Choice] = []
            for choice in values["choices"]:
                lengths = counts(line.where, "accept_lengths", choice.get("accept_lengths"), least=1, first=0)
                steps = counts(line.where, "decoding_steps", choice.get("decoding_steps", []))
                turns.append((lengths, *per_turn(line.where, choice), steps))
            for lengths, *_ in turns:
                firsts.add(lengths)
            answers.append((line.where, *file.named(values, line.number), turns))
    texts: list[ImportedText] = []
    joined = 0  # choices whose turns could not be told apart
    for where, question, category, turns in answers:
        number = 0  # of the text among those of its question
        for lengths, tokens, seconds, steps in turns:
            accepted = [length - 1 for length in lengths[firsts.are_placeholders or lengths[:1] == [0] :]]
            within_gamma(where, accepted, gamma)
            parts = _turns(accepted, tokens, steps)
            if len(parts) < len(tokens):
                joined += 1
                tokens, seconds = [sum(tokens)], [sum(seconds)]
            for part, written, time in zip(parts, tokens, seconds, strict=True):
                offered = [gamma] * len(part)
                text = ImportedText(question, category, part, offered, repeat=number, tokens=written, seconds=time)
                texts.append(text)
                number += 1
    notes = [
        "Wall time is per turn, prefill included: speedup is end to end, and there is no t(1), so no account beyond "
        "acceptance.",
        "It has no probabilities, no context lengths and no draft sizes of trees.",
        NO_OFFERS,
        "Rounds are taken as whole and never cut; the file does not say otherwise.",
        "Tokens are those that the method counted itself (new_tokens).",
        *file.settled(),
    ]
    if firsts.are_placeholders:
        notes.append(
            f"The first entry of every choice stands for the prefill, not for a round: {firsts.texts:,} are left out."
        )
    if joined:
        notes.append(
            f"In {joined:,} answers the rounds of several turns could not be told apart (decoding_steps and new_tokens "
            "do not add up): they stand as one text."
        )
    return [imported(path, KIND, gamma, texts, notes)]


def recognises(value: Any) -> bool:
    return "accept_lengths" in first_choice(value)


def first_choice(value: Any) -> Mapping[str, Any]:
    """Return the first choice of an answer; nothing where the value is none."""
    choices = value.get("choices") if isinstance(value, Mapping) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}


def spec_bench_times(path: Path, skip_bad: bool = False) -> pd.DataFrame:
    """Return prompt, repeat, tokens and seconds of every answer of a baseline's file. UsageError as `read`."""
    file, rows = ForeignFile(path, ImportChoices(skip_bad=skip_bad)), []
    for line in file.lines():
        with file.line():
            values = answer(line.where, line.value)
            turns = [per_turn(line.where, choice) for choice in values["choices"]]
            name, _ = file.named(values, line.number)
            for repeat, (tokens, seconds) in enumerate(turns):
                rows.append({"prompt": name, "repeat": repeat, "tokens": sum(tokens), "seconds": sum(seconds)})
    file.settled()
    return pd.DataFrame(rows, columns=["prompt", "repeat", "tokens", "seconds"])


def answer(where: str, value: Any) -> dict[str, Any]:
    """Return an answer of FastChat's form, its choices being objects. BadLine otherwise."""
    values = mapping(where, value)
    if "question_id" not in values or not isinstance(values.get("choices"), list) or not values["choices"]:
        raise BadLine(
            f"{where}: an answer has question_id and choices, a list with at least one entry; the line has "
            f"{keys_of(values)}."
        )
    for choice in values["choices"]:
        mapping(where, choice)
    return values


def per_turn(where: str, choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Return tokens and seconds of each turn."""
    tokens, times = counts(where, "new_tokens", choice.get("new_tokens")), choice.get("wall_time")
    if not isinstance(times, list) or not all(type(time) in (int, float) and 0 < time < 1e12 for time in times):
        raise BadLine(f"{where}: wall_time must be a list of seconds above 0, found {times!r:.80}.")
    if not tokens or len(tokens) != len(times):
        raise BadLine(f"{where}: new_tokens has {len(tokens)} entries and wall_time {len(times)}; one a turn each.")
    return tokens, [float(time) for time in times]


# Lengths with the target's own token, tokens and seconds of each turn, and the steps that the file counts in each.
Choice = tuple[list[int], list[int], list[float], list[int]]


def _turns(accepted: list[int], tokens: list[int], steps: list[int]) -> list[list[int]]:
    """Split rounds into turns by decoding_steps (counted from 1 or from 0), else by new_tokens, else not at all."""
    if len(tokens) < 2:
        return [accepted]
    for sizes in (steps, [step + 1 for step in steps]):
        if len(sizes) == len(tokens) and sum(sizes) == len(accepted):
            ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
            return [accepted[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    # Where the committed tokens reach each turn's count exactly.
    parts: list[list[int]] = [[]]
    written = 0
    for number in accepted:
        if written == tokens[len(parts) - 1] and len(parts) < len(tokens):
            parts.append([])
            written = 0
        parts[-1].append(number)
        written += number + 1
    whole = len(parts) == len(tokens) and all(sum(p) + len(p) == n for p, n in zip(parts, tokens, strict=True))
    return parts if whole else [accepted]
