"""How to serve what a run measured, and what was fastest of several runs: from their files, by `analysis.engines`."""

from collections.abc import Mapping, Sequence
from math import ceil, isnan
from typing import Any

import numpy as np

from specdec.errors import UsageError

from ..engines.measured_drafter import Alone, Measured
from ..engines.recommendation import Recommendation, recommend
from ..intervals import Interval
from ..read.runs import Run
from ..sections import Section, counted
from .compare import content_hash

FASTEST = "To serve the fastest"


def measured_depths(run: Run, arms: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the drafter of a run at every depth (of `arms`) that has a speedup. UsageError for a missing file."""
    environment, facts = run.environment(), run.facts()
    drafter = environment.get("drafters", {}).get(run.method) if run.method else environment.get("drafter")
    gpu, cpu = environment.get("gpu") or {}, environment.get("cpu") or {}
    calls: dict[int, float] = {}
    try:
        calibration = run.calibration()
        cells = (calibration.get("grid") or {}).get("cells") or []
        # At the shortest context: the longest runs into a cache that no batch of these prompts would fill.
        shortest = min((cell["context"] for cell in cells), default=0)
        calls = {cell["rows"]: float(np.median(cell["seconds"])) for cell in cells if cell["context"] == shortest}
        texts = run.generations()
        prompt, output = texts["prompt_token_ids"].map(len).mean(), texts["tokens"].mean()
    except UsageError:
        pass  # made of another engine's files, or cut off before: one sequence says nothing of several
    depths = []
    for arm in arms:
        depth, nodes = int(arm["gamma"]), float(arm.get("nodes_per_round", "nan"))
        if "speedup" not in arm:
            continue
        depths.append(
            Measured(
                params=run.params,
                depth=depth,
                # The last drafts of a text, which are cut, leave the mean below the tokens that a draft offers.
                nodes=depth if facts.single or isnan(nodes) else max(depth, ceil(nodes)),
                speedup=Interval.from_metrics(arm, "speedup"),
                drafter=drafter or {},
                simulated=facts.simulated,
                lossless=facts.lossless,
                machine=str(gpu.get("name") or cpu.get("model") or ""),
                alone=Alone(calls, arm["tokens_per_round"], nodes, prompt, output) if calls and nodes > 0 else None,
            )
        )
    return depths


def run_recommendation(*runs: Run) -> Recommendation:
    """Recommend how to serve the fastest drafter of some runs whose outputs are not refuted, at its best depth."""
    drafters = [(own, run.summary()) for run in runs for own in run.drafters]
    depths = [
        measured_depths(own, summary["beside"][own.method] if own.method else summary["arms"])
        for own, summary in drafters
        if not own.refuted
    ]
    if not any(depths):
        why = "there is no speedup that one could rest on"
        if len(depths) < len(drafters):
            why = "outputs are refuted, and what is wrong is not served"
        return Recommendation(f"No recommendation: {why}.")
    known = filter(None, depths)
    return recommend(max(known, key=lambda of_drafter: max(depth.speedup.estimate for depth in of_drafter)))


def fastest_section(runs: Sequence[Run]) -> Section:
    """Say how to serve the fastest run. UsageError if runs differ in model, machine or prompts, or lack a file."""
    settings = {(run.setting, content_hash(run, "model"), content_hash(run, "prompts")) for run in runs}
    if len(settings) > 1:
        raise UsageError(
            f"{counted(len(settings), 'setting')} of model, hardware and prompts do not compare: each run has its own."
        )
    section = run_recommendation(*runs).section(FASTEST)
    trusted = [run for run in runs if not all(own.refuted for own in run.drafters)]
    left_out = " whose outputs are not refuted" if len(trusted) < len(runs) else ""
    which = f"The fastest drafter of {counted(len(trusted), 'run')}{left_out}"
    how = f"{which}, each at its best depth; *Comparison* says how firmly."
    return Section(section.title, (section.text[0], how, *section.text[1:]))
