"""Computes what a run found from the files in its folder alone: metrics and curves by the names that are logged, and
sections for people. Nothing of the run that made the files needs to be alive, and torch need not be installed.
"""

from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from ..acceptance.prediction import HeldOutPrediction, Undetermined
from ..acceptance.prediction_section import held_out, section_of
from ..account.account_sections import account_section, verdict
from ..account.formula_gap import FORMULA_ERRORS, account_gap, formula_verdict
from ..account.gap_account import Account
from ..findings import Findings, Section
from ..read.runs import Run
from .closing import MeasuredRun, closing_of_several, closing_sentences
from .drafters_section import drafters_section, paired_metrics, two_fastest
from .first_screen import first_screen
from .model_curves import ENDS, MODELS, Curves, model_curves, model_metrics
from .peers_section import peer_notes, peers_section
from .quality import quality_metrics
from .run_metrics import (
    limit_metrics,
    lossless_metrics,
    memory_metrics,
    null_metrics,
    operation_metrics,
    peer_metrics,
    prompt_metrics,
    total_variation,
)
from .run_notes import residual_notes, run_notes
from .run_sections import (
    category_section,
    cost_section,
    curves_section,
    figures_section,
    fitted_cost,
    headed,
    lengths_section,
    papers_section,
    summary_section,
)
from .sampled import sampled_metrics
from .serving_sections import run_recommendation
from .summary import RunTables, Summary, summarise


@dataclass(frozen=True, kw_only=True)
class RunFindings(Findings):
    """The findings of a run.

    Attributes:
        arms: the metrics of every depth, with `gamma` and `primary`: a line each for the summary table.
        notes: sentences that a reader must not miss.
        account: the content of `account.json`.
        alpha_source: what stands behind `account/alpha`: "text" or "mle".
        depth_name: what the depth of a draft is called in tables.
        drafter: the method that these figures are about.
        simulated: times come from a cost model.
        lossy: the verifier declares that it does not keep the target's law.
        serving: how to serve the drafter, as `engines.recommendation` says it.
        beside: the findings of the session's other drafters by their method, without sections.
        closing: the few sentences that a person needs, for the terminal; the notes and sections say more.
    """

    arms: list[dict[str, Any]]
    notes: list[str]
    account: dict[str, Any]
    alpha_source: str
    depth_name: str
    drafter: str = ""
    simulated: bool = False
    lossy: bool = False
    serving: dict[str, Any] = field(default_factory=dict)
    beside: "dict[str, RunFindings]" = field(default_factory=dict)
    closing: list[str] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        others = {"beside": {name: each.arms for name, each in self.beside.items()}} if self.beside else {}
        known = {"metrics": self.metrics, "curves": self.curves, "arms": self.arms, "notes": self.notes, **others}
        if self.refuted:
            known["refuted"] = self.refuted
        return {**known, "serving": self.serving} if self.serving else known

    def overlays(self) -> dict[str, Curves]:
        """Return the lines of each chart that lays measurement and models over one another, by the key that they share:
        `curve/tokens_per_round` and `curve/speedup`, and the interval of what was measured as `.ci_low` and `.ci_high`.
        """
        found: dict[str, Curves] = {}
        for key, prefix in (("curve/tokens_per_round", "curve/"), ("curve/speedup", "curve/speedup/")):
            for end in ENDS:
                names = {name: f"{prefix}{name}{end}" for name in (MODELS if end == "" else ("measured",))}
                found[key + end] = {name: self.curves[curve] for name, curve in names.items() if curve in self.curves}
        return {key: lines for key, lines in found.items() if lines}


def run_findings(run: Run) -> RunFindings:
    """Compute everything that a run says.

    Raises:
        UsageError: the run lacks a file that it needs, or tables contradict themselves.
    """
    found, measured, summary, prediction = _of_one_drafter(run)
    if run.beside:
        found = _with_others(run, found, measured)
    seen = replace(run, metrics=found.metrics, curves=found.curves, concluded=found.summary)
    serving = run_recommendation(seen)
    sections = (*_sections(seen, found, summary, prediction), serving.section())
    return replace(found, sections=sections, serving=serving.as_dict())


