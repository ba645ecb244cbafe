"""Speculative metrics of vLLM, one request per line of a JSONL file.

Three forms, all written by vLLM, alone on the line or below `spec_decode_metrics` or `speculative_decoding`:
per step (`--per-request-spec-decode-metrics detailed`): per_step_accepted, per_step_drafted; a histogram (`summary`):
acceptance_histogram, or histogram as the Python object names it, with num_draft_tokens; and counters
(`SpecDecodingStats`): num_drafts, num_draft_tokens, num_accepted_tokens, num_accepted_tokens_per_pos. The last two have
no order of rounds.
"""

from pathlib import Path
from typing import Any

from specdec.errors import UsageError

from .accepted_lengths import NO_ENDS, NO_TIMES
from .imported import (
    Choices,
    Imported,
    ImportedText,
    count,
    counts,
    imported,
    mapping,
    named,
    needed_gamma,
    read_lines,
    within_gamma,
)

KIND = "vllm"
BELOW = ("spec_decode_metrics", "speculative_decoding")
UNORDERED = (
    "It has totals per request and no order of rounds: tests of memory between rounds and of the previous round, and "
    "the Markov model, are impossible."
)
SAME_OFFER = (
    "It does not say what each round offered, only the total: every round is taken to have offered gamma tokens."
)


def vllm(path: Path, choices: Choices) -> list[Imported]:
    """Return the rounds of vLLM's requests. Requests without a draft are left out and counted.

    UsageError with file and line for another form, totals that contradict themselves, or a length beyond gamma.
    """
    gamma = needed_gamma(choices)
    texts: list[ImportedText] = []
    forms: set[str] = set()
    silent = short = 0
    for number, (where, value) in enumerate(read_lines(path), 1):
        values = mapping(where, value)
        metrics = _metrics(where, values)
        form, accepted, offered, missing = _rounds(where, metrics, gamma)
        within_gamma(where, [*accepted, *offered], gamma)
        if not accepted:
            silent += 1
            continue
        forms.add(form)
        short += missing
        texts.append(ImportedText(*named(values, number), accepted, offered))
    ordered = forms <= {"steps"}
    notes = [
        NO_TIMES,
        "It has no probabilities, no context lengths, and no rounds in which nothing was drafted: tokens per round "
        "are those of the steps that verified a draft.",
        NO_ENDS,
    ]
    if not ordered:
        notes += [UNORDERED, SAME_OFFER]
    if short:
        notes.append(
            f"{short:,} draft tokens fewer were offered than gamma in every round: where a shorter draft was accepted "
            "whole, its round counts as a rejection, and alpha is too low."
        )
    if silent:
        notes.append(f"{silent:,} requests without any draft are left out.")
    return [imported(path, KIND, gamma, texts, notes, ordered=ordered)]


def _metrics(where: str, values: dict[str, Any]) -> dict[str, Any]:
    for key in BELOW:
        if key in values:
            return mapping(f"{where} ({key})", values[key])
    return values


def _rounds(where: str, metrics: dict[str, Any], gamma: int) -> tuple[str, list[int], list[int], int]:
    """Return the form, accepted and offered per round, and how many offered tokens are missing to gamma per round."""
    if "per_step_accepted" in metrics:
        accepted = counts(where, "per_step_accepted", metrics["per_step_accepted"])
        offered = counts(where, "per_step_drafted", metrics.get("per_step_drafted"))
        if len(accepted) != len(offered):
            raise UsageError(
                f"{where}: per_step_accepted has {len(accepted)} entries and per_step_drafted {len(offered)}."
            )
        if any(a > o for a, o in zip(accepted, offered, strict=True)):
            raise UsageError(f"{where}: a step accepted more draft tokens than it drafted.")
        return "steps", accepted, offered, 0
    declared = metrics.get("num_spec_tokens", gamma)
    if declared != gamma:
        raise UsageError(f"{where}: num_spec_tokens is {declared!r}, but gamma is {gamma}: give --gamma {declared}.")
    name = next((key for key in ("acceptance_histogram", "histogram") if key in metrics), None)
    if name is not None:
        histogram = counts(where, name, metrics[name])
    elif "num_accepted_tokens_per_pos" in metrics:
        histogram = _histogram(where, metrics)
    else:
        raise UsageError(
            f"{where}: none of per_step_accepted, acceptance_histogram, histogram or num_accepted_tokens_per_pos is "
            f"there; the line has {', '.join(sorted(metrics)) or 'nothing'}."
        )
    accepted = [length for length, number in enumerate(histogram) for _ in range(number)]
    drafted = count(where, "num_draft_tokens", metrics.get("num_draft_tokens", gamma * len(accepted)))
    if drafted < sum(accepted):
        raise UsageError(f"{where}: {sum(accepted)} tokens were accepted but only {drafted} drafted.")
    return "totals", accepted, [gamma] * len(accepted), max(0, gamma * len(accepted) - drafted)


def _histogram(where: str, metrics: dict[str, Any]) -> list[int]:
    """Return rounds by accepted tokens from counters: position k counts the rounds that accepted more than k."""
    drafts = count(where, "num_drafts", metrics.get("num_drafts"))
    reached = [drafts, *counts(where, "num_accepted_tokens_per_pos", metrics["num_accepted_tokens_per_pos"]), 0]
    if any(later > earlier for earlier, later in zip(reached, reached[1:], strict=False)):
        raise UsageError(f"{where}: num_accepted_tokens_per_pos must not rise, nor begin above num_drafts.")
    total = metrics.get("num_accepted_tokens")
    if total is not None and count(where, "num_accepted_tokens", total) != sum(reached[1:]):
        raise UsageError(
            f"{where}: num_accepted_tokens is {total}, but num_accepted_tokens_per_pos adds up to {sum(reached[1:])}."
        )
    return [earlier - later for earlier, later in zip(reached, reached[1:], strict=False)]
