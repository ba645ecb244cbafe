"""Computes what a run found from the files in its folder alone: metrics and curves by the names that are logged, and
sections for people. Nothing of the run needs to be alive, and torch need not be installed.
"""

from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Any

from ..acceptance.model_sections import as_stored
from ..acceptance.prediction import HeldOutPrediction, Undetermined
from ..acceptance.prediction_section import held_out, section_of
from ..account.account_sections import account_section
from ..account.gap_account import REPORTED
from ..account.run_account import SharedWork
from ..account.verdicts import FORMULA_ERRORS, formula_verdict, verdict
from ..busy_machine import calibration_notes
from ..comparisons import OVER_FASTEST
from ..intervals import ENDS
from ..own_metrics import own_metrics
from ..read.facts import RunFacts
from ..read.runs import Run
from ..sections import Findings
from . import run_metrics, run_sections
from .compare import score_gammas
from .leaderboard import ScoredArms, open_arms
from .run_metrics import MODELS, Curves, Summary, model_curves, model_metrics, summarise
from .sentences import MeasuredRun, closing_of_several, closing_sentences, reasons, run_notes
from .side_by_side import SideBySide, drafters_section, peer_notes, peers_section


@dataclass(frozen=True, kw_only=True)
class RunFindings(Findings):
    arms: list[dict[str, Any]]  # the metrics of every depth, with `gamma` and `primary`
    notes: list[str]  # sentences that a reader must not miss
    account: dict[str, Any]  # the content of `account.json`
    alpha_source: str  # what stands behind `account/alpha`: "text" or "mle"
    facts: RunFacts  # what was run: the method that these figures are about, its verifier, whether time is simulated
    serving: dict[str, Any] = field(default_factory=dict)  # how to serve the drafter, by `engines.recommendation`
    reasons: list[str] = field(default_factory=list)  # what explains the run before its figures do, said first
    beside: "dict[str, RunFindings]" = field(default_factory=dict)  # of the other drafters by method, without sections
    closing: list[str] = field(default_factory=list)  # the few sentences that a person needs, for the terminal
    # what each drafter's models predict of prompts that they have not seen, as `summary.json` holds it
    predictions: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        always = {"metrics": self.metrics, "curves": self.curves, "arms": self.arms, "notes": self.notes}
        named = {name: getattr(self, name) for name in ("refuted", "reasons", "serving", "predictions")}
        others = {"beside": {name: other.arms for name, other in self.beside.items()}, **named}
        return always | {name: value for name, value in others.items() if value}

    def overlays(self) -> dict[str, Curves]:
        """Return the lines of each chart that lays measurement and models over one another, by the key that they share:
        `curve/tokens_per_round` and `curve/speedup`, with the measured interval as `.ci_low` and `.ci_high`.
        """
        charts: dict[str, Curves] = {}
        for key, prefix in (("curve/tokens_per_round", "curve/"), ("curve/speedup", "curve/speedup/")):
            for end in ENDS:
                names = {name: f"{prefix}{name}{end}" for name in (MODELS if end == "" else ("measured",))}
                charts[key + end] = {name: self.curves[curve] for name, curve in names.items() if curve in self.curves}
        return {key: lines for key, lines in charts.items() if lines}


def run_findings(run: Run) -> RunFindings:
    """Compute everything that a run says. UsageError for a missing file, or tables that contradict themselves."""
    findings, measured, prediction = _of_one_drafter(run)
    if run.beside:
        findings = _with_others(run, findings, measured)
    seen = replace(run, metrics=findings.metrics, curves=findings.curves, concluded=findings.summary)
    own, left_out = own_metrics(seen)
    findings = replace(findings, metrics=findings.metrics | own, notes=[*findings.notes, *left_out])
    seen = replace(seen, metrics=findings.metrics, concluded=findings.summary)
    serving = run_sections.run_recommendation(seen)
    predicted, peers = section_of(prediction, seen.title), seen.peers()
    sections = (
        run_sections.summary_section(seen),
        run_sections.figures_section(seen),
        *([drafters_section(seen)] if seen.beside else []),
        account_section(measured.account, seen),
        *([peers_section(seen)] if peers["peers"] or peers.get("left_out") else []),
        run_sections.curves_section(seen),
        run_sections.lengths_section(seen),
        run_sections.category_section(seen),
        run_sections.papers_section(seen),
        run_sections.cost_section(seen),
        replace(predicted, title="Prediction", tables=predicted.tables[:1]),
    )  # a report on runs has these and the slower ones
    shown = (*run_sections.arranged(sections, seen), serving.section())
    return replace(findings, sections=shown, serving=asdict(serving))


def _with_others(run: Run, findings: RunFindings, measured: MeasuredRun) -> RunFindings:
    metrics, curves, runs = dict(findings.metrics), dict(findings.curves), {findings.facts.drafter: measured}
    verdicts = [findings.refuted] if findings.refuted else []
    others: dict[str, RunFindings] = {}
    notes: list[str] = []
    for name in run.beside:
        other, runs[name], _ = _of_one_drafter(run.of_drafter(name))
        others[name] = other
        metrics |= {f"drafter/{name}/{key}": value for key, value in other.metrics.items()}
        curves |= {f"drafter/{name}/{key}": curve for key, curve in other.curves.items()}
        notes += [f"Drafter {name}: {note}" for note in other.notes if note not in (*findings.notes, other.refuted)]
        if other.refuted not in ("", findings.refuted):
            verdicts.append(f"Drafter {name}: {other.refuted}")
    paired = SideBySide.of(run)
    own_notes = [note for note in findings.notes if note not in verdicts]
    return replace(
        findings,
        metrics=metrics | paired.metrics(),
        curves=curves,
        notes=[*verdicts, *filter(None, paired.in_words()), *own_notes, *notes],
        beside=others,
        closing=closing_of_several(runs, paired.two_fastest()),
        predictions={name: found for each in (findings, *others.values()) for name, found in each.predictions.items()},
        refuted=" ".join(verdicts),
    )


