"""Accepted lengths as JSONL, one text per line, per position (`positions`) or per round.

Per round: `{"accepted": [2, 0, ...]}` (draft tokens) or `{"accept_lengths": [3, 1, ...]}` (draft tokens and the
target's own one), or a bare list of which `bonus` says what it counts. Optional: question_id, request_id or id;
category. A first entry that stands for the prefill is left out.
"""

from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.lengths import LENGTHS, FirstLengths, drafters_of
from specdec.text.lines import BadLine, Line

from .imported import ImportChoices, Imported, ImportedText, imported
from .positions import PositionSets
from .reading import ForeignFile, counts, keys_of, needed_gamma, within_gamma

KIND = "accepted_lengths"
FIELDS = {"accepted": False, "accept_lengths": True}  # field: True if it counts the target's own token
NO_TIMES = "The source has no times: no speedup, no cost, and no account beyond acceptance."
NO_LAWS = "It has no target or drafter probabilities and no context lengths of rounds."
NO_OFFERS = (
    "It does not say what each round offered: every round is taken to have offered gamma tokens, so a drafter that "
    "proposed fewer looks as if it had been rejected."
)
NO_ENDS = (
    "It does not say which rounds the end of the text cut: every round that accepted fewer than gamma counts as an "
    "observed rejection."
)


def accepted_lengths(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the rounds of a trace, a data set for each drafter that it has lengths of.

    UsageError for both forms in one file, a length per round beyond gamma, a bare list without `bonus`; and for lines
    that cannot be used, named with file and line.
    """
    file, positions, rounds = ForeignFile(path, choices), PositionSets(), _Rounds(choices)
    forms: set[bool] = set()
    for line in file.lines():
        with file.line():
            by_position = bool(drafters_of(line.value))
            if by_position:
                positions.add(line, file, choices.field)
            else:
                rounds.add(line, file)
            forms.add(by_position)
        if len(forms) > 1:
            raise UsageError(f"{line.where}: lines per round and lines per position are mixed in one file.")
    notes = [NO_TIMES, NO_LAWS, *file.settled()]
    made = positions.made(path, KIND, choices, notes) if forms == {True} else [rounds.made(path, notes)]
    if not made:
        raise UsageError(f"{path} has no round: nothing was ever drafted in it.")
    return made


def recognises(value: Any) -> bool:
    """Return whether the first value of a file is of this kind."""
    if isinstance(value, dict):
        return bool(drafters_of(value)) or any(field in value for field in FIELDS)
    return isinstance(value, list)


class _Rounds:
    """The texts of a file of lengths per round, while it is read."""

    def __init__(self, choices: ImportChoices) -> None:
        self._choices = choices
        self._texts: list[tuple[str, str, list[int]]] = []  # lengths with the target's own token
        self._firsts = FirstLengths()

    def add(self, line: Line, file: ForeignFile) -> None:
        gamma, (label, lengths, counted) = needed_gamma(self._choices), self._listed(line)
        found = counts(line.where, label, lengths, least=int(counted), first=0)
        values = line.value if isinstance(line.value, dict) else {}
        prompt = values.get("prompt_token_ids")
        tokens = len(prompt) if isinstance(prompt, list) else None
        lengths = [length + (not counted) for length in found]
        self._firsts.add(lengths, tokens)
        placed = tokens is not None and lengths[:1] == [tokens]
        within_gamma(line.where, [length - 1 for length in lengths[placed:]], gamma)
        self._texts.append((*file.named(values, line.number), lengths))

    def _listed(self, line: Line) -> tuple[str, Any, bool]:
        """Return what a line's lengths are called, the lengths, and whether they count the target's own token."""
        where, _, value = line
        bonus = self._choices.bonus
        if isinstance(value, list):
            if bonus is None:
                raise UsageError(
                    f"{where}: a bare list does not say whether it counts the target's own token: add --bonus included "
                    "or --bonus excluded."
                )
            return "the list", value, bonus
        present = [key for key in FIELDS if key in value] if isinstance(value, dict) else []
        if len(present) != 1:
            has = f"the line has {keys_of(value)}" if isinstance(value, dict) else f"found a {type(value).__name__}"
            raise BadLine(
                f"{where}: one of the fields {', '.join(FIELDS)}, or NAME with {LENGTHS} below it, is expected; {has}."
            )
        (label,) = present
        return label, value[label], FIELDS[label] if bonus is None else bonus

    def made(self, path: Path, notes: list[str]) -> Imported:
        gamma, placeholders = needed_gamma(self._choices), self._firsts.are_placeholders
        texts = []
        for name, category, lengths in self._texts:
            accepted = [length - 1 for length in lengths[placeholders or lengths[:1] == [0] :]]
            within_gamma(f"{path} ({name})", accepted, gamma)
            texts.append(ImportedText(name, category, accepted, [gamma] * len(accepted)))
        said = [NO_OFFERS, NO_ENDS]
        if placeholders:
            said.append(
                f"The first entry of every text stands for the token that the prefill gives, not for a round: "
                f"{self._firsts.texts:,} entries are left out."
            )
        return imported(path, KIND, gamma, texts, [*notes, *said])
