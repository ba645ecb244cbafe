"""Rounds tables made of foreign files: what an importer gives, and how its texts become tables.

A source says less than a run of ours. `Imported.notes` say what it does not contain; seconds and sizes that nobody
recorded are NaN, never zero, and no statistic uses them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import printable

from ..rounds import COLUMNS, SECONDS, check_rounds

ONLY_SUMS = (
    "It has sums of tokens and rounds only: tokens per round, but not which lengths were accepted. So there is no "
    "alpha of its own, no test of the i.i.d. model and no prediction for another gamma."
)


@dataclass(frozen=True)
class ImportChoices:
    """The choices that a file may leave to the user, one field per option of `specdec.report`.

    Attributes:
        gamma: draft tokens per round; None where the file says it, or where lengths are per position.
        bonus: True if lengths per round count the target's own token; None: by the field's name.
        field: which of several drafters in one file; None: each becomes a data set of its own.
        skip_bad: leave lines that cannot be read out, count them and say so, instead of refusing the file.
    """

    gamma: int | None = None
    bonus: bool | None = None
    field: str | None = None
    skip_bad: bool = False


@dataclass(frozen=True)
class ImportedText:
    """One text of a source before it becomes lines of tables: its rounds, or where nothing else is known its sums.

    Attributes:
        accepted, offered: draft tokens per round, equally many; a round that accepted fewer ends in a rejection.
        committed: tokens per round; None: the accepted ones and the target's own. A round that commits no token of the
            target was cut before one, so it is no rejection.
        cut: truncation of the last round, "" if the source does not say that the text ended there.
        context: tokens before the first round; None if the source does not say.
        tokens, seconds: of the whole text, where the source counts them itself.
        rounds: their number, where the source has sums only; it may be a quotient of printed figures.
    """

    prompt: str
    category: str
    accepted: Sequence[int] = ()
    offered: Sequence[int] = ()
    committed: Sequence[int] | None = None
    cut: str = ""
    repeat: int = 0
    context: int | None = None
    tokens: float | None = None
    seconds: float = nan
    rounds: float | None = None

    def commits(self) -> np.ndarray:
        """Return the tokens that each round commits."""
        return np.array(self.accepted, dtype=int) + 1 if self.committed is None else np.array(self.committed, dtype=int)


@dataclass(frozen=True)
class PositionText:
    """Accepted lengths of one text by position; `prompt` and `repeat` together are unique in a data set.

    Attributes:
        lengths: [positions] int32, at least 1: the most tokens that a round which starts there commits, the target's
            own included. So lengths[t] - 1 draft tokens are right from position t on, as far as the drafter went; it
            may reach beyond the end of the text.
        context: tokens before the first position; None if the source does not say.
        ended: an end token closes the text; otherwise the recording stopped there, and nothing is offered beyond it.
    """

    prompt: str
    category: str
    repeat: int
    lengths: np.ndarray
    context: int | None
    ended: bool


@dataclass(frozen=True)
class PositionLengths:
    """Accepted lengths by position of one drafter on one data set: every gamma can be walked from them.

    Attributes:
        longest: the most draft tokens that any length accepts. A larger gamma shows nothing more.
    """

    texts: tuple[PositionText, ...]
    longest: int

    def rounds(self, method: str, gamma: int) -> pd.DataFrame:
        """Return the rounds that decoding with drafts of `gamma` tokens takes (`rounds.COLUMNS`)."""
        return rounds_table([walked(text, gamma) for text in self.texts], method, gamma)


@dataclass(frozen=True)
class Imported:
    """Foreign rounds of one data set and one drafter, with what is known about them.

    Attributes:
        rounds: `analysis.rounds.COLUMNS`; NaN in columns that the source does not have. No line at all where the source
            has sums over rounds only (`totals_only`).
        notes: sentences on what the source does not contain and what was assumed.
        has_times: True if `texts` has seconds.
        ordered: True if the order of a text's rounds is known; without it no analysis may look at neighbours.
        texts: one line per text: prompt, category, repeat, tokens, rounds, seconds (of the whole text, prefill
            included).
        name: what tells it apart from others in one report: the file's name, with the drafter's where the file has
            several.
        by_position: lengths by position, where the source has them; `rounds` are then walked at `gamma`.
    """

    source: str
    kind: str
    gamma: int
    rounds: pd.DataFrame
    notes: tuple[str, ...]
    has_times: bool
    ordered: bool
    texts: pd.DataFrame
    name: str
    by_position: PositionLengths | None = None

    @property
    def totals_only(self) -> bool:
        """True where the source has no single rounds: tokens and rounds of whole texts are all that it says."""
        return self.rounds.empty

    def at(self, gamma: int) -> "Imported":
        """Return the same data set walked at another gamma. ValueError if lengths are not by position."""
        if self.by_position is None:
            raise ValueError(f"{self.name} has lengths of rounds at gamma {self.gamma} only")
        return replace(self, gamma=gamma, rounds=self.by_position.rounds(self.kind, gamma))


def imported(
    path: Path,
    kind: str,
    gamma: int,
    texts: Sequence[ImportedText],
    notes: Sequence[str],
    *,
    ordered: bool = True,
    name: str | None = None,
) -> Imported:
    """Make the tables of `texts`, which have their rounds or their sums. UsageError if there is no round at all."""
    sums = all(text.rounds is not None for text in texts)
    table = pd.DataFrame(
        {
            "prompt": [text.prompt for text in texts],
            "category": [text.category for text in texts],
            "repeat": [text.repeat for text in texts],
            "tokens": [int(text.commits().sum()) if text.tokens is None else text.tokens for text in texts],
            "rounds": [len(text.accepted) if text.rounds is None else text.rounds for text in texts],
            "seconds": [text.seconds for text in texts],
        }
    )
    if not table["rounds"].sum() > 0:
        raise UsageError(f"{path} has no round: nothing was ever drafted in it.")
    return Imported(
        str(path),
        kind,
        gamma,
        pd.DataFrame(columns=list(COLUMNS)) if sums else rounds_table(texts, kind, gamma),
        (ONLY_SUMS, *notes) if sums else tuple(notes),
        bool(table["seconds"].notna().all()),
        ordered and not sums,
        table,
        name or plain_name(path),
    )


def plain_name(path: Path) -> str:
    """Return the name of a file without what says its form."""
    return printable(path.name.removesuffix(".gz").removesuffix(".jsonl"))


def rounds_table(texts: Sequence[ImportedText], method: str, gamma: int) -> pd.DataFrame:
    """Return the rounds of `texts`, one line each (`rounds.COLUMNS`); ValueError where they contradict themselves."""
    texts = [text for text in texts if len(text.accepted)]
    sizes = [len(text.accepted) for text in texts]

    def joined(parts: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
        return np.concatenate([np.asarray(part, dtype=int) for part in parts] or [np.zeros(0, dtype=int)])

    def spread(values: Sequence[Any], kind: type = object) -> np.ndarray:
        return np.repeat(np.array(values, dtype=kind), sizes)

    accepted, offered = (joined([getattr(text, name) for text in texts]) for name in ("accepted", "offered"))
    commits = [text.commits() for text in texts]
    committed = joined(commits)
    before = [np.cumsum(part) - part for part in commits]  # tokens of the text before each round
    cut = np.full(sum(sizes), "", dtype=object)
    cut[np.cumsum(sizes, dtype=int) - 1] = [text.cut for text in texts]
    rounds = pd.DataFrame(  # in the order of COLUMNS
        {
            "cell": "imported",
            "method": method,
            "gamma": gamma,
            "repeat": spread([text.repeat for text in texts], int),
            "prompt": spread([text.prompt for text in texts]),
            "category": spread([text.category for text in texts]),
            "round": joined([range(size) for size in sizes]),
            "context": spread([nan if text.context is None else text.context for text in texts], float)
            + joined(before),
            "offered_nodes": nan,
            "offered": offered,
            "accepted": accepted,
            "committed": committed,
            "rejected": (accepted < offered) & (committed > accepted),
            "truncation": cut,
            "tokens_left": joined([part.sum() - start for part, start in zip(commits, before, strict=True)]),
            "source": "",
            "rank": 0,
            "beta": [[]] * sum(sizes),
            **dict.fromkeys(SECONDS, nan),
        },
        copy=False,
    )
    check_rounds(rounds)
    return rounds


def walked(text: PositionText, gamma: int) -> ImportedText:
    """Walk a text from round to round at `gamma`, as decoding would: a round begins where the last one ended, and none
    offers more than the text can still hold beside the target's own token.

    Beyond an end token drafts go on, so a round that accepts the end token itself is cut: it commits no token of the
    target and is no rejection (theory.md 4.7).
    """
    size = len(text.lengths)
    left = np.arange(size, 0, -1)  # tokens from each position on
    offered = np.full(size, gamma) if text.ended else np.minimum(gamma, left - 1)
    accepted = np.minimum(np.minimum(text.lengths - 1, offered), left)
    committed = np.minimum(accepted + 1, left)
    steps = committed.tolist()
    starts, position = [], 0
    while position < size:
        starts.append(position)
        position += steps[position]
    at = np.array(starts, dtype=int)
    cut = "end_token" if text.ended else "limit"
    who = (text.prompt, text.category)
    return ImportedText(*who, accepted[at], offered[at], committed[at], cut, text.repeat, text.context)
