"""Results go to disk first: a part-file of rounds and lines of generations per prompt, compacted at the end.

A kill loses at most the prompt being decoded. Knows the columns of the rounds table; knows no statistics.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from specdec.clock import Clock
from specdec.records import Generation, Round


@dataclass(frozen=True)
class GenerationKey:
    """The columns that tell generations apart, in both tables."""

    cell: str
    method: str
    gamma: int
    repeat: int
    prompt: str
    category: str


def round_lines(key: GenerationKey, generation: Generation, clock: Clock) -> list[dict[str, Any]]:
    """Return a line per round; seconds come from the clock's readings, so the device must be synchronised."""
    lines, left = [], len(generation.tokens)
    for index, item in enumerate(generation.rounds):
        marks = item.marks
        otherwise = None if item.departure is None else item.departure.otherwise
        lines.append(
            {
                **vars(key),
                "round": index,
                "context": item.context,
                "offered_nodes": len(item.draft_tokens),
                "offered": item.tree.depth,
                "accepted": item.accepted,
                "committed": len(item.committed),
                "rejected": item.rejected,
                "truncation": item.truncation,
                "tokens_left": left,
                "source": _accepted_source(item).strategy if item.source else "",
                "rank": _accepted_source(item).rank if item.source else 0,
                "beta": list(item.beta),
                "tv": list(item.tv),
                "departure": [] if item.departure is None else list(item.departure.tv),
                "otherwise": nan if otherwise is None else otherwise,
                "draft_s": clock.seconds(marks.start, marks.drafted),
                "verify_s": clock.seconds(marks.drafted, marks.verified),
                "accept_s": clock.seconds(marks.verified, marks.accepted),
                "commit_s": clock.seconds(marks.accepted, marks.committed),
                "round_s": clock.seconds(marks.start, marks.committed),
            }
        )
        left -= len(item.committed)
    return lines


def _accepted_source(item: Round) -> Any:
    """Return the source of the last accepted node, or of the first offered one where none was accepted."""
    return item.source[item.acceptance.path[-1] if item.acceptance.path else 0]


def generation_line(
    key: GenerationKey, generation: Generation, clock: Clock, text: str, flagged: bool
) -> dict[str, Any]:
    """Return one line of `generations.jsonl`; a replay target reads its token lists."""
    return {
        **vars(key),
        "tokens": len(generation.tokens),
        "rounds": len(generation.rounds),
        "prefill_s": clock.seconds(*generation.prefill),
        "decode_s": sum(clock.seconds(item.marks.start, item.marks.committed) for item in generation.rounds),
        "finish": generation.finish,
        "flagged": flagged,
        "prompt_token_ids": list(generation.prompt),
        "generated_token_ids": list(generation.tokens),
        "text": text,
    }


class ResultsFolder:
    """The run's output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = folder / "rounds"
        self._parts.mkdir(parents=True, exist_ok=True)
        self._written = 0

    def append(self, rounds: Iterable[Mapping[str, Any]], generations: Iterable[Mapping[str, Any]]) -> None:
        """Write what one prompt gave: a part-file of its rounds, and its generations' lines."""
        import pandas as pd

        part = self._parts / f"part-{self._written:05d}.parquet"
        pd.DataFrame(list(rounds)).to_parquet(part.with_suffix(".tmp"), index=False)
        part.with_suffix(".tmp").replace(part)
        with (self.folder / "generations.jsonl").open("a", encoding="utf-8") as stream:
            for line in generations:
                stream.write(json.dumps(line) + "\n")
        self._written += 1

    def compact(self) -> Any:
        """Join the part-files into `rounds.parquet`, drop them, and return the table."""
        import pandas as pd

        parts = sorted(self._parts.glob("part-*.parquet"))
        if not parts:  # stopped before the first prompt was done
            return pd.DataFrame()
        table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
        table.to_parquet(self.folder / "rounds.parquet", index=False)
        for part in parts:
            part.unlink()
        self._parts.rmdir()
        return table

    def write_table(self, name: str, lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Write `name`.parquet."""
        import pandas as pd

        pd.DataFrame(list(lines), columns=list(columns)).to_parquet(self.folder / f"{name}.parquet", index=False)

    def write_json(self, name: str, value: Any) -> None:
        path = self.folder / name
        path.with_suffix(".tmp").write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
        path.with_suffix(".tmp").replace(path)
