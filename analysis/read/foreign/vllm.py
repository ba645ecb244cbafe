"""Per-request speculative metrics of vLLM, one request per line of a JSONL file.

Sources: vllm-project/vllm, docs on per-request acceptance metrics (`--per-request-spec-decode-metrics`, from 0.29) and
vllm/v1/spec_decode/metrics.py; ai-dynamo/aiperf, docs on per-request speculative-decoding acceptance. A line is a whole
response (its `metrics.speculative_decoding`; of a stream the last chunk), a record of AIPerf's profile_export.jsonl
(its `spec_decode_acceptance`, whose histogram has no empty places), or what stands below that key. Three forms: per
step (`detailed`): per_step_accepted, per_step_drafted; a histogram (`summary`): acceptance_histogram, or histogram,
with num_draft_tokens; and counters (`SpecDecodingStats`): num_drafts, num_draft_tokens, num_accepted_tokens,
num_accepted_tokens_per_pos. The last two have no order of rounds. None counts the bonus token.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.lines import BadLine, Line

from ..foreign_lines import MOST_ROUNDS, NO_ENDS, NO_TIMES, UNORDERED, ForeignFile, count, counts, keys_of, mapping
from ..imported import ImportChoices, Imported, ImportedText, imported, within_gamma

KIND = "vllm"
BELOW = ("spec_decode_acceptance", "metrics", "spec_decode_metrics", "speculative_decoding")
FORMS = ("per_step_accepted", "acceptance_histogram", "histogram", "num_accepted_tokens_per_pos")
SAME_OFFER = (
    "It does not say what each round offered, only the total: every round is taken to have offered gamma tokens."
)
NO_SILENT = (
    "It has no probabilities, no context lengths, and no rounds in which nothing was drafted: tokens per round are "
    "those of the steps that verified a draft."
)


@dataclass(frozen=True)
class RequestRounds:
    accepted: Sequence[int]  # draft tokens per round
    offered: Sequence[int] | None  # the same for offers; None where only totals are known
    drafted: int | None  # offers of all rounds together; None where not even that is known
    declared: int | None  # the most that a round may offer; None where the line does not say it
    reach: int  # the largest length that the line has a place for, whether it occurred or not

    def text(self, name: str, category: str, gamma: int) -> ImportedText:
        """Return the rounds of a text; each offered gamma tokens where the line does not say what was offered."""
        offered = [gamma] * len(self.accepted) if self.offered is None else self.offered
        return ImportedText(name, category, self.accepted, offered)


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the rounds of vLLM's requests; those without a draft are left out and counted. Gamma is what was given,
    what the lines declare, or else what they count. UsageError for totals that contradict themselves, and for a length
    beyond gamma.
    """
    file = ForeignFile(path, choices)
    requests: list[tuple[str, str, str, RequestRounds]] = []
    silent = warming = 0
    for line in file.lines():
        with file.line():
            rounds = _request(line)
            about = line.value.get("metadata")  # of AIPerf
            about = about if isinstance(about, Mapping) else {}
            if "warmup" in (about.get("benchmark_phase"), about.get("phase_kind")):
                warming += 1
                continue
            if rounds is None or not len(rounds.accepted):
                silent += 1
                continue
            who = file.named({"category": about.get("source_kind"), **line.value}, line.number)
            requests.append((line.where, *who, rounds))
    notes = [NO_TIMES, NO_SILENT, NO_ENDS, *file.settled()]
    every = [rounds for *_, rounds in requests]
    declared = max((rounds.declared or 0 for rounds in every), default=0)
    reach = max((rounds.reach for rounds in every), default=0)
    gamma = choices.gamma or declared or reach or choices.needed_gamma
    for where, _, _, rounds in requests:
        if rounds.declared not in (None, gamma):
            raise UsageError(
                f"{where}: num_spec_tokens is {rounds.declared}, but gamma is {gamma}: give --gamma {rounds.declared}, "
                "and files of one gamma each."
            )
        within_gamma(where, [*rounds.accepted, *(rounds.offered or [])], gamma)
    ordered = all(rounds.offered is not None for rounds in every)
    notes += [*([] if ordered else [UNORDERED, SAME_OFFER]), *short_notes(every, gamma)]
    if silent:
        notes.append(f"{silent:,} requests without any draft are left out.")
    if warming:
        notes.append(f"{warming:,} requests to warm the server up are left out.")
    texts = [rounds.text(name, category, gamma) for _, name, category, rounds in requests]
    return [imported(path, KIND, gamma, texts, notes, ordered=ordered)]


