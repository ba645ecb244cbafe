"""Reports the cost of a target call: the fit, its error, the ridge, the share of the bandwidth, operations per byte."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from specdec.theory.roofline import Product, call_bytes, call_flops, ridge_rows

from .call_cost import ALL, TILES, CallCost, PredictionError, call_table, fit_cost, held_out

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


@dataclass(frozen=True)
class CostReport:
    """The fitted cost of a call and its errors, as `cost.json` holds them."""

    model: CallCost
    table: pd.DataFrame  # as from `call_table`
    context: int  # the middle one of the measured contexts, at which single figures are given
    # by_rows, by_context: prediction errors on held-out rows and contexts, where there are enough
    by_rows: PredictionError | None
    by_context: PredictionError | None
    # best rates of the machine, dtype, and operations per byte where arithmetic binds (`threshold`)
    machine: Mapping[str, Any]
    complete: bool  # False if time ran out before all calls asked for were timed

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
        fitted = self.model.seconds(self.table["rows"].to_numpy(), self.table["context"].to_numpy())
        return pd.Series(abs(fitted / self.table["seconds"].to_numpy() - 1) <= HOLDS, index=self.table.index)

    @property
    def metrics(self) -> dict[str, float]:
        """Logged metrics: `cost/fit_error` (median relative error on held-out rows), `cost/ridge_n` (of the fit) and
        `cost/bandwidth_share` (bytes over t(1), over the machine's bandwidth); absent where they do not exist.
        """
        values = {
            "cost/fit_error": None if self.by_rows is None else self.by_rows.median,
            "cost/ridge_n": self.model.ridge(self.context),
            "cost/bandwidth_share": self.read_bytes / self.t1 / self.machine["bytes_per_second"],
        }
        return {name: value for name, value in values.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        model, products = self.model, self.model.products
        contexts = sorted(int(context) for context in self.table["context"].unique())
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
                for context in contexts
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


def cost_report(calls: Mapping[str, Any], products: Sequence[Product], machine: Mapping[str, Any]) -> CostReport:
    """Fit the cost to `calls` (`grid` of calibration.json), given the target's products and the machine's rates."""
    table = call_table(calls["cells"])

    def fit(part: pd.DataFrame) -> CallCost:
        return fit_cost(part, products, machine["bytes_per_second"])

    contexts = sorted(int(context) for context in table["context"].unique())
    return CostReport(
        model=fit(table),
        table=table,
        context=contexts[len(contexts) // 2],
        by_rows=held_out(table, fit, "rows"),
        by_context=held_out(table, fit, "context"),
        machine=machine,
        complete=bool(calls["complete"]),
    )
