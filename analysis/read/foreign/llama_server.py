"""Answers of llama.cpp's server (ggml-org/llama.cpp, tools/server), one a line: responses of `/completion` or
`/v1/chat/completions` with their `timings`, or what `python -m specdec.explain ADDRESS` keeps of them, which has the
server's counters after every round too (`steps`, by `timings_per_token`).

Source: server_slot_stats in tools/server/server-common.h, server-context.cpp. The first token of a text comes out of
the prompt's call: predicted_n counts it, predicted_ms begins with it, and it takes no round. All tokens of a round are
counted at one time. draft_n_accepted counts the last round whole, even where the text ends within it. A token that ends
within a character is counted with the next one, so a round may be silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import BadLine

from ..foreign_lines import MOST_ROUNDS, NO_ENDS, UNORDERED, ForeignFile, count, counts, keys_of, mapping
from ..imported import ImportChoices, Imported, ImportedText, imported, within_gamma
from ..load_points import LoadFile

KIND = "llama_server"
LOAD_FILES = (  # what writes them: how they begin
    "llama.cpp's server, a response a line: "
    '{"timings": {"prompt_n": 190, "prompt_ms": 50.1, "predicted_n": 75,  "predicted_ms": 1600.0, "draft_n": 70, '
    '"draft_n_accepted": 40}, ...}'
)
FIRST = "The first token of each text comes out of the prompt's call and is no round; times are those of whole texts."
TOTALS = "It has sums of each text alone: a text that ended within a round has fewer rounds here than it took."


@dataclass(frozen=True)
class Answer:
    """The counters of one response."""

    tokens: int  # written, the first one apart
    rounds: int  # that wrote them
    accepted: int  # draft tokens of all rounds, as `drafted`
    drafted: int
    prompt_n: int  # tokens of the prompt that were read, those of its cache apart
    prompt_ms: float
    predicted_ms: float  # of all rounds
    ended: str  # why the text ended, "limit" or "end_token"; "" where the response does not say it
    by_round: list[tuple[int, int, int]] | None  # accepted, offered, committed; None where it has sums only

    @property
    def seconds(self) -> float:
        """The time of the whole text, its prompt included."""
        return (self.prompt_ms + self.predicted_ms) / 1e3


def answered(where: str, value: Any) -> Answer:
    """Return what a response says. BadLine for counters that cannot be, such as clocks that run backwards."""
    timings = mapping(where, mapping(where, value).get("timings"))
    n, accepted, drafted, prompt = (
        count(where, name, timings.get(name, least if least == 0 else None), least)
        for name, least in (("predicted_n", 1), ("draft_n_accepted", 0), ("draft_n", 0), ("prompt_n", 0))
    )
    prompt_ms, predicted_ms = _times(where, [timings.get(name) for name in ("prompt_ms", "predicted_ms")])
    if accepted > drafted:
        raise BadLine(f"{where}: draft_n_accepted is {accepted}, more than draft_n, {drafted}.")
    ended = {"eos": "end_token", "limit": "limit"}.get(str(mapping(where, value).get("stop_type")), "")
    by_round = _by_round(where, mapping(where, value["steps"])) if "steps" in value else None
    rounds = max(n - 1 - accepted, int(n > 1)) if by_round is None else len(by_round)
    return Answer(n - 1, rounds, accepted, drafted, prompt, prompt_ms, predicted_ms, ended, by_round)


def _times(where: str, values: Any) -> list[float]:
    if isinstance(values, list) and all(type(time) in (int, float) and 0 <= time < 1e12 for time in values):
        return values
    raise BadLine(f"{where}: prompt_ms and predicted_ms must be milliseconds of 0 or more, found {values!r:.80}.")


def _by_round(where: str, steps: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return what each round accepted, was offered and committed, by the counters after each."""
    written, drafted, taken = (counts(where, name, steps.get(name)) for name in _COUNTED)
    columns = (written, drafted, taken, _times(where, steps.get("predicted_ms")))
    if len({len(column) for column in columns}) > 1 or not written:
        raise BadLine(f"{where}: steps needs lists of one length: predicted_ms, {', '.join(_COUNTED)}.")
    if written[-1] > MOST_ROUNDS:
        raise BadLine(f"{where}: predicted_n is {written[-1]:,}, more than {MOST_ROUNDS:,}.")
    if any(after < before for column in columns for before, after in pairwise(column)):
        raise BadLine(f"{where}: a counter or the clock of steps runs backwards: leave that answer out.")
    rounds: list[tuple[int, int, int]] = []
    wrote = written[0]  # tokens that are accounted for
    for (_, offer, took), (total, offers, taking) in pairwise(zip(written, drafted, taken, strict=True)):
        wrote += taking - took + 1
        silent = max(0, total - wrote)  # rounds that showed no token
        rounds += [*[(0, 0, 1)] * silent, (taking - took, offers - offer, taking - took + 1)]
        wrote += silent
    if rounds and wrote > written[-1]:
        accepted, offered, committed = rounds[-1]
        rounds[-1] = (accepted, offered, committed - (wrote - written[-1]))
    if any(accepted > offered or committed < 1 for accepted, offered, committed in rounds):
        raise BadLine(f"{where}: the counters of steps contradict themselves.")
    return rounds


