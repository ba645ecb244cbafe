"""The seconds that target=replay charges for calls which it does not run, by coefficients that were published or
measured (`specdec.targets.replay` finds them). Imports no torch.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from specdec.config import AtLeastOne, typed, validated
from specdec.theory.roofline import Product, call_bytes, call_flops, distinct_experts

Seconds = Annotated[float, Field(ge=0.0)]


@typed
class DraftCost:
    """The seconds of one draft by a model: `fixed_s` once, `step_s` for every level of depth, and `cached_s` for every
    cached token, which the drafter attends to as well.
    """

    fixed_s: Seconds
    step_s: Seconds
    cached_s: Seconds

    def seconds(self, depth: Any, context: Any = 0) -> Any:
        """Return the seconds of a draft `depth` deep behind `context` cached tokens, numbers or arrays [N] of many
        drafts; an empty one costs nothing.
        """
        return (self.fixed_s + self.step_s * depth + self.cached_s * context) * (depth > 0)


@typed
class ExpertCost:
    """The seconds of reading one of `experts` in all layers of a mixture, of which each token takes `chosen`."""

    experts: AtLeastOne
    chosen: AtLeastOne
    seconds: Seconds


@typed
class SimulatedCost:
    """t(rows, context, copies), seconds (theory.md 7.2, with the terms of `analysis.cost.call_cost.CallCost`):

        t = fixed_s + token_s x context + (reading, computing)
        reading = weights_s + cached_s x context x copies + experts
        computing = rows' x (row_s + key_s x keys),  rows' = rows rounded up to whole tiles

    `experts` are those that the tokens of a mixture choose, each kind as many as `distinct_experts` expects (theory.md
    7.6). `rows` are the tokens of the call. `(reading, computing)` is the larger of the two with `overlap`, else their
    sum; keys are the tokens that a token attends to, masked ones of its own sequence included.
    """

    name: str
    source: str  # of these coefficients
    fixed_s: Seconds
    token_s: Seconds
    weights_s: Seconds
    cached_s: Seconds
    row_s: Seconds
    key_s: Seconds
    tile: AtLeastOne
    overlap: bool
    lookup_s: Seconds  # that a draft by look-up takes; an empty one takes nothing
    lookup_share: Seconds  # the same, as a share of the verifying call
    draft: DraftCost  # of a drafter that is a model
    overhead_s: Seconds  # of acceptance, commit and the rest, in every round of every method, the baseline included
    experts: tuple[ExpertCost, ...] = ()  # by kind; none for a dense model

    def seconds(self, rows: Any, context: Any, copies: Any = 1) -> Any:
        """Return the seconds of a call on `rows` tokens, in `copies` sequences that each read `context` cached ones:
        numbers, or arrays [N] of many calls.
        """
        reading = self.weights_s + self.cached_s * context * copies + self.expert_seconds(rows)
        computed = -(-rows // self.tile) * self.tile
        computing = computed * (self.row_s + self.key_s * (context + computed / copies))
        join = np.maximum(reading, computing) if self.overlap else reading + computing
        return self.fixed_s + self.token_s * context + join

    def expert_seconds(self, rows: Any) -> Any:
        """Return the seconds of reading the experts that `rows` tokens choose; 0 for a dense model."""
        return sum(
            kind.seconds * distinct_experts([kind.chosen / kind.experts] * kind.experts, rows) for kind in self.experts
        )

    def lookup_seconds(self, call: Any) -> Any:
        """Return the seconds of a look-up that proposes something; `call` are those of the call that verifies it."""
        return self.lookup_s + self.lookup_share * call


def measured_cost(calls: Mapping[str, Any], drafts: Mapping[int, float], **rest: Any) -> SimulatedCost:
    """Return the costs of calls with these coefficients and of drafts by a model, by their seconds for each depth. The
    `rest` are further values, such as name and source; a coefficient that is nowhere is 0.
    """
    fixed, step = line_through(drafts)
    values: dict[str, Any] = dict.fromkeys(("fixed_s", "token_s", "weights_s", "cached_s", "row_s", "key_s"), 0.0)
    values |= dict.fromkeys(("lookup_s", "lookup_share", "overhead_s"), 0.0) | {"tile": 1, "overlap": False}
    values |= {**calls, "draft": {"fixed_s": fixed, "step_s": step, "cached_s": 0.0}, **rest}
    return validated(SimulatedCost, values, where="cost")


def fitted_calls(cost: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a `CallCost` (analysis), fitted as `cost.json` holds it, into these coefficients: its products become sums
    over weights and cache.
    """
    fit, products = cost["fit"], [Product(**product) for product in cost["products"]]
    weights, cache = ([each for each in products if each.cached == cached] for cached in (False, True))
    read = defaultdict[tuple[int, int], float](float)  # experts, chosen -> bytes of one expert, in all layers
    for product in weights:
        if product.experts > 1:
            read[product.experts, product.chosen] += float(product.bytes_per_value * product.values(1))
    return {
        "fixed_s": fit["fixed"],
        "token_s": fit["token_seconds"],
        "weights_s": float(call_bytes((each for each in weights if each.experts == 1), 1)) / fit["bandwidth"],
        "cached_s": float(call_bytes(cache, 1)) / fit["bandwidth"],
        "row_s": float(call_flops(weights, 1, 0)) * fit["flop_seconds"],
        "key_s": float(call_flops(cache, 1, 0)) * fit["flop_seconds"],
        "tile": fit["tile"],
        "overlap": fit["overlap"],
        "experts": [
            {"experts": experts, "chosen": chosen, "seconds": size / fit["bandwidth"]}
            for (experts, chosen), size in read.items()
        ],
    }


def line_through(times: Mapping[int, float]) -> tuple[float, float]:
    """Return intercept and slope of the least-squares line, neither negative; a single point gives a constant."""
    if len(times) < 2:
        return next(iter(times.values()), 0.0), 0.0
    x_mean, y_mean = sum(times) / len(times), sum(times.values()) / len(times)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in times.items()) / sum((x - x_mean) ** 2 for x in times)
    slope = min(max(slope, 0.0), y_mean / x_mean)
    return y_mean - slope * x_mean, slope
