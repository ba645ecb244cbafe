"""Measures where verification stops being nearly free: t(k, w, context) of k rows of width w, in a batch of k sequences
as N-Grammys (2411.03786) evaluates them and packed into one, and what each matrix product moves and computes for them
beside what the machine can (theory.md 7.1).
"""

import itertools
from collections.abc import Mapping
from typing import Annotated

import pandas as pd
import torch
from pydantic import Field

from specdec.config import AtLeastOne, Named, typed
from specdec.errors import UsageError
from specdec.studies.base import Ascending, Bench, Positive, Study, studies
from specdec.targets.base.contract import Evaluation
from specdec.timing.calls import time_shapes, tokens_evaluated
from specdec.timing.machine import measure_machine

_COLUMNS = ["product", "inputs", "outputs", "k", "w", "context", "evaluation", "rows_evaluated", "bytes", "flops",
            "operations_per_byte", "threshold"]  # fmt: skip


@studies.register("phase_transition")
@typed
class PhaseTransition(Study, Named):
    """Tables: `block_times`, as `time_shapes` has it, of all k x w and of (1, 0) and (1, 1), the units, in each way of
    `study.evaluations` that the target can evaluate; `intensity`, a line for each product, shape, context and way. No
    text is decoded: the cache is filled with the first prompt, repeated. `target.evaluation` is not used.
    """

    k: Ascending[AtLeastOne]
    w: Ascending[Annotated[int, Field(ge=0)]]
    contexts: Ascending[AtLeastOne]
    evaluations: Annotated[list[Evaluation], Field(min_length=1)]
    calls: AtLeastOne
    seconds: Positive

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        target = bench.parts.target
        bench.needs_model("times the calls of a model; use target=causal.")
        able = [way for way in self.evaluations if way in target.capabilities.evaluations]
        if not able:
            raise UsageError(
                f"Bad value study.evaluations={self.evaluations}: target {bench.plan.target_values['name']!r} "
                f"evaluates drafts only as {', '.join(target.capabilities.evaluations)}; use that."
            )
        shapes = [(1, 0), (1, 1), *((k, w) for k in self.k for w in self.w)]
        prompt = bench.parts.prompts.prompts[0].tokens
        timer = bench.timer("blocks", self.calls, self.seconds)
        times = time_shapes(target, prompt, shapes, self.contexts, timer, able)
        timed = times[times["missing"] == ""]
        cells = timed[["k", "w", "context", "evaluation"]].drop_duplicates().itertuples(index=False, name=None)
        # The bytes that a call reads and the operations that it computes, by product; sizes are 0 along the cache.
        lines, products = [], target.products()
        if products:  # The machine last: its large buffers are no part of what was timed.
            bound = measure_machine(target.device, getattr(torch, target.describe()["dtype"]))["threshold"]
        for (k, w, context, evaluation), product in itertools.product(cells, products):
            evaluated = tokens_evaluated(k, w, evaluation)
            # A batch with a sequence for each row reads a copy of the cache for each; weights are read once for all.
            copies, tokens = (k, w + 1) if product.cached and evaluation == "rows" else (1, evaluated)
            cell = product.name, product.inputs or 0, product.outputs or 0, k, w, context, evaluation, evaluated
            moved, done = copies * product.bytes(context, tokens), copies * product.flops(tokens, context)
            lines.append((*cell, float(moved), float(done), float(product.intensity(tokens, context)), bound))
        return {"block_times": times, "intensity": pd.DataFrame(lines, columns=_COLUMNS)}
