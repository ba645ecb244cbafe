"""Live decoding in some shapes, beside plain decoding: what a round takes besides the target's call, and whole runs."""

import random
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, ClassVar

import pandas as pd

from specdec.decode import generate
from specdec.progress import progress_bar
from specdec.records import Generation, Request
from specdec.structures import Structure
from specdec.studies.base import Bench
from specdec.text.streams import Stream

Key = tuple[Any, ...]
"""A value for each column that tells shapes apart."""

_WARM = 4  # tokens


class LiveRuns:
    """Runs of the bench's drafter in `shapes` and, as `plain`, without one."""

    HOST: ClassVar = ("nodes", "draft_s", "overhead_s")
    COMPARED: ClassVar = ("stream", "tokens", "rounds", "nodes", "seconds", "identical", "dtype")

    def __init__(
        self,
        bench: Bench,
        names: Sequence[str],
        plain: Key,
        shapes: Mapping[Key, Structure],
        streams: Sequence[Stream],
    ) -> None:
        """
        Args:
            names: the columns of a key.
            streams: the longest prompt that will be decoded is among them.
        """
        self._bench, self._names, self._plain = bench, tuple(names), plain
        self._shapes, self._streams = shapes, streams

    def prepare(self, context: int) -> None:
        """Have the target compile, where it does, for all shapes behind `context` tokens, plain steps included.

        Raises:
            UsageError: no memory for the key-value cache of the largest.
        """
        target, shapes = self._bench.parts.target, self._shapes.values()
        packed = target.evaluation == "packed"
        prompt = max(len(stream.prompt) for stream in self._streams)
        longest = max(prompt + self._bench.config.measurement.max_new_tokens, context + 1)
        capacity = longest + max(target.room(shape.tree) for shape in shapes) + 1
        branches = max(shape.branches for shape in shapes)
        target.check_memory(prompt, capacity, branches)
        rows = {shape.nodes + 1 for shape in shapes if packed or shape.branches == 1}
        target.prepare({1, *rows}, capacity, branches)

    def host_times(self, stream: Stream, keys: Sequence[Key], repeats: int, tokens: int) -> pd.DataFrame:
        """repeat, the names, and `HOST`: mean nodes of a draft, mean seconds of drafting, and of all but draft and
        call, per round of a run of `tokens`; of `keys` and of plain decoding.
        """
        clock = self._bench.clock
        for key in keys:
            self._decode(stream, key, _WARM)
        rows: list[tuple[Any, ...]] = []
        for repeat in range(repeats):
            for key in [self._plain, *keys]:
                rounds = self._decode(stream, key, tokens).rounds
                clock.synchronize()
                marks = [each.marks for each in rounds]
                drafts = [clock.seconds(each.start, each.drafted) for each in marks]
                rest = [clock.seconds(each.verified, each.committed) for each in marks]
                nodes = mean(len(each.draft_tokens) for each in rounds)
                rows.append((repeat, *key, nodes, mean(drafts), mean(rest)))
        return pd.DataFrame(rows, columns=["repeat", *self._names, *self.HOST])

    def compared(self, streams: Sequence[Stream], keys: Sequence[Key], repeats: int) -> pd.DataFrame:
        """repeat, the names, and `COMPARED`: whole runs of `keys`, interleaved with plain decoding in random order.
        nodes are those of all drafts, seconds those of all rounds.
        """
        bench = self._bench
        limit, dtype = bench.config.measurement.max_new_tokens, bench.parts.target.describe().get("dtype", "float64")
        rows: list[tuple[Any, ...]] = []
        with progress_bar() as progress:
            bar = progress.add_task("live runs", total=repeats * len(streams) * (1 + len(keys)))
            for repeat in range(repeats):
                for stream in streams:
                    order = [self._plain, *keys]
                    random.Random(f"{bench.config.seed}/{repeat}/{stream.id}").shuffle(order)
                    for key in order:
                        output = self._decode(stream, key, limit)
                        bench.clock.synchronize()
                        seconds = sum(
                            bench.clock.seconds(each.marks.start, each.marks.committed) for each in output.rounds
                        )
                        nodes = sum(len(each.draft_tokens) for each in output.rounds)
                        counts = len(output.tokens), len(output.rounds), nodes
                        same = output.tokens == stream.generated
                        rows.append((repeat, *key, stream.id, *counts, seconds, same, dtype))
                        progress.advance(bar)
                    bench.heartbeat()
        return pd.DataFrame(rows, columns=["repeat", *self._names, *self.COMPARED])

    def _decode(self, stream: Stream, key: Key, tokens: int) -> Generation:
        parts = self._bench.parts
        plain = key == self._plain
        return generate(
            target=parts.target,
            drafter=parts.baseline.drafter if plain else parts.primary.drafter,
            verifier=parts.baseline.verifier if plain else parts.primary.verifier,
            structure=parts.baseline.structure if plain else self._shapes[key],
            request=Request(stream.prompt, tokens),
            clock=self._bench.clock,
        )
