"""Accepted lengths per position, as traces for replay have them (SpecDecode-Bench/simulator, data/; Liu et al.,
"Speculative Decoding: Performance or Illusion?", 2601.11580): one text per line, and below any number of keys
`{"acc_NAME": {"acc_len": [...]}}`, each a drafter and a data set of its own.

acc_len[t] is the number of tokens that a round starting at token t would commit at most, the target's own included, so
such a round accepts min(acc_len[t] - 1, gamma). The text is walked from round to round (theory.md 4.7); an average over
all positions is another quantity, because rounds start right after rejections. acc_len[0] stands for the token of the
prefill. Token ids are not needed; where they stand beside the lengths they may come from another run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specdec.text.lengths import LENGTHS, FirstLengths, drafters_of, lengths_by_position
from specdec.text.lines import BadLine, Line

from .imported import ImportChoices, Imported, PositionLengths, PositionText, imported, plain_name, walked
from .reading import ForeignFile


class PositionSets:
    """The data sets of a file of lengths per position, while it is read: one for each drafter."""

    def __init__(self) -> None:
        self._texts: dict[str, list[PositionText]] = {}
        self._firsts: dict[str, FirstLengths] = {}

    def add(self, line: Line, file: ForeignFile, field: str | None) -> None:
        """Add the text of a line to the chosen drafter, or to all that it has lengths of. BadLine lacks the chosen."""
        values: dict[str, Any] = line.value
        found = drafters_of(values)
        if field is not None and field not in found:
            raise BadLine(f"{line.where}: no {field}.{LENGTHS}; the line has {', '.join(found)}.")
        prompt = values.get("prompt_token_ids")
        context = len(prompt) or None if isinstance(prompt, list) else None
        ended = values.get("finish") == "end_token"
        read: dict[str, tuple[int, ...]] = {}
        for key in found if field is None else [field]:
            with file.line():
                read[key] = lengths_by_position(line.where, key, values[key][LENGTHS])
        file.empty += sum(not lengths for lengths in read.values())
        read = {key: lengths for key, lengths in read.items() if lengths}
        who = file.named(values, line.number) if read else ("", "")
        for key, lengths in read.items():
            self._firsts.setdefault(key, FirstLengths()).add(lengths, context)
            text = PositionText(*who, 0, np.array(lengths, dtype=np.int32), context, ended)
            self._texts.setdefault(key, []).append(text)

    def made(self, path: Path, kind: str, choices: ImportChoices, notes: list[str]) -> list[Imported]:
        """Return one data set for each drafter, walked at the given gamma or else at its longest length."""
        several = len(self._texts) > 1
        return [self._made(path, kind, key, choices, notes, several) for key in self._texts]

    def _made(
        self, path: Path, kind: str, key: str, choices: ImportChoices, notes: list[str], several: bool
    ) -> Imported:
        firsts = self._firsts[key]
        texts = [_begun(text, firsts.are_placeholders) for text in self._texts[key]]
        longest = max(int(text.lengths.max()) - 1 for text in texts)
        gamma = choices.gamma or max(1, longest)
        said = [*notes, *([firsts.note(key)] if firsts.are_placeholders else [])]
        said.append(
            "Lengths are per position: rounds were made by walking each text from round to round at this gamma."
        )
        if longest < gamma:
            said.append(
                f"No recorded length accepts more than {longest} draft tokens: if the drafter was never asked for "
                f"more, rounds at gamma {gamma} that look like rejections were cut by the recording."
            )
        name = f"{plain_name(path)}: {key}" if several else None
        lengths = PositionLengths(tuple(texts), longest)
        rounds = [walked(text, gamma) for text in texts]
        return replace(imported(path, kind, gamma, rounds, said, name=name), by_position=lengths)


def _begun(text: PositionText, placeholders: bool) -> PositionText:
    """Return a text whose first length is one: a placeholder, which may be larger or 0, counts as nothing accepted."""
    if not placeholders and text.lengths[0] > 0:
        return text
    lengths = text.lengths.copy()
    lengths[0] = 1
    return replace(text, lengths=lengths)
