"""From the tables on disk to what is reported: metrics and curves by their stable names, figures, the report, the
summary table. Everything here could be rebuilt from the artifacts alone.
"""

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from specdec.analysis.acceptance.estimates import hazards, position_tokens
from specdec.analysis.acceptance.prediction_section import prediction_section
from specdec.analysis.account.account_sections import time_split, verdict
from specdec.analysis.account.waterfall import waterfall
from specdec.analysis.cost.cost_figure import cost_figure
from specdec.analysis.cost.cost_report import CostReport, cost_report
from specdec.analysis.figures import run_figures, style
from specdec.analysis.findings import Section
from specdec.analysis.intervals import bootstrap
from specdec.analysis.pages.html import markdown_table
from specdec.analysis.rounds import distinct_generations, drafted, shared_work
from specdec.analysis.runs.quality import OUTPUTS, quality_metrics
from specdec.analysis.runs.run_sections import interval_words, papers_of
from specdec.analysis.runs.summary import Summary, summarise
from specdec.config import BASELINE
from specdec.experiment.advice import Advice
from specdec.experiment.results import ResultsFolder
from specdec.experiment.session import Outcome
from specdec.experiment.trace import TracedGeneration, print_trace, write_trace
from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.speedup import operations
from specdec.timing.calls import Calibration
from specdec.timing.machine import measure_machine

if TYPE_CHECKING:
    from specdec.experiment.experiment import Parts

_TRACED_ROUNDS = 25  # of each generation in the terminal; trace.html has them all
Curves = dict[str, dict[int, float]]
_MODELS = ("measured", "capped_geometric", "position", "replay", "predicted")


@dataclass(frozen=True)
class Report:
    """What a run says.

    Attributes:
        metrics: by the names of DESIGN 5, of the primary gamma.
        curves: key -> gamma -> value.
        alpha_source: what stands behind `account.alpha`: "text" or "mle".
        table: one row per gamma for the summary.
        notes: sentences a reader must not miss.
    """

    metrics: dict[str, float]
    curves: Curves
    alpha_source: str
    table: list[dict[str, Any]]
    depth_name: str
    notes: list[str] = field(default_factory=list)

    def lines(self, key: str) -> Curves:
        """The curves of one chart, by line: `curve.tokens_per_round` or `curve.speedup`."""
        prefix = "curve.speedup." if key == "curve.speedup" else "curve."
        return {name: self.curves[prefix + name] for name in _MODELS if prefix + name in self.curves}

    def show(self, console: Console, folder: Path, links: Mapping[str, str]) -> None:
        """Print the summary table, the notes and where to look next."""
        alpha = self.metrics.get("account.alpha", float("nan"))
        table = Table(
            box=SIMPLE_HEAD,
            title="Measured against the capped-geometric theory",
            caption=f"95% prompt-bootstrap intervals; theory at alpha {alpha:.3f} ({self.alpha_source}); * primary",
        )
        for heading in (self.depth_name, *_HEADINGS):
            table.add_column(heading, justify="right")
        for row in self.table:
            table.add_row(*_cells(row))
        console.print(table)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        console.print(f"results: {folder}", markup=False, highlight=False, soft_wrap=True)
        for name, link in links.items():
            if link:
                console.print(f"{name + ':':<8} {link}", markup=False, highlight=False, soft_wrap=True)


_HEADINGS = ("tokens/round", "theory", "speedup", "theory", "alpha")


def _number(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return "-" if value is None else f"{value:.3f}"


def _measured(values: Mapping[str, Any], name: str) -> str:
    """The value with its interval, where there is one (one prompt has none)."""
    low, high = values.get(f"{name}.ci_low"), values.get(f"{name}.ci_high")
    return _number(values, name) + ("" if low is None or high is None else f" ({low:.2f}-{high:.2f})")


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['gamma']}{'*' if row['primary'] else ''}",
        _measured(row, "tokens_per_round"),
        _number(row, "tokens_per_round.capped_geometric"),
        _measured(row, "speedup"),
        _number(row, "speedup.capped_geometric"),
        _number(row, "alpha.mle"),
    ]


