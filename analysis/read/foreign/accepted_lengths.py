"""Accepted lengths as JSONL, one text per line, per round or per position.

Per round: `{"accepted": [2, 0, ...]}` (draft tokens) or `{"accept_lengths": [3, 1, ...]}` (draft tokens and the
target's own one), or a bare list of which `bonus` says what it counts. Optional: question_id, request_id or id;
category. A first entry that stands for the prefill is left out.

Per position, as traces for replay have them (SpecDecode-Bench/simulator, data/; Liu et al., "Speculative Decoding:
Performance or Illusion?", 2601.11580): below any number of keys `{"acc_NAME": {"acc_len": [...]}}`, each a drafter and
a data set of its own. acc_len[t] is the number of tokens that a round starting at token t would commit at most, the
target's own included, so such a round accepts min(acc_len[t] - 1, gamma). The text is walked from round to round
(theory.md 4.7); an average over all positions is another quantity, because rounds start right after rejections.
acc_len[0] stands for the token of the prefill. Token ids are not needed; where they stand beside the lengths they may
come from another run.
"""

from pathlib import Path
from typing import Any

import numpy as np

from specdec.errors import UsageError
from specdec.text.lengths import LENGTHS, FirstLengths, drafters_of, lengths_by_position
from specdec.text.lines import BadLine, Line

from ..foreign_lines import NO_ENDS, NO_OFFERS, NO_TIMES, ForeignFile, counts, keys_of
from ..imported import SHOWN, ImportChoices, Imported, ImportedText, PositionText, imported, within_gamma

KIND = "accepted_lengths"
FIELDS = {"accepted": False, "accept_lengths": True}  # field: True if it counts the target's own token
NO_LAWS = "It has no target or drafter probabilities and no context lengths of rounds."
WALKED = "Lengths are per position: rounds were made by walking each text from round to round at this gamma."


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the rounds of a trace, a data set for each drafter that it has lengths of. UsageError for both forms in a
    file, a length per round beyond gamma, and a bare list without `bonus`.
    """
    file, positions, rounds = ForeignFile(path, choices), _Positions(choices), _Rounds(choices)
    forms: set[bool] = set()
    for line in file.lines():
        with file.line():
            by_position = bool(drafters_of(line.value))
            (positions if by_position else rounds).add(line, file)
            forms.add(by_position)
        if len(forms) > 1:
            raise UsageError(f"{line.where}: lines per round and lines per position are mixed in one file.")
    notes = [NO_TIMES, NO_LAWS, *file.settled()]
    made = positions.made(path, notes) if forms == {True} else [rounds.made(path, notes)]
    if not made:
        raise UsageError(f"{path} has no round: nothing was ever drafted in it.")
    return made


def recognises(value: Any) -> bool:
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
        gamma, bonus = self._choices.needed_gamma, self._choices.bonus
        where, _, value = line
        values = value if isinstance(value, dict) else {}
        if isinstance(value, list):
            if bonus is None:
                raise UsageError(
                    f"{where}: a bare list does not say whether it counts the target's own token: add --bonus included "
                    "or --bonus excluded."
                )
            label, listed, own = "the list", value, bonus
        else:
            present = [key for key in FIELDS if key in values]
            if len(present) != 1:
                has = f"the line has {keys_of(values)}" if values is value else f"found a {type(value).__name__}"
                raise BadLine(
                    f"{where}: one of the fields {', '.join(FIELDS)}, or NAME with {LENGTHS} below it, is expected; "
                    f"{has}."
                )
            label, listed = present[0], values[present[0]]
            own = FIELDS[label] if bonus is None else bonus
        lengths = [length + (not own) for length in counts(where, label, listed, least=int(own), first=0)]
        prompt = values.get("prompt_token_ids")
        tokens = len(prompt) if isinstance(prompt, list) else None
        self._firsts.add(lengths, tokens)
        placed = tokens is not None and lengths[:1] == [tokens]
        within_gamma(where, [length - 1 for length in lengths[placed:]], gamma)
        self._texts.append((*file.named(values, line.number), lengths))

    def made(self, path: Path, notes: list[str]) -> Imported:
        gamma, placeholders = self._choices.needed_gamma, self._firsts.are_placeholders
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


class _Positions:
    """The data sets of a file of lengths per position, while it is read: one for each drafter."""

    def __init__(self, choices: ImportChoices) -> None:
        self._choices = choices
        self._texts: dict[str, list[PositionText]] = {}
        self._firsts: dict[str, FirstLengths] = {}

    def add(self, line: Line, file: ForeignFile) -> None:
        """Add the text of a line to the chosen drafter, or to all that it has lengths of. BadLine lacks the chosen."""
        values: dict[str, Any] = line.value
        field, drafters = self._choices.field, drafters_of(values)
        if field is not None and field not in drafters:
            raise BadLine(f"{line.where}: no {field}.{LENGTHS}; the line has {', '.join(drafters)}.")
        prompt = values.get("prompt_token_ids")
        context = len(prompt) or None if isinstance(prompt, list) else None
        ended = values.get("finish") == "end_token"
        lengths: dict[str, tuple[int, ...]] = {}
        for key in drafters if field is None else [field]:
            with file.line():
                lengths[key] = lengths_by_position(line.where, key, values[key][LENGTHS])
        file.empty += sum(not own for own in lengths.values())
        lengths = {key: own for key, own in lengths.items() if own}
        who = file.named(values, line.number) if lengths else ("", "")
        for key, own in lengths.items():
            self._firsts.setdefault(key, FirstLengths()).add(own, context)
            text = PositionText(*who, 0, np.array(own, dtype=np.int32), context, ended)
            self._texts.setdefault(key, []).append(text)

    def made(self, path: Path, notes: list[str]) -> list[Imported]:
        """Return one data set for each drafter, walked at the given gamma or else at its longest length."""
        made = []
        for key, texts in self._texts.items():
            firsts = self._firsts[key]
            for text in texts:
                if firsts.are_placeholders or text.lengths[0] == 0:
                    text.lengths[0] = 1  # a placeholder, which may be larger or 0, counts as nothing accepted
            longest = max(int(text.lengths.max()) - 1 for text in texts)
            gamma = self._choices.gamma or min(max(1, longest), SHOWN)
            said = [*notes, *([firsts.note(key)] if firsts.are_placeholders else []), WALKED]
            if longest < gamma:
                said.append(
                    f"No recorded length accepts more than {longest} draft tokens: if the drafter was never asked for "
                    f"more, rounds at gamma {gamma} that look like rejections were cut by the recording."
                )
            if longest > SHOWN:
                said.append(
                    f"Drafts reach up to {longest} tokens; gammas are shown up to {SHOWN}, larger ones with --gamma."
                )
            made.append(imported(path, KIND, gamma, texts, said, part=key if len(self._texts) > 1 else ""))
        return made
