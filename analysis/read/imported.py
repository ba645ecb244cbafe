"""What an importer gives, and the run folder that is written of it.

A source says less than a run of ours. `Imported.notes` say what it does not contain; seconds and sizes that nobody
recorded are NaN, never zero, and no statistic uses them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from specdec.config import BASELINE
from specdec.errors import UsageError
from specdec.text.lines import printable

from ..rounds import SECONDS, check_rounds
from .facts import PLAN_FILE, ImportFacts

CELL = "imported"
SHOWN = 32  # gammas shown at most: all up to here, for sources whose drafts are longer
REPLICATES = 2000  # of bootstraps: a trace has many prompts
ONLY_SUMS = (
    "It has sums of tokens and rounds only: tokens per round, but not which lengths were accepted. So there is no "
    "alpha of its own, no test of the i.i.d. model and no prediction for another gamma."
)


@dataclass(frozen=True)
class ImportChoices:
    """The choices that a file may leave to the user, one field per option of `specdec.report`."""

    gamma: int | None = None  # draft tokens per round; None where the file says it, or where lengths are per position
    bonus: bool | None = None  # True if lengths per round count the target's own token; None: by the field's name
    field: str | None = None  # which of several drafters in one file; None: each becomes a data set of its own
    skip_bad: bool = False  # leave lines that cannot be read out, count them and say so, instead of refusing the file

    @property
    def needed_gamma(self) -> int:
        """The gamma of a source that does not say it itself. UsageError if it was not given."""
        if self.gamma is None:
            raise UsageError("--import needs --gamma, the draft tokens per round of the source, at least 1.")
        return self.gamma


@dataclass(frozen=True)
class ImportedText:
    """One text of a source before it becomes lines of tables: its rounds, or where nothing else is known its sums."""

    prompt: str
    category: str
    # accepted, offered: draft tokens per round, equally many; a round that accepted fewer ends in a rejection
    accepted: Sequence[int] = ()
    offered: Sequence[int] = ()
    # tokens per round; None: the accepted ones and the target's own. A round that commits no token of the target was
    # cut before one, so it is no rejection.
    committed: Sequence[int] | None = None
    cut: str = ""  # truncation of the last round, "" if the source does not say that the text ended there
    repeat: int = 0
    context: int | None = None  # tokens before the first round; None if the source does not say
    tokens: float | None = None  # of the whole text, where the source counts them itself
    seconds: float = nan  # of the whole text, likewise
    rounds: float | None = None  # their number, where the source has sums only; it may be a quotient of printed figures

    def commits(self) -> np.ndarray:
        """Return the tokens that each round commits."""
        return np.array(self.accepted, dtype=int) + 1 if self.committed is None else np.array(self.committed, dtype=int)


@dataclass(frozen=True)
class PositionText:
    """Accepted lengths of one text by position; `prompt` and `repeat` together are unique in a data set."""

    prompt: str
    category: str
    repeat: int
    # [positions] int32, at least 1: the most tokens that a round which starts there commits, the target's own included.
    # So lengths[t] - 1 draft tokens are right from position t on, as far as the drafter went; it may reach beyond the
    # end of the text.
    lengths: np.ndarray
    context: int | None  # tokens before the first position; None if the source does not say
    ended: bool  # an end token closes the text; otherwise the recording stopped there, and nothing is offered beyond it


@dataclass(frozen=True)
class Imported(ImportFacts):
    """The texts of one drafter on one data set, as a file has them; `write_folder` makes a run folder of it."""

    records: tuple[ImportedText | PositionText, ...]  # texts with rounds or sums, or with lengths by position

    def at(self, gamma: int) -> list[ImportedText]:
        """Return the texts with their rounds at one gamma: lengths by position are walked."""
        return [walked(text, gamma) if isinstance(text, PositionText) else text for text in self.records]

    @property
    def rounds(self) -> pd.DataFrame:
        """The rounds at `gamma`; no line where the source has sums only."""
        return rounds_table([] if self.totals_only else self.at(self.gamma), self.kind, self.gamma)

    @property
    def texts(self) -> pd.DataFrame:
        """A line per text: prompt, category, repeat, tokens, rounds, seconds (of the whole text, prefill included)."""
        texts = self.at(self.gamma)
        table = pd.DataFrame(
            {name: [getattr(text, name) for text in texts] for name in ("prompt", "category", "repeat")}
        )
        table["tokens"] = [int(text.commits().sum()) if text.tokens is None else text.tokens for text in texts]
        table["rounds"] = [len(text.accepted) if text.rounds is None else text.rounds for text in texts]
        return table.assign(seconds=[text.seconds for text in texts])


def imported(
    path: Path,
    kind: str,
    gamma: int,
    records: Sequence[ImportedText | PositionText],
    notes: Sequence[str],
    *,
    ordered: bool = True,
    part: str = "",
) -> Imported:
    """Return what a file, or a `part` of it, says about one drafter. UsageError if there is no round at all."""
    totals_only = all(isinstance(record, ImportedText) and record.rounds is not None for record in records)
    lengths = [record.lengths for record in records if isinstance(record, PositionText)]
    source = Imported(
        name=printable(path.name.removesuffix(".gz").removesuffix(".jsonl")) + (f": {part}" if part else ""),
        source=str(path),
        kind=kind,
        gamma=gamma,
        longest=max(int(text.max(initial=1)) for text in lengths) - 1 if lengths else None,
        ordered=ordered and not totals_only,
        totals_only=totals_only,
        notes=(*([ONLY_SUMS] if totals_only else []), *notes),
        records=tuple(records),
    )
    if not records or not source.texts["rounds"].sum() > 0:
        raise UsageError(f"{path} has no round: nothing was ever drafted in it.")
    return source


def write_folder(
    source: Imported, folder: Path, baseline: pd.DataFrame | None = None, replicates: int = REPLICATES
) -> None:
    """Write what a file says as a run folder, which `runs.open_folder` reads.

    Columns that nobody recorded are absent from the rounds table, or null where statistics count them; of a source of
    sums there is no such table. Lengths by position have rounds at every gamma up to `SHOWN`, in `alpha.parquet` the
    positions whose first draft token agrees, and in `replay.parquet` (kind "along") the rounds that each text would
    take if every draft token were as good as a first one.

    baseline: plain decoding of the same prompts (prompt, repeat, tokens, seconds); replicates: of later bootstraps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "import": {"kind": source.kind, "source": source.source},
        "drafter": {"name": source.kind},
        "structure": {"name": "chain", "gamma": source.gamma},
        "measurement": {"bootstrap": replicates},
        "seed": 0,
    }
    said = {field.name: getattr(source, field.name) for field in fields(ImportFacts)}
    texts = source.texts.assign(method=source.kind, gamma=source.gamma).to_dict("records")
    if baseline is not None:
        texts += baseline.assign(method=BASELINE, gamma=0, category="").to_dict("records")
    known = ({name: value for name, value in line.items() if value == value} for line in texts)  # NaN is not JSON
    generations = "".join(json.dumps({"cell": CELL, **line}) + "\n" for line in known)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    (folder / PLAN_FILE).write_text(json.dumps(said, indent=1), encoding="utf-8")
    (folder / "generations.jsonl").write_text(generations, encoding="utf-8")
    positions = [record for record in source.records if isinstance(record, PositionText) and len(record.lengths)]
    gammas = [source.gamma]
    if source.longest is not None:
        gammas = sorted({*range(1, min(source.longest, SHOWN) + 1), source.gamma})
    alpha = [(text.prompt, text.repeat, int((text.lengths > 1).sum()), len(text.lengths)) for text in positions]
    along = []
    for gamma in gammas:
        for text in positions:
            size = len(text.lengths)
            places = np.where(text.lengths > 1, size, np.arange(size))
            stops = np.minimum.accumulate(places[::-1])[::-1]  # the next position that disagrees
            single = walked(replace(text, lengths=(stops - np.arange(size) + 1).astype(np.int32)), gamma)
            along.append((gamma, "along", text.prompt, text.repeat, size, len(single.accepted)))
    for name, columns, lines in (
        ("alpha", ("prompt", "repeat", "numerator", "denominator"), alpha),
        ("replay", ("gamma", "kind", "prompt", "repeat", "tokens", "rounds"), along),
    ):
        pd.DataFrame(lines, columns=columns).assign(method=source.kind).to_parquet(folder / f"{name}.parquet")
    (folder / "rounds.parquet").unlink(missing_ok=True)
    if source.totals_only:
        return
    writer: pq.ParquetWriter | None = None
    for gamma in gammas:  # an arm after the other: all gammas of a long trace would not fit into memory
        rounds = rounds_table(source.at(gamma), source.kind, gamma)
        names = ("cell", "method", "prompt", "category", "truncation")
        table = pa.Table.from_pandas(rounds.astype(dict.fromkeys(names, "category")), preserve_index=False)
        writer = writer or pq.ParquetWriter(folder / "rounds.parquet", table.schema)
        writer.write_table(table, row_group_size=len(table))
    assert writer is not None
    writer.close()


def within_gamma(where: str, accepted: Sequence[int], gamma: int) -> None:
    """Raise UsageError if a round accepted more than gamma: a wrong gamma, not a bad line."""
    if accepted and max(accepted) > gamma:
        raise UsageError(
            f"{where}: a round accepted {max(accepted)} draft tokens, more than gamma {gamma}: give the draft length "
            f"of the source with --gamma {max(accepted)} or more."
        )


def rounds_table(texts: Sequence[ImportedText], method: str, gamma: int) -> pd.DataFrame:
    """Return the rounds of `texts`, one line each (`rounds.COUNTED` and context). ValueError for contradictions."""
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
    rounds = pd.DataFrame(
        {
            "cell": CELL,
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
            **dict.fromkeys(SECONDS, nan),
        },
        copy=False,
    )
    check_rounds(rounds)
    return rounds


def walked(text: PositionText, gamma: int) -> ImportedText:
    """Walk a text from round to round at `gamma`, as decoding would: a round begins where the last one ended, and none
    offers more than the text can still hold beside the target's own token. Beyond an end token drafts go on: a round
    that accepts the end token itself is cut, commits no token of the target and is no rejection (theory.md 4.7).
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
