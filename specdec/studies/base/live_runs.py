"""Live decoding in some structures beside plain decoding: what a round takes besides the call, and whole runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, ClassVar

import pandas as pd

from specdec.clock import Clock
from specdec.records import Generation, Request
from specdec.structures import Structure
from specdec.studies.base.contract import Bench
from specdec.text.streams import Stream
from specdec.verifiers import Verifier

Key = tuple[Any, ...]
"""A value for each column that tells structures apart."""

WARM = 4  # tokens of a run that is not counted


def decoding_seconds(output: Generation, clock: Clock) -> float:
    """Return the seconds of all rounds of a text, prefill apart."""
    return sum(clock.seconds(each.marks.start, each.marks.committed) for each in output.rounds)


def departures(output: Generation, verifier: Verifier) -> tuple[float | None, float | None]:
    """Return the sums over a text of total variation and of the chance to decide otherwise, None where not known."""
    if verifier.capabilities.lossless:
        return 0.0, 0.0
    known = [each.departure for each in output.rounds if each.departure is not None]
    if len(known) < len(output.rounds):
        return None, None
    return sum(sum(each.tv) for each in known), sum(each.otherwise or 0.0 for each in known)


def host_seconds(output: Generation, clock: Clock) -> tuple[list[int], list[float], list[float]]:
    """Return by round the draft's nodes, the seconds of drafting, and those of everything after the target's call."""
    clock.synchronize()
    marks = [each.marks for each in output.rounds]
    return (
        [len(each.draft_tokens) for each in output.rounds],
        [clock.seconds(each.start, each.drafted) for each in marks],
        [clock.seconds(each.verified, each.committed) for each in marks],
    )


@dataclass(frozen=True)
class LiveRuns:
    """Runs of the bench's drafter in several structures and, as `plain`, without a drafter.

    Attributes:
        names: the columns of a key.
        structures: the structures by key.
        streams: texts; the longest prompt that will be decoded is among them.
    """

    HOST: ClassVar = ("nodes", "draft_s", "overhead_s")
    COMPARED: ClassVar = ("stream", "tokens", "rounds", "nodes", "seconds", "identical", "dtype")

    bench: Bench
    names: tuple[str, ...]
    plain: Key
    structures: Mapping[Key, Structure]
    streams: Sequence[Stream]

    def prepare(self, context: int) -> None:
        """Have the target compile, where it does, for all structures behind `context` tokens, plain steps included.

        Raises:
            UsageError: there is no memory for the key-value cache of the largest.
        """
        target, structures = self.bench.parts.target, self.structures.values()
        packed = target.evaluation == "packed"
        prompt = max(len(stream.prompt) for stream in self.streams)
        longest = max(prompt + self.bench.config.measurement.limit, context + 1)
        capacity = longest + max(target.room(each.tree) for each in structures) + 1
        branches = max(each.branches for each in structures)
        target.check_memory(prompt, capacity, branches)
        tokens = {each.nodes + 1 for each in structures if packed or each.branches == 1}
        target.prepare({1, *tokens}, capacity, branches)

    def host_times(self, stream: Stream, keys: Sequence[Key], repeats: int, tokens: int) -> pd.DataFrame:
        """Return repeat, the names, and `HOST` for `keys` and plain decoding: mean nodes of a draft, mean seconds of
        drafting, and mean seconds of everything but draft and call, in the rounds of a run of `tokens`.
        """
        for key in keys:
            self._decode(stream, key, WARM)
        lines: list[tuple[Any, ...]] = []
        for repeat in range(repeats):
            for key in [self.plain, *keys]:
                nodes, drafts, rest = host_seconds(self._decode(stream, key, tokens), self.bench.clock)
                lines.append((repeat, *key, mean(nodes), mean(drafts), mean(rest)))
        return pd.DataFrame(lines, columns=["repeat", *self.names, *self.HOST])

    def compared(self, streams: Sequence[Stream], keys: Sequence[Key], repeats: int) -> pd.DataFrame:
        """Return repeat, the names, and `COMPARED` for whole runs of `keys`, interleaved with plain decoding in random
        order. The nodes are those of all drafts, the seconds those of all rounds.
        """
        bench = self.bench
        limit, dtype = bench.config.measurement.limit, bench.parts.target.describe().get("dtype", "float64")
        lines: list[tuple[Any, ...]] = []
        with bench.progress("live runs", repeats * len(streams) * (1 + len(keys))) as advance:
            for repeat in range(repeats):
                for stream in streams:
                    order = [self.plain, *keys]
                    random.Random(f"{bench.config.seed}/{repeat}/{stream.id}").shuffle(order)
                    for key in order:
                        output = self._decode(stream, key, limit)
                        bench.clock.synchronize()
                        nodes = sum(len(each.draft_tokens) for each in output.rounds)
                        counts = len(output.tokens), len(output.rounds), nodes
                        same = output.tokens == stream.generated
                        seconds = decoding_seconds(output, bench.clock)
                        lines.append((repeat, *key, stream.id, *counts, seconds, same, dtype))
                        advance()
        return pd.DataFrame(lines, columns=["repeat", *self.names, *self.COMPARED])

    def _decode(self, stream: Stream, key: Key, tokens: int) -> Generation:
        parts = self.bench.parts
        arm = parts.baseline if key == self.plain else replace(parts.primary, structure=self.structures[key])
        return arm.decode(Request(stream.prompt, tokens), self.bench.clock)
