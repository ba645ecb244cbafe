"""Reports the cost of a target call: the fit, its error, the ridge, the share of the bandwidth, operations per byte;
and the experts that calls of a mixture chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import nan
from typing import Any

import pandas as pd

from specdec.theory.roofline import Product, call_bytes, call_flops, ridge_rows

from .call_cost import ALL, TILES, call_table, fit_cost, held_out

HOLDS = 0.1  # relative error of the fit up to which it describes a call


def intensity_table(products: Sequence[Product], context: int) -> pd.DataFrame:
    """Return operations per byte of each matrix product: its name and size, and a column per number of rows."""
    names = [(one.name, f"{one.inputs or 'cache'} x {one.outputs or 'cache'}") for one in products]
    values = [[float(product.intensity(n, context)) for n in TILES] for product in products]
    return pd.DataFrame(names, columns=["product", "size"]).join(pd.DataFrame(values, columns=TILES))


def _scaled(value: float, unit: str) -> str:
    """Write a value with a decimal prefix, e.g. "26.2 MB"."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


class CostReport:
    """The fitted cost of a call (`model`) and its errors, as `cost.json` holds them.

    Attributes:
        table: as from `call_table`.
        contexts, context: those measured, ascending, and the middle one, at which single figures are given.
        by_rows, by_context: prediction errors on held-out rows and contexts, where there are enough.
        machine: best rates of the machine, dtype, and operations per byte where arithmetic binds (`threshold`).
        complete: False if time ran out before all calls asked for were timed.
    """

    def __init__(self, calls: Mapping[str, Any], products: Sequence[Product], machine: Mapping[str, Any]) -> None:
        """Fit the cost to `calls` (`grid` of calibration.json), given the target's products and the machine's rates."""
        fit = partial(fit_cost, products=products, bandwidth=machine["bytes_per_second"])
        self.table, self.machine, self.complete = call_table(calls["cells"]), machine, bool(calls["complete"])
        self.contexts = sorted(int(context) for context in self.table["context"].unique())
        self.model, self.context = fit(self.table), self.contexts[len(self.contexts) // 2]
        self.by_rows, self.by_context = (held_out(self.table, fit, column) for column in ("rows", "context"))

    @property
    def t1(self) -> float:
        """The measured t(1) at `context`, in seconds."""
        return float(self.table.set_index(["rows", "context"])["seconds"].loc[1, self.context])

    @property
    def read_bytes(self) -> float:
        """Bytes of weights and cache that a call on one row reads at `context`."""
        return float(call_bytes(self.model.products, self.context))

    @property
    def flops_per_row(self) -> float:
        return float(call_flops(self.model.products, 1, self.context))

    @property
    def machine_ridge(self) -> float:
        """The n from which a call without overhead, at the machine's best rates, is bound by arithmetic."""
        best = self.machine["bytes_per_second"], self.machine["flops_per_second"]
        return float(ridge_rows(call_bytes(self.model.products, self.context, ALL), self.flops_per_row, *best))

    @property
    def holds(self) -> pd.Series:
        """True for each line of `table` where the fit is within `HOLDS` of the measured time."""
        return pd.Series(self.model.errors(self.table) <= HOLDS, index=self.table.index)

    @property
    def metrics(self) -> dict[str, float]:
        """Logged metrics, absent where they do not exist: the median relative error on held-out rows, the ridge of the
        fit, and bytes over t(1) as a share of the machine's bandwidth.
        """
        values = {
            "cost/fit_error": None if self.by_rows is None else self.by_rows.median,
            "cost/ridge_n": self.model.ridge(self.context),
            "cost/bandwidth_share": self.read_bytes / self.t1 / self.machine["bytes_per_second"],
        }
        return {name: value for name, value in values.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        model, products = self.model, self.model.products
        return {
            "metrics": self.metrics,
            "context": self.context,
            "fit": {
                **{key: value for key, value in vars(model).items() if key != "products"},
                "error_rows": None if self.by_rows is None else asdict(self.by_rows),
                "error_contexts": None if self.by_context is None else asdict(self.by_context),
                "complete": self.complete,
            },
            "machine": {**self.machine, "ridge_n": self.machine_ridge},
            "products": [asdict(product) for product in products],
            "contexts": {
                context: {
                    "bytes": float(call_bytes(products, context)),
                    "flops_per_row": float(call_flops(products, 1, context)),
                    "ridge_n": model.ridge(context),
                    "operations_per_byte": intensity_table(products, context).to_dict(orient="records"),
                }
                for context in self.contexts
            },
        }

    def fit_in_words(self) -> str:
        """Say what was fitted, how far it is off, and where arithmetic outgrows reading."""
        model, ridge = self.model, self.model.ridge(self.context)
        errors = [
            f"{item.median:.1%} (worst {item.worst:.1%}) on held-out {name}"
            for name, item in (("rows", self.by_rows), ("contexts", self.by_context))
            if item is not None
        ]
        sentences = [
            f"Fit of {len(self.table)} cells (rows by context), the median of {self.table['calls'].max()} calls each"
            + ("." if self.complete else "; time ran out before all of the cells asked for were measured."),
            f"At {self.context} cached tokens: overhead {1e3 * model.overhead(self.context):.3g} ms, reading "
            f"{1e3 * model.reading(1, self.context):.3g} ms, arithmetic "
            f"{1e3 * model.flop_seconds * self.flops_per_row:.3g} ms a row in tiles of {model.tile}; reading and "
            f"arithmetic {'overlap' if model.overlap else 'take turns'}.",
            "The data show no cost of arithmetic." if ridge is None else "",
            "" if ridge is None else f"Arithmetic takes longer than reading from n = {ridge:.3g}.",
            f"Median prediction error: {', '.join(errors)}." if errors else "",
            f"It holds, within {HOLDS:.0%} of what was measured, at {self.holds.sum()} of {len(self.table)} cells; the "
            "figure draws it there alone.",
        ]
        return " ".join(sentence for sentence in sentences if sentence)

    def roofline_in_words(self) -> str:
        """Say what the machine does at best, and what share of its bandwidth a call on one row reaches."""
        machine = self.machine
        return (
            f"This machine reads {_scaled(machine['bytes_per_second'], 'B/s')} and computes "
            f"{_scaled(machine['flops_per_second'], 'flop/s')} in {machine['dtype']}, at best. A call on one row reads "
            f"{_scaled(self.read_bytes, 'B')} and does {_scaled(self.flops_per_row, 'flop')} in "
            f"{1e3 * self.t1:.3g} ms, the median behind {self.context} cached tokens: "
            f"{self.metrics['cost/bandwidth_share']:.1%} of the bandwidth. A call without any overhead, at the "
            f"machine's best, would leave the memory-bound region at n = {self.machine_ridge:.3g}."
        )


def experts_table(experts: pd.DataFrame, timed: Mapping[int, float]) -> pd.DataFrame:
    """Return the experts that verifications of a mixture chose, beside those of independent tokens (theory.md 7.6): a
    line for each number of tokens n of a call, means over its calls. experts: as `Run.experts` reads it; timed: n ->
    calibrated t(n) / t(1), where timed.
    """
    headings = {"experts": "experts a layer", "independent": "if tokens were independent",
                "uniform": "and experts equally likely", "reads": "weights read, over n = 1"}  # fmt: skip
    sums = experts.groupby("tokens")[["calls", *headings]].sum()
    table = sums[["calls"]].join(sums[[*headings]].div(sums["calls"], axis=0).rename(columns=headings))
    table["t(n) / t(1)"] = [timed.get(int(n), nan) for n in sums.index]
    return table.rename_axis("tokens n").reset_index()


def experts_in_words(experts: pd.DataFrame) -> str:
    """Say how many experts a verification of several tokens chose, and what that is of the weights."""
    several = experts[experts["tokens"] > 1]
    if several.empty:
        return "The target is a mixture of experts, and no draft token was ever verified."
    sums = several[["calls", "experts", "independent", "uniform", "reads"]].sum()
    chosen, independent, uniform, reads = sums.iloc[1:] / sums["calls"]
    tokens = (several["tokens"] * several["calls"]).sum() / sums["calls"]
    return (
        f"The target is a mixture of experts: a verification of several tokens, {tokens:.2f} in the mean, chose "
        f"{chosen:.2f} distinct experts in a layer, where as many independent tokens would choose {independent:.2f} by "
        f"the texts' own chances and {uniform:.2f} by equal ones. It read {reads:.2f} times the weights of a call on "
        "one token, which is the account's factor `experts`."
    )
