"""Live decoding in some blocks, beside plain decoding: what a round takes besides the target's call, and whole runs."""

import random
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, ClassVar

import pandas as pd

from specdec.decode import generate
from specdec.measurement.block_times import Block
from specdec.progress import progress_bar
from specdec.records import Generation
from specdec.streams import Stream
from specdec.structures import Structure
from specdec.studies.base import Bench

_WARM = 4  # tokens


class LiveRuns:
    """Runs of the bench's drafter in `shapes` and, as (1, 0), without one."""

    HOST: ClassVar = ("repeat", "k", "w", "nodes", "draft_s", "overhead_s")
    COMPARED: ClassVar = ("repeat", "k", "w", "stream", "tokens", "rounds", "seconds", "identical", "dtype")

    def __init__(
        self,
        bench: Bench,
        shapes: Mapping[Block, Structure],
        streams: Sequence[Stream],
        corners: Sequence[Block],
    ) -> None:
        self._bench, self._shapes, self._streams = bench, shapes, streams
        self._blocks = [(1, 0), *corners]

    def prepare(self, context: int) -> None:
        """Have the target compile, where it does, for all blocks behind `context` tokens, plain steps included.

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

    def host_times(self, stream: Stream, blocks: Sequence[Block], repeats: int, tokens: int) -> pd.DataFrame:
        """`HOST`: mean seconds of drafting, and of all but draft and call, per round of a run of `tokens`."""
        clock = self._bench.clock
        for block in blocks:
            self._decode(stream, block, _WARM)
        rows: list[tuple[Any, ...]] = []
        for repeat in range(repeats):
            for block in [(1, 0), *blocks]:
                rounds = self._decode(stream, block, tokens).rounds
                clock.synchronize()
                marks = [each.marks for each in rounds]
                drafts = [clock.seconds(each.start, each.drafted) for each in marks]
                rest = [clock.seconds(each.verified, each.committed) for each in marks]
                nodes = mean(len(each.draft_tokens) for each in rounds)
                rows.append((repeat, *block, nodes, mean(drafts), mean(rest)))
        return pd.DataFrame(rows, columns=list(self.HOST))

    def compared(self, streams: Sequence[Stream], repeats: int) -> pd.DataFrame:
        """`COMPARED`: whole runs in the corners, interleaved with plain decoding in random order."""
        bench = self._bench
        limit, dtype = bench.config.measurement.max_new_tokens, bench.parts.target.describe().get("dtype", "float64")
        rows: list[tuple[Any, ...]] = []
        with progress_bar() as progress:
            bar = progress.add_task("live runs", total=repeats * len(streams) * len(self._blocks))
            for repeat in range(repeats):
                for stream in streams:
                    order = list(self._blocks)
                    random.Random(f"{bench.config.seed}/{repeat}/{stream.id}").shuffle(order)
                    for block in order:
                        output = self._decode(stream, block, limit)
                        bench.clock.synchronize()
                        seconds = sum(
                            bench.clock.seconds(each.marks.start, each.marks.committed) for each in output.rounds
                        )
                        counts = len(output.tokens), len(output.rounds)
                        same = output.tokens == stream.generated
                        rows.append((repeat, *block, stream.id, *counts, seconds, same, dtype))
                        progress.advance(bar)
                    bench.heartbeat()
        return pd.DataFrame(rows, columns=list(self.COMPARED))

    def _decode(self, stream: Stream, block: Block, tokens: int) -> Generation:
        parts = self._bench.parts
        plain = block == (1, 0)
        return generate(
            target=parts.target,
            drafter=parts.baseline.drafter if plain else parts.primary.drafter,
            verifier=parts.baseline.verifier if plain else parts.primary.verifier,
            structure=parts.baseline.structure if plain else self._shapes[block],
            prompt=stream.prompt,
            max_new_tokens=tokens,
            clock=self._bench.clock,
        )