def build_report(
    *,
    results: ResultsFolder,
    outcome: Outcome,
    calibration: Calibration,
    peer_rows: Sequence[Mapping[str, Any]],
    peer_notes: Sequence[str],
    parts: "Parts",
    advice: Advice | None,
    environment: Mapping[str, Any],
    replicates: int,
    seed: int,
    print_traces: bool,
) -> Report:
    """Compact the tables, compute every figure, write `account.json`, `summary.json`, `report.md`, figures, trace."""
    rounds = results.compact()
    _write_replay(results.folder, outcome)
    generations = results.generations()
    baseline = rounds[rounds["method"] == BASELINE]
    # The bare call in the very harness that is explained: the baseline's own verify, at the same contexts.
    t1 = float(baseline["verify_s"].mean())
    own = {gamma: pd.DataFrame(rows) for gamma, rows in outcome.replayed.own.items()}
    alpha_sums = pd.DataFrame(outcome.replayed.alpha)
    has_alpha = len(alpha_sums) > 0 and alpha_sums["denominator"].sum() > 0
    summary = summarise(
        rounds,
        generations,
        {"t1_s": t1},
        parts.primary.gamma,
        alpha_text_sums=alpha_sums if has_alpha else None,
        replay=own,
        replicates=replicates,
        seed=seed,
    )
    arm = summary.arms[parts.primary.gamma]
    metrics = {
        **arm.metrics,
        **_operations(summary, rounds, parts),
        **_lossless(outcome),
        **_total_variation(rounds, parts, replicates, seed),
        **_quality(results.folder, rounds, outcome, parts.primary.gamma, replicates, seed),
        **_limit(summary),
        **_peers(peer_rows, generations, parts.target.sampling.greedy, replicates, seed),
        **_memory(outcome, environment, parts.target.device),
    }
    if has_alpha:
        metrics["alpha.text"] = summary.alpha
    cost = _cost(results, parts, environment)
    if cost is not None:
        metrics |= cost.metrics
    curves = _curves(summary, rounds, outcome)
    foretold = advice.at(parts.primary.gamma) if advice is not None else None
    if foretold is not None:
        metrics["speedup.predicted"] = foretold.speedup.value
    predicted = advice.predictions if advice is not None else []
    predicted_curve = {item.gamma: item.speedup.value for item in predicted if item.gamma in summary.arms}
    if predicted_curve:
        curves["curve.speedup.predicted"] = predicted_curve
    table = [
        {"gamma": gamma, "primary": gamma == summary.primary_gamma, **item.metrics}
        for gamma, item in summary.arms.items()
    ]
    notes = [verdict(arm.account), *_notes(metrics, outcome, parts), *peer_notes]
    report = Report(metrics, curves, summary.alpha_source, table, parts.primary.structure.depth_name, notes)
    results.write_json("account.json", _account(summary))
    results.write_json("summary.json", {"metrics": metrics, "curves": curves, "arms": table, "notes": notes})
    if outcome.divergences:
        results.write_json("divergences.json", [vars(item) for item in outcome.divergences])
    _figures(results.folder / "figures", report, rounds, summary, parts, environment)
    if cost is not None:
        figure = cost_figure(cost, title=run_title(parts, environment, shape=True))
        style.save(figure, results.folder / "figures", "cost_model")
    _trace(results.folder, outcome, parts, print_traces)
    text = _markdown(report, summary, parts, environment) + "\n" + _section(papers_of(metrics))
    if cost is not None:
        text += "\n" + "\n".join(cost.markdown())
    text += "\n" + _prediction(results.folder, rounds, run_title(parts, environment, shape=True), replicates, seed)
    (results.folder / "report.md").write_text(text, encoding="utf-8")
    return report


def _write_replay(folder: Path, outcome: Outcome) -> None:
    """`replay.parquet` and `alpha.parquet`: what the account needs besides the rounds (`analysis.load.Run`)."""
    replayed = outcome.replayed
    rows = [
        {"gamma": gamma, "kind": kind, **row}
        for kind, arms in (("own", replayed.own), ("baseline", replayed.baseline))
        for gamma, table in arms.items()
        for row in table
    ]
    replay = pd.DataFrame(rows, columns=["gamma", "kind", "prompt", "repeat", "tokens", "rounds"])
    replay.to_parquet(folder / "replay.parquet", index=False)
    alpha = pd.DataFrame(replayed.alpha, columns=["prompt", "repeat", "numerator", "denominator"])
    alpha.to_parquet(folder / "alpha.parquet", index=False)


