"""Rounds tables made of foreign files: the pieces that every importer shares.

A source says less than a run of ours. `Imported.notes` say what it does not contain; seconds and sizes that nobody
recorded are NaN, never zero, and no statistic uses them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from ...rounds import COLUMNS, SECONDS, check_rounds


@dataclass(frozen=True)
class Imported:
    """Foreign rounds with what is known about them.

    Attributes:
        rounds: `analysis.rounds.COLUMNS`; NaN in columns that the source does not have.
        notes: sentences on what the source does not contain and what was assumed.
        has_times: True if `texts` has seconds.
        ordered: True if the order of a text's rounds is known; without it no analysis may look at neighbours.
        texts: one line per text: prompt, category, repeat, tokens, seconds (of the whole text, prefill included).
    """

    source: str
    kind: str
    gamma: int
    rounds: pd.DataFrame
    notes: tuple[str, ...]
    has_times: bool
    ordered: bool
    texts: pd.DataFrame


@dataclass(frozen=True)
class ImportedText:
    """The rounds of one text before they become lines of a table.

    Attributes:
        accepted, offered: draft tokens per round, equally many; a round that accepted fewer ends in a rejection.
        cut: truncation of the last round, "" if it was not cut; a cut round accepted all that it still could.
        context: tokens before the first round; None if the source does not say.
        tokens, seconds: of the whole text, where the source counts them itself.
    """

    prompt: str
    category: str
    accepted: Sequence[int]
    offered: Sequence[int]
    cut: str = ""
    repeat: int = 0
    context: int | None = None
    tokens: int | None = None
    seconds: float = nan


def imported(
    path: Path, kind: str, gamma: int, texts: Sequence[ImportedText], notes: Sequence[str], ordered: bool = True
) -> Imported:
    """Make the tables of `texts`. UsageError if there is no round at all."""
    rows = [row for text in texts for row in _rows(text, kind, gamma)]
    if not rows:
        raise UsageError(f"{path} has no round: nothing was ever drafted in it.")
    rounds = pd.DataFrame(rows)[list(COLUMNS)]
    check_rounds(rounds)
    columns = ["prompt", "category", "repeat", "tokens", "seconds"]
    table = pd.DataFrame([[getattr(text, name) for name in columns] for text in texts], columns=columns)
    committed = [sum(text.accepted) + len(text.accepted) - bool(text.cut) for text in texts]
    table["tokens"] = table["tokens"].fillna(pd.Series(committed)).astype(int)
    has_times = bool(table["seconds"].notna().all())
    return Imported(str(path), kind, gamma, rounds, tuple(notes), has_times, ordered, table)


def _rows(text: ImportedText, kind: str, gamma: int) -> Iterator[dict[str, Any]]:
    last = len(text.accepted) - 1
    committed = [accepted + (not (text.cut and index == last)) for index, accepted in enumerate(text.accepted)]
    left, context = sum(committed), nan if text.context is None else float(text.context)
    for index, (accepted, offered) in enumerate(zip(text.accepted, text.offered, strict=True)):
        cut = text.cut if index == last else ""
        yield {
            "cell": "imported",
            "method": kind,
            "gamma": gamma,
            "repeat": text.repeat,
            "prompt": text.prompt,
            "category": text.category,
            "round": index,
            "context": context,
            "offered_nodes": nan,
            "offered": offered,
            "accepted": accepted,
            "committed": committed[index],
            "rejected": not cut and accepted < offered,
            "truncation": cut,
            "tokens_left": left,
            "source": "",
            "rank": 0,
            "beta": [],
            **dict.fromkeys(SECONDS, nan),
        }
        left -= committed[index]
        context += committed[index]


# Reading ------------------------------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield ("file:line", value) of every line of a JSONL file that is not blank. UsageError names file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"The file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The file {path} cannot be read: {error}.") from None
    empty = True
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        empty = False
        try:
            yield f"{path}:{number}", json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}:{number}: not JSON ({error.msg}); one JSON value per line is expected.") from None
    if empty:
        raise UsageError(f"The file {path} is empty.")


def counts(where: str, name: str, value: Any, least: int = 0) -> list[int]:
    """Return `value` as a list of whole numbers, `least` or more. UsageError names the place of the first fault."""
    if not isinstance(value, list):
        raise UsageError(f"{where}: {name} must be a list of whole numbers, found a {type(value).__name__}.")
    return [count(where, f"{name}[{index}]", item, least) for index, item in enumerate(value)]


def count(where: str, name: str, value: Any, least: int = 0) -> int:
    """Return `value` as a whole number, `least` or more; 3.0 counts as 3. UsageError otherwise."""
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
    if not whole or value < least:
        raise UsageError(f"{where}: {name} must be a whole number of {least} or more, found {value!r}.")
    return int(value)


def mapping(where: str, value: Any) -> dict[str, Any]:
    """Return `value` if it is an object. UsageError otherwise."""
    if not isinstance(value, dict):
        raise UsageError(f"{where}: an object was expected, found a {type(value).__name__}.")
    return value


def within_gamma(where: str, accepted: Sequence[int], gamma: int) -> None:
    """Raise UsageError if a round accepted more than gamma."""
    if accepted and max(accepted) > gamma:
        raise UsageError(
            f"{where}: a round accepted {max(accepted)} draft tokens, more than gamma {gamma}: give the draft length "
            f"of the source with --gamma {max(accepted)} or more."
        )


def named(values: dict[str, Any], number: int) -> tuple[str, str]:
    """Return the name of a line's prompt (its question_id, request_id or id, else its number) and its category."""
    ids = (values.get(key) for key in ("question_id", "request_id", "id"))
    name = next((str(each) for each in ids if each is not None), f"line {number}")
    return name, str(values.get("category") or "")
