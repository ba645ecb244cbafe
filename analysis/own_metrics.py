"""Metrics of one's own: one registered function each, a finished run in, a value out, logged as `own/NAME`.

    @metric("longest_round")
    def longest_round(run: Run) -> float:
        return run.rounds()["round_s"].max()

A function stands in a package with the entry point `specdec.metrics` (`python -m specdec.new metric NAME` writes one).
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from math import isfinite

from .read.runs import Run

GROUP, OWN = "specdec.metrics", "own/"  # of entry points; how names of such metrics begin
OwnMetric = Callable[[Run], float]
_METRICS: dict[str, OwnMetric] = {}


def metric(name: str) -> Callable[[OwnMetric], OwnMetric]:
    """Return a decorator that registers a function as the metric `own/NAME`. ValueError if another has the name."""

    def add(function: OwnMetric) -> OwnMetric:
        taken = _METRICS.get(name)
        if taken is not None and taken.__module__ != function.__module__:
            raise ValueError(f"metric {name!r} is registered already, by {taken.__module__}")
        _METRICS[name] = function
        return function

    return add


def own_metrics(run: Run) -> tuple[dict[str, float], list[str]]:
    """Return the values of all registered functions, and a sentence for each that gave none or raised."""
    values: dict[str, float] = {}
    notes: list[str] = []
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # a package of somebody else may raise anything
            notes.append(_left_out(entry.name, error))
    for name, function in sorted(_METRICS.items()):
        try:
            value = float(function(run))
        except Exception as error:  # as above
            notes.append(_left_out(name, error))
            continue
        if isfinite(value):
            values[OWN + name] = value
        else:
            notes.append(f"Metric own/{name} is left out: its function returned {value}.")
    return values, notes


def _left_out(name: str, error: BaseException) -> str:
    why = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
    return f"Metric own/{name} is left out, its function or import raised {why}."
