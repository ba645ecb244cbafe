"""How to serve what a run measured, and what was fastest of several runs: from their files, by `analysis.engines`."""

from collections.abc import Mapping, Sequence
from math import ceil, isnan
from typing import Any

from specdec.errors import UsageError

from ..engines.measured_drafter import Measured
from ..engines.recommendation import TITLE, Recommendation, recommend
from ..findings import Section, counted
from ..intervals import Interval
from ..read.runs import Run

FASTEST = "To serve the fastest"


def measured_depths(run: Run, arms: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the drafter of a run at every depth that has a speedup.

    Args:
        arms: what `summary.json` holds of this drafter.
    Raises:
        UsageError: the run lacks a file.
    """
    environment, facts = run.environment(), run.facts()
    drafter = environment.get("drafters", {}).get(run.method) if run.method else environment.get("drafter")
    gpu, cpu = environment.get("gpu") or {}, environment.get("cpu") or {}
    return [
        Measured(
            params=run.params,
            depth=int(arm["gamma"]),
            nodes=_nodes(arm, facts.single),
            speedup=Interval.from_metrics(arm, "speedup"),
            drafter=drafter or {},
            simulated=facts.simulated,
            lossless=facts.lossless,
            machine=str(gpu.get("name") or cpu.get("model") or ""),
        )
        for arm in arms
        if "speedup" in arm
    ]


def _nodes(arm: Mapping[str, Any], single: bool) -> int:
    """Return the tokens that a draft offers: the last ones of a text, which are cut, leave the mean below."""
    nodes = float(arm.get("nodes_per_round", "nan"))
    return int(arm["gamma"]) if single or isnan(nodes) else max(int(arm["gamma"]), ceil(nodes))


def run_recommendation(run: Run) -> Recommendation:
    """Recommend how to serve the drafter of a run; of several drafters of its session, the fastest.

    Raises:
        UsageError: the run lacks a file.
    """
    return _of_the_fastest([run])


def _of_the_fastest(runs: Sequence[Run]) -> Recommendation:
    """Recommend how to serve the drafter with the largest speedup of all runs."""
    found: list[list[Measured]] = []
    for run in runs:
        summary = run.summary()
        for each in run.drafters:
            found.append(measured_depths(each, summary["beside"][each.method] if each.method else summary["arms"]))
    known = [depths for depths in found if depths]
    if not known:
        return Recommendation("No recommendation: there is no speedup that one could rest on.")
    return recommend(max(known, key=lambda depths: max(each.speedup.estimate for each in depths)))


def serving_section(run: Run) -> Section:
    """Say how to serve what the run measured."""
    return run_recommendation(run).section(TITLE)


def fastest_section(runs: Sequence[Run]) -> Section:
    """Say how to serve the fastest of the runs that can be compared: one model, machine and set of prompts.

    Raises:
        UsageError: the runs differ in these, or one lacks a file.
    """
    settings = {(run.setting, _hash(run, "model"), _hash(run, "prompts")) for run in runs}
    if len(settings) > 1:
        raise UsageError(
            f"{counted(len(settings), 'setting')} of model, hardware and prompts do not compare: each run has its own."
        )
    section = _of_the_fastest(runs).section(FASTEST)
    how = f"The fastest drafter of {counted(len(runs), 'run')}, each at its best depth; *Comparison* says how firmly."
    return Section(section.title, (section.text[0], how, *section.text[1:]))


def _hash(run: Run, part: str) -> str:
    return str((run.environment().get(part) or {}).get("sha256") or "")