_COUNTED = ("predicted_n", "draft_n", "draft_n_accepted")


def read(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the rounds of the answers, or their sums where they have no `steps`. UsageError for both forms in one
    file, and for a server that never drafted.
    """
    file = ForeignFile(path, choices)
    answers = [*_answers(file)]
    settled = file.settled()
    forms = {answer.by_round is None for *_, answer in answers}
    if len(forms) > 1:
        raise UsageError(f"{path}: answers with and without steps are mixed in one file.")
    if not any(answer.drafted for *_, answer in answers):
        raise UsageError(f"{path} has no drafts: give the answers of the server that drafts, and these as --baseline.")
    texts = []
    offers = [offer for *_, answer in answers for _, offer, _ in answer.by_round or ()]
    gamma = choices.gamma or max(offers, default=0) or choices.needed_gamma
    for name, category, answer in answers:
        text = ImportedText(name, category, tokens=answer.tokens, rounds=answer.rounds, seconds=answer.seconds)
        if answer.by_round is not None:
            accepted, offered, committed = ([each[place] for each in answer.by_round] for place in range(3))
            within_gamma(f"{path} ({name})", offered, gamma)
            text = ImportedText(name, category, accepted, offered, committed, answer.ended)
            text = replace(text, context=answer.prompt_n + 1, seconds=answer.seconds)
        texts.append(text)
    notes = [FIRST, *([UNORDERED, TOTALS] if forms == {True} else [])]
    if not all(answer.ended for *_, answer in answers):
        notes.append(NO_ENDS)
    return [imported(path, KIND, gamma, texts, [*notes, *settled])]


def load_points(file: LoadFile) -> list[dict[str, Any]]:
    values = [value for _, value in file.documents if isinstance(value.get("timings"), dict)]
    if not values:
        return []
    answers = [answered(f"{file.path}, response {place}", value) for place, value in enumerate(values, 1)]
    tokens, rounds, drafted = (sum(getattr(one, name) for one in answers) for name in ("tokens", "rounds", "drafted"))
    seconds = sum(one.seconds for one in answers)
    made = {
        "where": str(file.path),
        "model": values[0].get("model"),
        "in_flight": 1.0,
        "throughput": (tokens + len(answers)) / seconds if seconds > 0 else nan,
        "step_ms": sum(one.predicted_ms for one in answers) / rounds if rounds else nan,
        "ttft_ms": fmean(one.prompt_ms for one in answers),
        "prompt_tokens": fmean(one.prompt_n for one in answers),
        "output_tokens": tokens / len(answers) + 1,
        "requests": len(answers),
    }
    if drafted and rounds:
        by_request = fmean(one.tokens / one.rounds for one in answers if one.rounds)
        share = sum(one.accepted for one in answers) / drafted
        made |= {"pooled": tokens / rounds, "by_request": by_request, "drafts": rounds, "accepted_share": share}
    return [made]


def answer_times(path: Path, skip_bad: bool) -> pd.DataFrame:
    """Return tokens and seconds of each answer, of plain decoding (prompt, repeat, tokens, seconds)."""
    file = ForeignFile(path, ImportChoices(skip_bad=skip_bad))
    lines = [(name, 0, answer.tokens, answer.seconds) for name, _, answer in _answers(file)]
    file.settled()
    return pd.DataFrame(lines, columns=["prompt", "repeat", "tokens", "seconds"])


def recognises(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("timings"), dict) and "predicted_n" in value["timings"]


def _answers(file: ForeignFile) -> Iterator[tuple[str, str, Answer]]:
    for line in file.lines():
        with file.line():
            if not recognises(line.value):
                has = keys_of(mapping(line.where, line.value))
                raise BadLine(f"{line.where}: timings with predicted_n are expected, found {has}.")
            answer = answered(line.where, line.value)
            file.empty += not answer.tokens
            if answer.tokens:
                yield *file.named(line.value, line.number), answer