def _prediction(folder: Path, rounds: pd.DataFrame, title: str, replicates: int, seed: int) -> str:
    """What each model predicts on prompts that it was not fitted on; writes the figure. Reports have every gamma."""
    replay = pd.read_parquet(folder / "replay.parquet")
    alpha = pd.read_parquet(folder / "alpha.parquet")
    along_baseline = replay[replay["kind"] == "baseline"]
    refits = min(replicates // 10, 200)  # likelihoods are fitted again in each
    section = prediction_section(rounds, alpha, along_baseline, title, replicates, refits, seed)
    for name, figure in section.figures:
        style.save(figure, folder / "figures", name)
    return _section(replace(section, title="Prediction", tables=section.tables[:1]))


def _section(section: Section) -> str:
    """A section as Markdown, without its figures."""
    tables = [markdown_table(table) for _, table in section.tables]
    return "\n\n".join([f"## {section.title}", *section.text, *tables]) + "\n"


def _operations(summary: Summary, rounds: pd.DataFrame, parts: "Parts") -> dict[str, float]:
    """THEORY 2, operations: arithmetic per token over the baseline's, by formula and as evaluated."""
    target_flops = parts.target.flops_per_token
    if target_flops == 0:
        return {}
    c_ops = parts.primary.drafter.flops_per_token / target_flops
    arm = drafted(rounds[rounds["gamma"] == summary.primary_gamma])
    evaluated = (arm["offered_nodes"] * (1 + c_ops) + 1).sum() / arm["committed"].sum()
    return {
        "cost.c_ops": c_ops,
        "operations.capped_geometric": float(operations(summary.alpha, summary.primary_gamma, c_ops)),
        "operations.measured": float(evaluated),
    }


def _lossless(outcome: Outcome) -> dict[str, float]:
    if outcome.compared == 0:
        return {}
    return {
        "lossless.identical": outcome.identical / outcome.compared,
        "lossless.divergences": float(len(outcome.divergences)),
        "lossless.unexplained": float(sum(not item.explained for item in outcome.divergences)),
    }


def _total_variation(rounds: pd.DataFrame, parts: "Parts", replicates: int, seed: int) -> dict[str, float]:
    """Of a lossy rule: mean distance of its law from that without a draft, over tested positions; prompt bootstrap."""
    if parts.primary.verifier.capabilities.lossless or parts.forced:
        return {}
    arm = drafted(rounds[rounds["gamma"] == parts.primary.gamma])
    sums = pd.DataFrame({"prompt": arm["prompt"], "tv": arm["tv"].map(sum), "tested": arm["tv"].map(len)})
    table = sums.groupby("prompt").sum().astype(float)
    tv = bootstrap(table, lambda s: {"tv": s["tv"] / s["tested"]}, replicates, seed)["tv"]
    values = {"lossless.tv": tv.estimate, "lossless.tv.ci_low": tv.low, "lossless.tv.ci_high": tv.high}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def _quality(
    folder: Path, rounds: pd.DataFrame, outcome: Outcome, gamma: int, replicates: int, seed: int
) -> dict[str, float]:
    """`quality.*` where outputs were judged; writes `quality.parquet`."""
    if not outcome.quality:
        return {}
    outputs = pd.DataFrame(outcome.quality, columns=list(OUTPUTS))
    outputs.to_parquet(folder / "quality.parquet", index=False)
    return quality_metrics(rounds, outputs, gamma, replicates, seed)


def _limit(summary: Summary) -> dict[str, float]:
    """What an engine without overhead would reach at the measured v and g = gamma c (THEORY 2 and 8).

    `speedup.limit` is Omega / (v + g); `speedup.limit.realised` has the tokens per round that came out instead of
    Omega, so that chance and the ends of texts are in both sides of speedup over limit. `cost.overhead_share` is
    o / (v + g + o).
    """
    arm = summary.arms[summary.primary_gamma]
    bare = arm.account.time["v"] + arm.account.time["g"]
    return {
        "speedup.limit": float(tokens_per_round(summary.alpha, summary.primary_gamma)) / bare,
        "speedup.limit.realised": arm.account.tokens_per_round / bare,
        "cost.overhead_share": arm.account.time["o"] / (bare + arm.account.time["o"]),
    }


def _cost(results: ResultsFolder, parts: "Parts", environment: Mapping[str, Any]) -> CostReport | None:
    """The cost model of the target's calls, from `calibration.json` and the machine's best rates; writes `cost.json`.

    The machine is measured here, after the peak of memory was read: its buffers are no part of the run.
    """
    calls = json.loads((results.folder / "calibration.json").read_text(encoding="utf-8"))["grid"]
    if calls is None:
        return None
    dtype = getattr(torch, environment["model"]["dtype"])
    machine = measure_machine(parts.target.device, dtype).as_dict()
    cost = cost_report(calls, parts.target.products(), machine)
    results.write_json("cost.json", cost.as_dict())
    return cost


def _memory(outcome: Outcome, environment: Mapping[str, Any], device: torch.device) -> dict[str, float]:
    """The peak, and the target's weights and largest cache, which it cannot be below."""
    return {
        "memory.peak_mb": _peak_mb(device),
        "memory.weights_mb": environment.get("model", {}).get("weight_bytes", 0) / 2**20,
        "memory.cache_mb": outcome.cache_bytes / 2**20,
    }


def _peers(
    rows: Sequence[Mapping[str, Any]], generations: pd.DataFrame, greedy: bool, replicates: int, seed: int
) -> dict[str, float]:
    """Peer's time per token over that of our arm which does the same, prefill included on both sides; prompt
    bootstrap. Under greedy also the share of the peer's outputs that are our baseline's, token for token.
    """
    if not rows:
        return {}
    generations = generations.assign(seconds=lambda t: t["prefill_s"] + t["decode_s"])
    baseline = generations[generations["method"] == BASELINE].set_index(["prompt", "repeat"])["generated_token_ids"]
    metrics: dict[str, float] = {}
    for (name, method, gamma), peer in pd.DataFrame(list(rows)).groupby(["peer", "ours_method", "ours_gamma"]):
        ours = generations[(generations["method"] == method) & (generations["gamma"] == gamma)]
        table = (
            peer.groupby("prompt")[["tokens", "seconds"]]
            .sum()
            .join(ours.groupby("prompt")[["tokens", "seconds"]].sum().add_suffix("_ours"))
        )
        if greedy:
            texts = peer.set_index(["prompt", "repeat"])["generated_token_ids"]
            same = [text == baseline[work] for work, text in texts.items()]
            metrics[f"peer.{name}.identical"] = sum(same) / len(same)
        ratio = bootstrap(
            table,
            lambda s: {"ratio": s["seconds"] / s["tokens"] / (s["seconds_ours"] / s["tokens_ours"])},
            replicates,
            seed,
        )["ratio"]
        metrics[f"peer.{name}.ratio"] = ratio.estimate
        metrics[f"peer.{name}.ratio.ci_low"], metrics[f"peer.{name}.ratio.ci_high"] = ratio.low, ratio.high
    return metrics


def _peak_mb(device: torch.device) -> float:
    """Largest memory so far: the allocator's on a GPU, the process's resident set on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _curves(summary: Summary, rounds: pd.DataFrame, outcome: Outcome) -> Curves:
    """Tokens per round and speedup over gamma; a model's speedup has its tokens over 1 + gamma c, as in theory."""
    rounds = shared_work(rounds)
    speculative = drafted(rounds)
    largest = max(summary.arms)
    # Hazards at the largest gamma reach every depth that a shorter chain does.
    table = hazards(distinct_generations(speculative[speculative["gamma"] == largest]))
    curves: Curves = {f"curve.{kind}{name}": {} for name in _MODELS for kind in ("", "speedup.")}
    for gamma, arm in summary.arms.items():
        values = {
            "capped_geometric": float(tokens_per_round(summary.alpha, gamma)),
            "position": position_tokens(speculative[speculative["gamma"] == gamma], table),
        }
        replayed = outcome.replayed.baseline.get(gamma)
        if replayed:
            values["replay"] = sum(row["tokens"] for row in replayed) / sum(row["rounds"] for row in replayed)
        step = 1 + gamma * arm.metrics["cost.c"]
        for name, value in values.items():
            curves[f"curve.{name}"][gamma] = value
            curves[f"curve.speedup.{name}"][gamma] = value / step
        curves["curve.measured"][gamma] = arm.metrics["tokens_per_round"]
        curves["curve.speedup.measured"][gamma] = arm.metrics["speedup"]
    return {key: curve for key, curve in curves.items() if curve}


def _account(summary: Summary) -> dict[str, Any]:
    """`account.json`: factors, their intervals and the time split, per gamma."""
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


def _notes(metrics: Mapping[str, float], outcome: Outcome, parts: "Parts") -> list[str]:
    notes = []
    if parts.target.clock() is not None:
        notes.append("Time is simulated by a cost model: no duration of this run was measured.")
    if parts.forced:
        notes.append("Forced: the recorded text was committed whatever the target said; nothing here is lossless.")
    elif outcome.compared:
        unexplained = int(metrics["lossless.unexplained"])
        notes.append(
            f"Lossless: {outcome.identical} of {outcome.compared} outputs identical to the baseline's, "
            f"{len(outcome.divergences)} parted, {unexplained} of them not explained by rounding at a near-tie."
        )
    if "lossless.tv" in metrics:
        notes.append(
            "Not lossless by its rule: at a tested position the law of the output differs from the baseline's by "
            f"{_measured(metrics, 'lossless.tv')} in total variation, on average."
        )
    notes += _quality_notes(metrics, parts)
    if "speedup.predicted" in metrics:
        predicted, measured = metrics["speedup.predicted"], metrics["speedup"]
        notes.append(
            f"Beforehand advise predicted a speedup of {predicted:.3f}; measured {measured:.3f}, which is "
            f"{measured / predicted - 1:+.1%} from it."
        )
    share = metrics.get("repetition.share", 0.0)
    if share:
        without = "; without them the speedup is " + _measured(metrics, "speedup.unflagged") if share < 1 else ""
        notes.append(f"Repetition: {share:.0%} of the prompts have an output that falls into a loop{without}.")
    skipped = {reason: sum(counts.values()) for reason, counts in parts.prompts.skipped.items() if counts}
    if skipped:
        notes.append("Skipped prompts: " + ", ".join(f"{count} {reason}" for reason, count in skipped.items()) + ".")
    if len(parts.prompts.prompts) == 1:
        notes.append("One prompt only: no bootstrap, so no intervals.")
    if parts.left_out:
        left_out = ", ".join(map(str, parts.left_out))
        notes.append(
            f"Left out of measurement.gammas: {left_out}; this drafter is {parts.drafter.capabilities.deepest} deep."
        )
    return notes


def _quality_notes(metrics: Mapping[str, float], parts: "Parts") -> list[str]:
    """What the text lost, where it was judged."""
    if parts.judge is None:
        return []
    model = "the target" if parts.original is None else "the original target"
    likelihood = "quality.log_likelihood"
    notes, verifier = [], parts.primary.verifier
    if verifier.capabilities.deterministic and not verifier.capabilities.lossless and not parts.target.sampling.greedy:
        notes.append(
            "Without a draft this rule takes the target's likeliest token: the baseline's text is greedy, not sampled."
        )
    if likelihood not in metrics:
        notes.append(f"Quality: {model} gives some token no chance, so there is no mean log-likelihood.")
    for name, sentence in (
        (likelihood, f"Quality under {model} at temperature 1: {{}} nats per token, the baseline's text {{}}."),
        ("quality.tv", "A token's law is {} from the target's in total variation, the baseline's {}."),
        ("quality.decided_otherwise", "A lossless rule would have decided otherwise in {} of the rounds that offered."),
        ("quality.gsm8k_exact_match", "Right answers: {} of the outputs, the baseline's {}."),
    ):
        if name in metrics:
            of_baseline = name.replace("quality.", "quality.baseline_")
            notes.append(sentence.format(interval_words(metrics, name), interval_words(metrics, of_baseline)))
    return notes


def _figures(
    folder: Path,
    report: Report,
    rounds: pd.DataFrame,
    summary: Summary,
    parts: "Parts",
    environment: Mapping[str, Any],
) -> None:
    title = run_title(parts, environment, shape=True)
    prompts = summary.arms[summary.primary_gamma].account.prompts
    for key, value, unit in (
        ("curve.tokens_per_round", "tokens_per_round", "tokens per round"),
        ("curve.speedup", "speedup", "speedup over the baseline"),
    ):
        lines = report.lines(key)
        measured = pd.DataFrame(
            [
                {
                    "gamma": row["gamma"],
                    "value": row[value],
                    "ci_low": row.get(f"{value}.ci_low", np.nan),
                    "ci_high": row.get(f"{value}.ci_high", np.nan),
                }
                for row in report.table
            ]
        )
        lines.pop("measured")
        figure = run_figures.curve(
            measured,
            lines,
            title=title,
            ylabel=unit,
            basis=run_figures.Basis(prompts, alpha=summary.alpha),
            primary_gamma=summary.primary_gamma,
        )
        style.save(figure, folder, key.replace(".", "_"))
    speculative = drafted(rounds)
    if (speculative["offered"] > 0).any():
        figure = run_figures.accepted_lengths(speculative, summary.alpha, summary.primary_gamma, title=title)
        style.save(figure, folder, "accepted_lengths")
    style.save(run_figures.time_split(rounds, title=title), folder, "time_split")
    account = summary.arms[summary.primary_gamma].account
    style.save(waterfall(account, title=f"From theory to the measured speedup\n{title}"), folder, "account")


def run_title(parts: "Parts", environment: Mapping[str, Any], *, shape: bool) -> str:
    """Drafter, model, dtype and hardware, or that there was none: what every figure says of itself.

    Args:
        shape: also that of the drafts, where they are no chains; a study has many.
    """
    model, structure = environment.get("model", {}), parts.primary.structure
    about = f"{parts.label}, {structure.label}" if shape and not structure.single else parts.label
    if parts.target.clock() is not None:
        return f"{about}, time simulated: {model['cost_model']}"
    hardware = environment.get("gpu", {}).get("name") or environment.get("cpu", {}).get("model", "")
    return f"{about} ({model.get('dtype', 'float64')}), {hardware}"


def _trace(folder: Path, outcome: Outcome, parts: "Parts", terminal: bool) -> None:
    tokenizer = parts.target.tokenizer
    traces = [
        TracedGeneration(
            prompt_id=prompt.id,
            drafter=arm.method,
            structure=arm.structure.label,
            lossless=arm.verifier.capabilities.lossless and not parts.forced,
            generation=generation,
            decode=None if tokenizer is None else tokenizer.decode,
        )
        for prompt, arm, generation in outcome.traced
    ]
    write_trace(folder / "trace.html", traces)
    if terminal:
        print_trace(traces, get_console(), rounds=_TRACED_ROUNDS)


def _markdown(report: Report, summary: Summary, parts: "Parts", environment: Mapping[str, Any]) -> str:
    """The summary as Markdown, which MLflow renders."""
    headings = (report.depth_name, *_HEADINGS)
    heading = "| " + " | ".join(headings) + " |"
    lines = [
        f"# {run_title(parts, environment, shape=True)}",
        "",
        f"Prompts: {parts.prompts.name}, {len(parts.prompts.prompts)} of them. alpha {summary.alpha:.4f} "
        f"(from {summary.alpha_source}). The primary {report.depth_name} is starred; intervals are prompt-bootstrap "
        "95%.",
        "",
        heading,
        "|" + " ---: |" * len(headings),
        *("| " + " | ".join(_cells(row)) + " |" for row in report.table),
        "",
        f"## Account of the primary {report.depth_name}",
        "",
        verdict(summary.arms[summary.primary_gamma].account),
        "",
        time_split(summary.arms[summary.primary_gamma].account),
        "",
        "| factor | value | 95% interval |",
        "| --- | ---: | ---: |",
    ]
    account = summary.arms[summary.primary_gamma].account
    for name, value in account.factors.items():
        interval = account.intervals[name]
        bounds = f"{interval.low:.4f} to {interval.high:.4f}" if np.isfinite(interval.low) else "-"
        lines.append(f"| {name} | {value:.4f} | {bounds} |")
    lines += [
        f"| **product = speedup** | **{account.speedup:.4f}** | |",
        "",
        *(f"- {note}" for note in report.notes[1:]),  # the first, the account's sentence, stands above
        "",
    ]
    return "\n".join(lines)