def _with_others(run: Run, found: RunFindings, measured: MeasuredRun) -> RunFindings:
    """Add what the session's other drafters gave, their figures as `drafter/NAME/*`."""
    replicates, seed = run.whole_number("measurement.bootstrap"), run.whole_number("seed")
    every = {name: _of_one_drafter(run.of_drafter(name))[:2] for name in run.beside}
    others = {name: each for name, (each, _) in every.items()}
    runs = {found.drafter: measured, **{name: each for name, (_, each) in every.items()}}
    prefixed = {
        kind: {
            f"drafter/{name}/{key}": value
            for name, each in others.items()
            for key, value in getattr(each, kind).items()
        }
        for kind in ("metrics", "curves")
    }
    metrics = {**found.metrics, **prefixed["metrics"]}
    seen = replace(run, metrics=metrics)
    notes = [
        f"Drafter {name}: {note}"
        for name, each in others.items()
        for note in each.notes
        if note not in (*found.notes, each.refuted)
    ]
    compared = drafters_section(seen, replicates, seed).text[:2]
    verdicts = [found.refuted] if found.refuted else []
    verdicts += [
        f"Drafter {name}: {each.refuted}" for name, each in others.items() if each.refuted not in ("", found.refuted)
    ]
    return replace(
        found,
        metrics=metrics | paired_metrics(run, replicates, seed),
        curves={**found.curves, **prefixed["curves"]},
        notes=[*verdicts, *compared, *(note for note in found.notes if note not in verdicts), *notes],
        beside=others,
        closing=closing_of_several(runs, two_fastest(run, replicates, seed)),
        refuted=" ".join(verdicts),
    )


def _of_one_drafter(run: Run) -> tuple[RunFindings, MeasuredRun, Summary, HeldOutPrediction | Undetermined]:
    """Compute the figures and notes of the run's drafter, without sections."""
    facts, session, environment = run.facts(), run.session(), run.environment()
    replicates, seed = run.whole_number("measurement.bootstrap"), run.whole_number("seed")
    arms, generations, replay, alpha_sums = run.arms(), run.generation_counts(), run.replay(), run.alpha_sums()
    own = replay[replay["kind"] == "own"]
    has_alpha = len(alpha_sums) > 0 and alpha_sums["denominator"].sum() > 0
    tables = RunTables(
        arms,
        generations,
        alpha_sums if has_alpha else None,
        {int(gamma): part for gamma, part in own.groupby("gamma")},
    )
    summary = summarise(tables, facts.primary_gamma, replicates, seed=seed)
    arm = summary.arms[facts.primary_gamma]
    peers = run.peers()
    cost = fitted_cost(run, run.calibration())
    # A recorded text is replayed to measure, so a replay of it would predict text that it has read.
    other = None if facts.simulated else replay[replay["kind"] == "baseline"]
    prediction = held_out(arms, alpha_sums, other, replicates, seed)
    curves = model_curves(summary, prediction, replay, facts, replicates, seed)
    standing = run.standing()
    control = null_metrics(arms, replicates, seed)
    metrics = {
        **arm.metrics,
        **({} if run.method else control),  # it is the session's, whatever the drafter
        **model_metrics(curves, facts.primary_gamma),
        **operation_metrics(summary, facts),
        **({} if facts.simulated else lossless_metrics(session)),
        **total_variation(run.rounds, facts, replicates, seed),
        **(quality_metrics(run.rounds(), run.quality(), facts.primary_gamma, replicates, seed) if facts.judge else {}),
        **limit_metrics(summary),
        **peer_metrics(peers["generations"], run.generations, facts.greedy, replicates, seed),
        **sampled_metrics(run.sampled(), replicates, seed),
        **memory_metrics(session, environment),
        **prompt_metrics(standing),
        **({"alpha.text": summary.alpha} if has_alpha else {}),
        **({} if cost is None else cost.metrics),
    }
    if facts.primary_gamma in facts.predicted:
        metrics["speedup.predicted"] = facts.predicted[facts.primary_gamma]
    refuted = "" if facts.simulated or facts.forced else session.refuted
    notes = [
        *([refuted] if refuted else []),
        *([standing.note] if standing and standing.note else []),
        formula_verdict(account_gap(arm.account)),
        verdict(arm.account, facts.simulated, control.get("null/floor", 0.0)),
        *run_notes(metrics, facts, session, environment["prompts"]),
        *residual_notes(run.fetch("rounds.parquet"), facts),
        *peer_notes(peers, metrics),
    ]
    if peers["peers"] and not facts.single:
        notes.append(f"Other engines draft chains only: structure={facts.structure} has no peer but plain generation.")
    dtype = str(environment.get("model", {}).get("dtype", "float64"))
    measured = MeasuredRun(metrics, arm.account, facts, session, standing, dtype)
    found = RunFindings(
        sections=(),
        metrics=metrics,
        curves=curves,
        arms=[
            {
                "gamma": gamma,
                "primary": gamma == summary.primary_gamma,
                **item.metrics,
                **model_metrics(curves, gamma),
                **_errors(item.account),
            }
            for gamma, item in summary.arms.items()
        ],
        notes=notes,
        account=_account(summary),
        alpha_source=summary.alpha_source,
        depth_name=facts.depth_name,
        drafter=facts.drafter,
        simulated=facts.simulated,
        lossy=not facts.lossless,
        closing=closing_sentences(measured),
        refuted=refuted,
    )
    return found, measured, summary, prediction