def _of_one_drafter(run: Run) -> tuple[RunFindings, MeasuredRun, HeldOutPrediction | Undetermined]:
    facts, session, environment, standing = run.facts(), run.session(), run.environment(), run.standing()
    replicates = run.replicates
    arms, replay, alpha_sums, peers = run.arms(), run.replay(), run.alpha_sums(), run.peers()
    work = SharedWork.of(arms, facts.primary_gamma, alpha_sums, replay, run.experts())
    summary = summarise(work, run.generations(texts=False), replicates)
    primary, account = summary.primary, summary.primary.account
    cost = run_sections.fitted_cost(run, run.calibration())
    # A recorded text is replayed to measure, so a replay of it would predict text that it has read.
    other = None if facts.simulated else replay[replay["kind"] == "baseline"]
    prediction = held_out(arms, alpha_sums, other, replicates)
    curves = model_curves(summary, prediction, replay, facts, replicates)
    control = run_metrics.null_metrics(arms, replicates)
    metrics = {
        **primary.metrics,
        **({} if run.method else control),  # it is the session's, whatever the drafter
        **model_metrics(curves, facts.primary_gamma),
        **run_metrics.operation_metrics(summary, facts),
        **run_metrics.total_variation(run.rounds, facts, replicates),
        **run_metrics.limit_metrics(summary),
        **run_metrics.peer_metrics(peers["generations"], run.generations, facts.greedy, replicates),
        **run_metrics.sampled_metrics(run.sampled(), replicates, timed=not work.machine.doubt),
        "memory/peak_mb": session.peak_mb,  # which cannot be below the weights and the largest cache
        "memory/weights_mb": environment.get("model", {}).get("weight_bytes", 0) / 2**20,
        "memory/cache_mb": session.cache_bytes / 2**20,
        **({} if cost is None else cost.metrics),
    }
    if facts.judge:
        metrics |= run_metrics.quality_metrics(run.rounds(), run.quality(), facts.primary_gamma, replicates)
    if session.compared and not facts.simulated:
        metrics["lossless/identical"] = session.identical / session.compared
        metrics["lossless/divergences"] = float(session.compared - session.identical)
        metrics["lossless/unexplained"] = float(session.unexplained)
    if standing is not None:  # else an earlier version's run
        metrics |= {"prompts/done": standing.prompts_done, "prompts/left_out": standing.left_out}
    if facts.primary_gamma in facts.predicted:
        metrics["speedup.predicted"] = facts.predicted[facts.primary_gamma]
    dtype = str(environment.get("model", {}).get("dtype", "float64"))
    why = reasons(summary, facts, environment["prompts"]["name"], run.calibration())
    measured = MeasuredRun(metrics, account, facts, session, standing, dtype, why)
    refuted = run.refuted
    notes = [
        *filter(None, (refuted, standing.note if standing else "")),
        *work.machine.notes(),
        *calibration_notes(run.calibration()),
        formula_verdict(account),
        verdict(account, facts.simulated, control.get("null/floor", 0.0), bool(refuted)),
        *run_notes(run, measured, environment["prompts"]),
        *peer_notes(peers, metrics),
    ]
    if peers["peers"] and not facts.single:
        notes.append(f"Other engines draft chains only: structure={facts.structure} has no peer but plain generation.")
    findings = RunFindings(
        sections=(),
        metrics=metrics,
        curves=curves,
        arms=_lines(summary, curves, score_gammas(open_arms(run), replicates)),
        notes=notes,
        account=_accounts(summary),
        alpha_source=summary.alpha_source,
        facts=facts,
        closing=closing_sentences(measured),
        predictions={run.method or facts.drafter: as_stored(prediction)},
        refuted=refuted,
        reasons=why,
    )
    return findings, measured, prediction


def _lines(summary: Summary, curves: Curves, paired: ScoredArms) -> list[dict[str, Any]]:
    """Return the metrics of every gamma, with the errors of the capped geometric and the speedup over the fastest's."""
    lines, fastest = [], paired.order("speedup")[0]
    for place, (gamma, arm) in enumerate(summary.arms.items()):
        line = {"gamma": gamma, "primary": arm is summary.primary, **arm.metrics, **model_metrics(curves, gamma)}
        beside = {name: arm.account.intervals[name] for name in FORMULA_ERRORS}
        if not arm.account.doubt:
            beside[OVER_FASTEST] = paired.ratio("speedup", place, fastest)
        for name, value in beside.items():
            line |= {key: bound for key, bound in value.as_metrics(name).items() if not isnan(bound)}
        lines.append(line)
    return lines


def _accounts(summary: Summary) -> dict[str, Any]:
    accounts = {
        gamma: {
            "speedup": arm.account.speedup,
            "product": arm.account.product,
            "factors": arm.account.factors,
            "time": arm.account.time,
            "intervals": {name: vars(arm.account.intervals[name]) for name in (*arm.account.factors, *REPORTED)},
            "iid": {name: vars(test) for name, test in arm.iid.items()},
        }
        for gamma, arm in summary.arms.items()
    }
    work = summary.work
    known = {"alpha": work.alpha, "alpha_source": summary.alpha_source, "primary_gamma": work.primary_gamma}
    return {**known, "gammas": accounts}
