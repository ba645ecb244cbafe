"""Accepted-length traces as JSONL, one prompt per line, in one of two forms.

Per round: `{"accepted": [2, 0, ...]}` (draft tokens) or `{"accept_lengths": [3, 1, ...]}` (draft tokens and the
target's own one), or a bare list of which `bonus` says what it counts. Optional: question_id, request_id or id;
category.

Per position, as replay traces have it: `{"prompt_token_ids": [...], "generated_token_ids": [...], "acc_NAME":
{"acc_len": [...]}}`. acc_len[t] is the number of tokens that a round starting at token t would commit at most, the
target's own included, so such a round accepts min(acc_len[t] - 1, gamma). The text is walked from round to round
(THEORY 4.7); an average over all positions is another quantity, because rounds start right after rejections. Token ids
are not needed; where they stand beside the lengths they may come from another run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specdec.errors import UsageError

from .imported import (
    Choices,
    Imported,
    ImportedText,
    PositionLengths,
    PositionText,
    counts,
    imported,
    mapping,
    named,
    needed_gamma,
    plain_name,
    read_lines,
    walked,
    within_gamma,
)

KIND = "accepted_lengths"
LENGTHS = "acc_len"
FIELDS = {"accepted": False, "accept_lengths": True}  # field: True if it counts the target's own token
NO_TIMES = "The source has no times: no speedup, no cost, and no account beyond acceptance."
NO_OFFERS = (
    "It does not say what each round offered: every round is taken to have offered gamma tokens, so a drafter that "
    "proposed fewer looks as if it had been rejected."
)
NO_ENDS = (
    "It does not say which rounds the end of the text cut: every round that accepted fewer than gamma counts as an "
    "observed rejection."
)


def accepted_lengths(path: Path, choices: Choices) -> list[Imported]:
    """Return the rounds of a trace, a data set for each drafter that it has lengths of.

    UsageError with file and line for another form, for both forms in one file, for a length per round beyond gamma.
    """
    texts: list[ImportedText] = []
    positions: dict[str, list[PositionText]] = {}
    forms: set[str] = set()
    for number, (where, value) in enumerate(read_lines(path), 1):
        if isinstance(value, dict) and any(is_by_position(item) for item in value.values()):
            forms.add("position")
            for key, text in _by_position(where, value, number, choices.field).items():
                positions.setdefault(key, []).append(text)
        else:
            forms.add("round")
            texts.append(_listed(where, value, number, needed_gamma(choices), choices.bonus))
        if len(forms) > 1:
            raise UsageError(f"{where}: lines per round and lines per position are mixed in one file.")
    notes = [NO_TIMES, "It has no target or drafter probabilities and no context lengths of rounds: no alpha.text."]
    if forms != {"position"}:
        return [imported(path, KIND, needed_gamma(choices), texts, [*notes, NO_OFFERS, NO_ENDS])]
    return [_positions(path, key, found, choices, notes, len(positions) > 1) for key, found in positions.items()]


def _positions(
    path: Path, key: str, texts: Sequence[PositionText], choices: Choices, notes: Sequence[str], several: bool
) -> Imported:
    """Make the data set of one drafter, walked at the gamma that was given or else at the longest offer."""
    longest = max((int(text.lengths.max()) - 1 for text in texts if len(text.lengths)), default=0)
    gamma = choices.gamma or max(1, longest)
    said = [
        *notes,
        "Lengths are per position: rounds were made by walking each text from round to round at this gamma.",
    ]
    if longest < gamma:
        said.append(
            f"No recorded length accepts more than {longest} draft tokens: if the drafter was never asked for "
            f"more, rounds at gamma {gamma} that look like rejections were cut by the recording."
        )
    lengths = PositionLengths(tuple(texts), longest)
    rounds = [walked(text, gamma) for text in texts]
    name = f"{plain_name(path)}: {key}" if several else None
    return imported(path, KIND, gamma, rounds, said, name=name, by_position=lengths)


def _listed(where: str, value: Any, number: int, gamma: int, bonus: bool | None) -> ImportedText:
    name, category = f"line {number}", ""
    if isinstance(value, list):
        if bonus is None:
            raise UsageError(
                f"{where}: a bare list does not say whether it counts the target's own token: add --bonus included "
                "or --bonus excluded."
            )
        label, lengths, counted = "the list", value, bonus
    else:
        values = mapping(where, value)
        present = [key for key in FIELDS if key in values]
        if len(present) != 1:
            raise UsageError(
                f"{where}: one of the fields {', '.join(FIELDS)}, or generated_token_ids with acc_NAME.acc_len, is "
                f"expected; the line has {', '.join(sorted(values)) or 'none'}."
            )
        (label,) = present
        lengths, counted = values[label], FIELDS[label] if bonus is None else bonus
        name, category = named(values, number)
    accepted = [length - counted for length in counts(where, label, lengths, least=int(counted))]
    within_gamma(where, accepted, gamma)
    return ImportedText(name, category, accepted, [gamma] * len(accepted))


def is_by_position(item: Any) -> bool:
    """Return whether a field of a line has lengths by position."""
    return isinstance(item, dict) and LENGTHS in item


def _by_position(where: str, values: dict[str, Any], number: int, field: str | None) -> dict[str, PositionText]:
    """Return the lengths of a line by the drafter's field: all of them, or the chosen one."""
    found = [key for key, item in values.items() if is_by_position(item)]
    if field is not None and field not in found:
        raise UsageError(f"{where}: no {field}.{LENGTHS}; the line has {', '.join(found)}.")
    prompt = values.get("prompt_token_ids")
    context = len(prompt) or None if isinstance(prompt, list) else None
    name, category = named(values, number)
    ended = values.get("finish") == "end_token"
    texts = {}
    for key in found if field is None else [field]:
        lengths = np.array(counts(where, f"{key}.{LENGTHS}", values[key][LENGTHS], least=1), dtype=np.int32)
        texts[key] = PositionText(name, category, 0, lengths, context, ended)
    return texts