def recognises(value: Any) -> bool:
    return isinstance(value, Mapping) and any(form in _below(value) for form in FORMS)


def _below(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics themselves, below whatever keys they stand; nothing where a request has none."""
    for key in BELOW:
        if key in values and not any(form in values for form in FORMS):
            below = values[key]
            values = below if isinstance(below, Mapping) else {}
    return values


def _request(line: Line) -> RequestRounds | None:
    """Return the rounds of a line; None for a response that says that it has no speculative metrics."""
    where, values = line.where, mapping(line.where, line.value)
    metrics = _below(values)
    if not metrics and any(key in values for key in BELOW):
        return None
    declared = count(where, "num_spec_tokens", metrics["num_spec_tokens"]) if "num_spec_tokens" in metrics else None
    if "per_step_accepted" in metrics:
        accepted = counts(where, "per_step_accepted", metrics["per_step_accepted"])
        offered = counts(where, "per_step_drafted", metrics.get("per_step_drafted"))
        if len(accepted) != len(offered):
            raise BadLine(
                f"{where}: per_step_accepted has {len(accepted)} entries and per_step_drafted {len(offered)}."
            )
        if any(a > o for a, o in zip(accepted, offered, strict=True)):
            raise BadLine(f"{where}: a step accepted more draft tokens than it drafted.")
        return RequestRounds(accepted, offered, sum(offered), declared, max(offered, default=0))
    name = next((form for form in FORMS if form in metrics), None)
    if name is None:
        raise BadLine(f"{where}: none of {', '.join(FORMS)} is there; the line has {keys_of(metrics)}.")
    if name == "num_accepted_tokens_per_pos":
        per_position = counts(where, name, metrics[name])
        drafts = count(where, "num_drafts", metrics.get("num_drafts"))
        histogram = histogram_of(where, drafts, per_position, metrics.get("num_accepted_tokens"))
    else:
        dense = metrics[name]
        if isinstance(dense, Mapping):
            if not all(re.fullmatch(r"0|[1-9]\d{0,3}", str(length)) for length in dense):
                raise BadLine(f"{where}: {name} must have numbers of accepted tokens as keys, found {keys_of(dense)}.")
            dense = [dense.get(str(length), 0) for length in range(max(map(int, dense), default=0) + 1)]
        histogram = counts(where, name, dense)
    if sum(histogram) > MOST_ROUNDS:
        raise BadLine(f"{where}: {name} counts {sum(histogram):,} rounds, more than {MOST_ROUNDS:,}.")
    accepted = [length for length, number in enumerate(histogram) for _ in range(number)]
    drafted = count(where, "num_draft_tokens", metrics["num_draft_tokens"]) if "num_draft_tokens" in metrics else None
    if drafted is not None and drafted < sum(accepted):
        raise BadLine(f"{where}: {sum(accepted)} tokens were accepted but only {drafted} drafted.")
    return RequestRounds(accepted, None, drafted, declared, len(histogram) - 1)


def short_notes(requests: Sequence[RequestRounds], gamma: int) -> list[str]:
    """Return a sentence where the totals say that fewer tokens were offered than is assumed."""
    short = sum(
        max(0, gamma * len(rounds.accepted) - rounds.drafted)
        for rounds in requests
        if rounds.offered is None and rounds.drafted is not None
    )
    if not short:
        return []
    return [
        f"{short:,} draft tokens fewer were offered than gamma in every round: where a shorter draft was accepted "
        "whole, its round counts as a rejection, and alpha is too low."
    ]


def histogram_of(where: str, drafts: int, per_position: Sequence[int], total: Any = None) -> list[int]:
    """Return rounds by accepted tokens from counters: position k counts the rounds that accepted more than k."""
    reached = [drafts, *per_position, 0]
    if any(later > earlier for earlier, later in zip(reached, reached[1:], strict=False)):
        raise BadLine(f"{where}: num_accepted_tokens_per_pos must not rise, nor begin above num_drafts.")
    if total is not None and count(where, "num_accepted_tokens", total) != sum(reached[1:]):
        raise BadLine(
            f"{where}: num_accepted_tokens is {total}, but num_accepted_tokens_per_pos adds up to {sum(reached[1:])}."
        )
    return [earlier - later for earlier, later in zip(reached, reached[1:], strict=False)]
