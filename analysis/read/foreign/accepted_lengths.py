"""Accepted-length traces as JSONL, one prompt per line, in one of two forms.

Per round: `{"accepted": [2, 0, ...]}` (draft tokens) or `{"accept_lengths": [3, 1, ...]}` (draft tokens and the
target's own one), or a bare list of which `bonus` says what it counts. Optional: question_id, request_id or id;
category.

Per position, as replay traces have it: `{"prompt_token_ids": [...], "generated_token_ids": [...], "acc_NAME":
{"acc_len": [...]}}`. acc_len[t] is the number of tokens that a round starting at token t would commit at most, the
target's own included, so such a round accepts min(acc_len[t] - 1, gamma). The text is walked from round to round
(theory.md 4.7); an average over all positions is another quantity, because rounds start right after rejections.
"""

from pathlib import Path
from typing import Any

from specdec.errors import UsageError

from .imported import Imported, ImportedText, counts, imported, mapping, named, read_lines, within_gamma

KIND = "accepted_lengths"
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


def accepted_lengths(path: Path, gamma: int, bonus: bool | None = None, field: str | None = None) -> Imported:
    """Return the rounds of a trace.

    bonus: True if lengths per round include the target's own token (None: by the field's name). field: the acc_NAME to
    read from a per-position trace (None: its only one). UsageError with file and line for another form, for both
    forms in one file, or for a length beyond gamma.
    """
    texts: list[ImportedText] = []
    forms: set[str] = set()
    longest = 0
    for number, (where, value) in enumerate(read_lines(path), 1):
        if isinstance(value, dict) and "generated_token_ids" in value:
            forms.add("position")
            text, reach = _walked(where, value, number, gamma, field)
            longest = max(longest, reach)
        else:
            forms.add("round")
            text = _listed(where, value, number, gamma, bonus)
        if len(forms) > 1:
            raise UsageError(f"{where}: lines per round and lines per position are mixed in one file.")
        texts.append(text)
    notes = [NO_TIMES, "It has no target or drafter probabilities and no context lengths of rounds: no alpha.text."]
    if forms == {"round"}:
        notes += [NO_OFFERS, NO_ENDS]
    else:
        notes.append(
            "Lengths are per position: rounds were made by walking each text from round to round at this gamma."
        )
        if longest < gamma:
            notes.append(
                f"No recorded length accepts more than {longest} draft tokens: if the drafter was never asked for "
                f"more, rounds at gamma {gamma} that look like rejections were cut by the recording."
            )
    return imported(path, KIND, gamma, texts, notes)


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


def _walked(where: str, value: Any, number: int, gamma: int, field: str | None) -> tuple[ImportedText, int]:
    """Walk a text from round to round; return it and the most draft tokens that any of its positions accepts."""
    values = mapping(where, value)
    tokens = counts(where, "generated_token_ids", values["generated_token_ids"])
    key = _chosen(where, values, field)
    lengths = counts(where, f"{key}.acc_len", mapping(where, values[key]).get("acc_len"), least=1)
    if len(lengths) != len(tokens):
        raise UsageError(
            f"{where}: {key}.acc_len has {len(lengths)} entries for {len(tokens)} generated tokens; one for each is "
            "expected."
        )
    prompt = counts(where, "prompt_token_ids", values.get("prompt_token_ids", []))
    accepted, cut = walk(lengths, gamma)
    offered = [gamma] * len(accepted)
    text = ImportedText(*named(values, number), accepted, offered, cut, context=len(prompt) or None)
    return text, max(lengths, default=1) - 1


def walk(lengths: list[int], gamma: int) -> tuple[list[int], str]:
    """Walk lengths by position; return accepted tokens per round, and how the last round was cut ("" if it was not).

    A round whose accepted tokens alone reach the end of the text is cut there, so it is no rejection.
    """
    accepted: list[int] = []
    start, end = 0, len(lengths)
    while start < end:
        take = min(lengths[start] - 1, gamma)
        if take >= end - start:
            accepted.append(end - start)
            return accepted, "limit"
        accepted.append(take)
        start += take + 1
    return accepted, ""


def _chosen(where: str, values: dict[str, Any], field: str | None) -> str:
    found = [key for key, item in values.items() if isinstance(item, dict) and "acc_len" in item]
    if field is not None:
        if field not in found:
            raise UsageError(f"{where}: no {field}.acc_len; the line has {', '.join(found) or 'no acc_len at all'}.")
        return field
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise UsageError(f"{where}: one object with acc_len is expected, found {names}: choose with --field NAME.")
    return found[0]