def _errors(account: Account) -> dict[str, float]:
    """Return the errors of the textbook formula at one gamma with their paired intervals, as the curves show them."""
    found: dict[str, float] = {}
    for name in FORMULA_ERRORS:
        found |= {key: value for key, value in account.intervals[name].as_metrics(name).items() if not isnan(value)}
    return found


def _sections(
    run: Run, found: RunFindings, summary: Summary, prediction: HeldOutPrediction | Undetermined
) -> tuple[Section, ...]:
    """Make the sections of the run's own page but the last; a report on runs has these and the slower ones.

    Args:
        run: with the metrics, curves and summary of `found`.
    """
    replicates, seed = run.whole_number("measurement.bootstrap"), run.whole_number("seed")
    predicted = section_of(prediction, run.title, seed)
    peers = run.peers()
    beside = [*peers["peers"], *peers.get("left_out", ())]
    sections = (
        summary_section(run),
        figures_section(run),
        *([drafters_section(run, replicates, seed)] if run.beside else []),
        account_section(
            summary.arms[summary.primary_gamma].account, run.title, found.simulated, run.metrics.get("null/floor", 0.0)
        ),
        *([peers_section(run)] if beside else []),
        curves_section(run),
        lengths_section(run),
        category_section(run),
        papers_section(run),
        cost_section(run),
        replace(predicted, title="Prediction", tables=predicted.tables[:1]),
    )
    return tuple(first_screen([headed(section, run) for section in sections]))


def _account(summary: Summary) -> dict[str, Any]:
    """Return the factors, their intervals and the time split, by gamma: `account.json`."""
    return {
        "alpha": summary.alpha,
        "alpha_source": summary.alpha_source,
        "primary_gamma": summary.primary_gamma,
        "gammas": {
            gamma: {
                "speedup": arm.account.speedup,
                "product": arm.account.product,
                "factors": arm.account.factors,
                "time": arm.account.time,
                "intervals": {name: vars(item) for name, item in arm.account.intervals.items()},
                "iid": {name: vars(test) for name, test in arm.iid.items()},
            }
            for gamma, arm in summary.arms.items()
        },
    }
