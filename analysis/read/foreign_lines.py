"""A foreign file while it is read: its lines, the names of its texts, and what cannot be used."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specdec.text.lengths import whole, whole_numbers
from specdec.text.lines import BadLine, Line, LineFaults, Names, json_file, printable

from .imported import ImportChoices

NO_TIMES = "The source has no times: no speedup, no cost, and no account beyond acceptance."
NO_OFFERS = (
    "It does not say what each round offered: every round is taken to have offered gamma tokens, so a drafter that "
    "proposed fewer looks as if it had been rejected."
)
NO_ENDS = (
    "It does not say which rounds the end of the text cut: every round that accepted fewer than gamma counts as an "
    "observed rejection."
)
UNORDERED = (
    "It has totals per request and no order of rounds: tests of memory between rounds and of the previous round, and "
    "the Markov model, are impossible."
)
IDS = ("question_id", "request_id", "id")
MOST_COUNTED = 2**53  # beyond it a floating-point counter no longer counts
MOST_ROUNDS = 10_000_000  # of one text: beyond it a count is taken for a fault


class ForeignFile:
    """One file of JSON lines."""

    def __init__(self, path: Path, choices: ImportChoices) -> None:
        self.path = path
        self.faults = LineFaults(choices.skip_bad)
        self.line = self.faults.line  # a context that keeps the BadLine raised in it, to be named with the others
        self.names = Names()
        self.empty = 0  # texts without a round: importers count them here

    def lines(self) -> Iterator[Line]:
        """Yield ("file:line", number, value) of every line that is not blank. UsageError for no file or none in it."""
        yield from json_file(self.path, f"The file {self.path}", self.faults, "one JSON value per line is expected")

    def named(self, values: Mapping[str, Any], number: int) -> tuple[str, str]:
        """Return the name of a line's prompt, told apart from earlier ones, and its category."""
        ids = (values.get(key) for key in IDS)
        name = next((str(value) for value in ids if isinstance(value, str | int | float)), f"line {number}")
        category = values.get("category")
        return self.names(printable(name)), printable(category if isinstance(category, str) else "")

    def settled(self) -> list[str]:
        """Return notes on what was left out or told apart. UsageError for bad lines that are not to be left out."""
        self.faults.settle("--skip-bad")
        notes = self.faults.notes()
        if self.names.repeated:
            notes.append(
                f"{self.names.repeated:,} lines repeat the id of an earlier one: each text stands as a prompt of its "
                "own (a#2, a#3)."
            )
        if self.empty:
            notes.append(f"{self.empty:,} texts without a round are left out.")
        return notes


def counts(where: str, name: str, value: Any, least: int = 0, first: int | None = None) -> list[int]:
    """Return `value` as a list of whole numbers, `least` or more, the first `first` or more. BadLine for others."""
    return list(whole_numbers(where, name, value, least, first))


def count(where: str, name: str, value: Any, least: int = 0) -> int:
    """Return `value` as a whole number, `least` or more; 3.0 counts as 3. BadLine otherwise."""
    number = whole(value)
    if number is None or not least <= number <= MOST_COUNTED:
        raise BadLine(f"{where}: {name} must be a whole number of {least} or more, found {value!r:.40}.")
    return number


def mapping(where: str, value: Any) -> dict[str, Any]:
    """Return `value` if it is an object. BadLine otherwise."""
    if not isinstance(value, dict):
        raise BadLine(f"{where}: an object was expected, found a {type(value).__name__}.")
    return value


def keys_of(values: Mapping[str, Any]) -> str:
    """Return the keys of a line for messages, the first ones of many."""
    names = [f"{key:.40}" for key in sorted(values)[:12]]
    return ", ".join([*names, *(["..."] if len(values) > len(names) else [])]) or "none"
