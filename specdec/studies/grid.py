"""Tokens per call and speedup over shapes, k rows of width w (N-Grammys, 2411.03786): rounds by replay, seconds from
what calls, drafts and commits were measured to take, live runs at the corners to check both, and whole live runs in
the fastest shape and the usual one.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import pandas as pd
from pydantic import Field

from specdec.analysis.studies.grid import USUAL, best, grid
from specdec.config import AtLeastOne, Named, typed
from specdec.structures import structures
from specdec.studies.base import Ascending, Bench, Positive, Study, studies
from specdec.studies.base.live_runs import OUTPUTS, StudyArm, host_times, interleaved, outputs_of, prepare_target
from specdec.studies.base.replayed import Strategy, check_rows, replay
from specdec.timing.calls import Shape, time_shapes

PLAIN: Shape = (1, 0)  # plain decoding, as a shape


@studies.register("grid")
@typed
class RowsGrid(Study, Named):
    """Tables, all by k and w; a w of 0 is plain decoding:

    `replay`: as `replayed.replay` has it.
    `block_times`: as `time_shapes` has it, with `repeat`; calls on random tokens at a few contexts that the texts pass
        through, evenly spaced. Every shape is timed: a pass costs less than decoding one prompt in every cell.
    `host_times`: repeat, k, w, nodes (mean of a draft), draft_s, overhead_s (accept, commit and the rest), means over
        the rounds of a short live run of the first prompt, in the corner cells, the middle one and plain decoding.
    `live`: whole live runs of the last prompts in the corner cells, interleaved with plain decoding, as
        `live_runs.outputs_of` has them; and the target's dtype.
    `whole`: the same of all prompts in the shape that is predicted to be fastest and in the usual one, where it is part
        of the grid. A repeat is a whole run.

    On a target without a model all times are the cost model's, and `live` and `whole` are empty.
    """

    k: Ascending[AtLeastOne]
    w: Ascending[AtLeastOne]
    repeats: AtLeastOne
    contexts: AtLeastOne
    calls: AtLeastOne
    seconds: Positive
    probe_tokens: AtLeastOne
    live_prompts: AtLeastOne
    whole_runs: Annotated[int, Field(ge=0)]

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        values = check_rows(bench)
        cells = {(k, w): {**values, "k": k, "w": w} for k, w in itertools.product(self.k, self.w)}
        shapes = {shape: structures.build(cell) for shape, cell in cells.items()}  # checks the budget, before decoding
        streams = bench.texts()
        strategies = [Strategy({"k": k, "w": w}, bench.values.drafter, cell) for (k, w), cell in cells.items()]
        table, _ = replay(bench, strategies, streams)
        # Numbers of cached tokens between the shortest prompt and the end of the longest text.
        low = max(1, min(len(stream.prompt) for stream in streams) - 1)
        high = max(len(stream.prompt) + len(stream.generated) for stream in streams)
        steps = self.contexts - 1
        contexts = sorted({round(low + (high - low) * step / steps) for step in range(steps + 1)} if steps else
                          {(low + high) // 2})  # fmt: skip
        if bench.simulated:  # by the cost model of a target without a model
            keys = [({"k": k, "w": w}, k * w) for k, w in sorted([*self._corners(), PLAIN])]
            simulated = bench.simulated_times([PLAIN, *cells], contexts, keys)
            none = pd.DataFrame(columns=["k", "w", *OUTPUTS, "dtype"])
            return {"replay": table, **simulated, "live": none, "whole": none}
        parts = bench.parts
        prepare_target(bench, shapes.values(), streams, contexts[-1])
        timer = bench.timer("blocks", self.repeats * self.calls, self.seconds)
        times = time_shapes(parts.target, streams[0].prompt, [PLAIN, *shapes], contexts, timer)
        times["repeat"] = times["call"] // self.calls
        plain = StudyArm({"k": PLAIN[0], "w": PLAIN[1]}, parts.baseline)
        arms = {
            (k, w): StudyArm({"k": k, "w": w}, replace(parts.primary, structure=structure))
            for (k, w), structure in shapes.items()
        }
        middle = self.k[len(self.k) // 2], self.w[len(self.w) // 2]
        probed = [plain, *(arms[shape] for shape in sorted({*self._corners(), middle}))]
        host = host_times(bench, probed, streams[0], self.repeats, self.probe_tokens)
        corners = [plain, *(arms[shape] for shape in self._corners())]
        live = interleaved(bench, corners, streams[-self.live_prompts :], self.repeats)
        # The choice is analysis' own: what is decoded whole is what the report calls the fastest.
        fastest = best(grid(table, times, host, 1, bench.plan.seed), "speedup")
        chosen = [plain, *(arms[shape] for shape in dict.fromkeys([fastest, USUAL]) if shape in arms)]
        whole = interleaved(bench, chosen, streams, self.whole_runs)
        dtype = parts.target.describe().get("dtype", "float64")
        runs = {"live": live, "whole": whole}
        outputs = {name: outputs_of(bench, texts).assign(dtype=dtype) for name, texts in runs.items()}
        return {"replay": table, "block_times": times, "host_times": host, **outputs}

    def _corners(self) -> list[Shape]:
        ends = (self.k[0], self.k[-1]), (self.w[0], self.w[-1])
        return sorted(set(itertools.product(*ends)))
