"""Where verification stops being nearly free: t(k, w, context) of blocks, and what each matrix product moves and
computes for them beside what the machine can (N-Grammys, 2411.03786; THEORY 7).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import pandas as pd
import torch
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.errors import UsageError
from specdec.sampling import generator_for
from specdec.studies.base import Bench, Study, studies
from specdec.theory.roofline import Product, threshold
from specdec.timing.blocks import Block, time_blocks, tokens_evaluated
from specdec.timing.machine import Machine, measure_machine


@typed
class PhaseTransitionConfig:
    name: Literal["phase_transition"]
    k: Annotated[list[AtLeastOne], Field(min_length=1)]
    w: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    contexts: Annotated[list[AtLeastOne], Field(min_length=1)]
    calls: AtLeastOne
    seconds: Annotated[float, Field(gt=0)]


@studies.register("phase_transition")
class PhaseTransition(Study):
    """Tables: `block_times`, as `time_blocks` has it, of all k x w and of (1, 0) and (1, 1), the units; `intensity`, a
    row for each product, block and context. No text is decoded: the cache is filled with the first prompt, repeated.
    """

    def __init__(self, config: PhaseTransitionConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        config, target = self._config, bench.parts.target
        if bench.simulated:
            raise UsageError(
                "Bad value target.name=replay: study 'phase_transition' times the calls of a model; use target=causal."
            )
        times = time_blocks(
            target,
            bench.parts.prompts.prompts[0].tokens,
            blocks=[(1, 0), (1, 1), *((k, w) for k in config.k for w in config.w)],
            contexts=config.contexts,
            calls=config.calls,
            clock=bench.clock,
            generator=generator_for(bench.config.seed, "blocks", "cost"),
            heartbeat=bench.heartbeat,
            seconds=config.seconds,
        )
        timed = times[times["missing"] == ""]
        cells = timed[["k", "w", "context"]].drop_duplicates().itertuples(index=False, name=None)
        products = target.products()
        # The machine last: its large buffers are no part of what was timed.
        machine = measure_machine(target.device, getattr(torch, target.describe()["dtype"])) if products else None
        return {"block_times": times, "intensity": _intensity(products, cells, target.evaluation, machine)}


_COLUMNS = (
    "product",
    "inputs",
    "outputs",
    "k",
    "w",
    "context",
    "rows_evaluated",
    "bytes",
    "flops",
    "operations_per_byte",
    "threshold",
)


def _intensity(
    products: Sequence[Product], cells: Iterable[tuple[int, int, int]], evaluation: str, machine: Machine | None
) -> pd.DataFrame:
    """What a call reads and computes by product, and its operations per byte moved; sizes are 0 along the cache."""
    if machine is None:
        return pd.DataFrame(columns=list(_COLUMNS))
    bound = threshold(machine.bytes_per_second, machine.flops_per_second)
    rows = []
    for k, w, context in cells:
        for product in products:
            copies, tokens = _shared((k, w), evaluation, product)
            rows.append(
                (
                    product.name,
                    product.inputs or 0,
                    product.outputs or 0,
                    k,
                    w,
                    context,
                    tokens_evaluated(k, w, evaluation),
                    float(copies * product.bytes(context)),
                    float(copies * product.flops(tokens, context)),
                    float(product.intensity(tokens, context)),
                    bound,
                )
            )
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _shared(block: Block, evaluation: str, product: Product) -> tuple[int, int]:
    """How many times a call on a block reads the matrices of a product, and for how many tokens each time. A batch of
    rows reads a copy of the cache for each row; weights are read once for all.
    """
    k, w = block
    if product.cached and evaluation == "rows" and w:
        return k, w + 1
    return 1, tokens_evaluated(k, w, evaluation)
