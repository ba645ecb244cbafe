"""Sections of a run besides its account and its models: headline figures, curves over gamma, categories, the cost of a
call, the environment, how to run it again, where it stands in the theory of Leviathan et al. (2211.17192), and how to
serve it or the fastest of several runs.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, isfinite, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specdec.config import flattened
from specdec.errors import UsageError
from specdec.theory.roofline import Product

from ..account.verdicts import CAPPED_GEOMETRIC, curve_verdict
from ..comparisons import best_in_words
from ..cost.cost_figure import cost_figure
from ..cost.cost_report import CostReport, experts_in_words, experts_table, intensity_table
from ..engines.measured_drafter import Alone, Measured
from ..engines.recommendation import Recommendation, recommend
from ..figures import run_figures, theory_figures
from ..intervals import Interval, too_few
from ..own_metrics import OWN
from ..read.runs import Run
from ..rounds import drafted
from ..sections import Section, counted, joined
from .compare import content_hash
from .run_metrics import AGAINST_ORIGINAL, MULTI_TURN, OURS, RATES, by_category, printed_metric
from .sentences import loops_note

LEVEL = "95%"
NOTES = "Notes and figures"
STANDING, TIMELINE, FASTEST = "Where this run stands", "A few rounds, to scale", "To serve the fastest"
BY_GAMMA = {  # metric: what a table over gamma calls it
    "tokens_per_round": "tokens per round",
    "tokens_per_round.capped_geometric": "capped geometric",
    "speedup": "speedup",
    "speedup.capped_geometric": "speedup, capped geometric",
    "alpha.mle": "alpha (MLE)",
}
TIMED = (  # sections that show what is made of times
    *("Summary", NOTES, STANDING, "Curves over gamma", "The gap, explained"),
    *("The account by category", "Worst and best prompts", "Rounds: what is accepted, where the time goes"),
    *(TIMELINE, "By category", "As the papers define it", "Cost of a call"),
)
FIRST_SCREEN = ("account", "curve_speedup")  # figures behind the verdict and the table over gamma, in order
TITLED = {"capped_geometric": "by the capped geometric", "priced": "at measured costs"}  # models that titles name
PRICED = (*TITLED, "predicted")  # models whose speedup is drawn
ENVIRONMENT = (  # parts of environment.json that a page shows, in order
    *("captured", "platform", "device", "cpu", "gpu", "memory_gib", "versions", "code"),
    *("model", "drafter", "drafters", "original", "prompts", "seed"),
)
HEADLINES = (  # metric, what it is called, digits after the point
    ("speedup", "speedup over the baseline, prefill apart", 3),
    ("speedup.end_to_end", "speedup with prefill", 3),
    ("sampled/speedup", "speedup at the temperature of measurement.sampled_temperature, over plain decoding there", 3),
    ("sampled/tokens_per_round", "tokens per round at that temperature", 3),
    ("speedup.original", "speedup over the model that the target was before it was trained", 3),
    ("speedup.capped_geometric", "speedup by the capped geometric", 3),
    ("tokens_per_round", "tokens per round", 3),
    ("tokens_per_round.capped_geometric", "tokens per round by the capped geometric", 3),
    ("tokens_per_round.position", "tokens per round by the position model, fitted to the other half of the prompts", 3),
    ("tokens_per_round.replay", "tokens per round by replay of the baseline's texts", 3),
    ("account/alpha", "alpha behind the capped geometric", 4),
    ("alpha.mle", "alpha by maximum likelihood", 4),
    ("accepted_per_offered", "accepted over offered (not alpha)", 4),
    ("proposals.share", "rounds with a proposal", 4),
    ("repetition/share", "prompts with an output that falls into a loop", 4),
    ("quality/log_likelihood", "log-likelihood of a token under the original target, nats", 4),
    ("quality/baseline_log_likelihood", "that of the baseline's text", 4),
    ("quality/tv", "total variation of a token's law from the target's", 4),
    ("quality/baseline_tv", "that of the baseline", 4),
    ("quality/decided_otherwise", "rounds in which a lossless rule would have decided otherwise", 4),
    ("quality/gsm8k_exact_match", "right answers", 4),
    ("quality/baseline_gsm8k_exact_match", "right answers of the baseline", 4),
    ("throughput/tokens_per_s", "tokens per second", 1),
    ("throughput/baseline_tokens_per_s", "tokens per second of the baseline", 1),
    ("memory/peak_mb", "peak memory, MiB", 1),
)


def summary_section(run: Run) -> Section:
    """Say the speedup in one sentence and what made it what it is, and show what every gamma gave."""
    summary = run.summary()
    arms = {f"{arm['gamma']}{'*' if arm['primary'] else ''}": arm for arm in summary["arms"]}
    by_gamma = {name: _labelled(words, run.simulated) for name, words in BY_GAMMA.items()}
    caption = f"Every gamma (* is the primary one), with {LEVEL} prompt-bootstrap intervals; {CAPPED_GEOMETRIC}, alpha"
    speedup = Interval.from_metrics(run.metrics, "speedup")
    subject = "Simulated speedup" if run.simulated else "Speedup"
    if isnan(speedup.estimate):
        said = "This run has no speedup."
    elif not speedup.known:
        said = f"**{subject} {speedup}** without an interval: nothing can be said about whether it differs from 1."
    else:
        if few := too_few(run.arms().texts["prompt"].nunique()):
            verdict = f"not told apart from the baseline, {few}"
        elif speedup.contains(1.0, slack=0.0):
            verdict = "not told apart from the baseline: the interval contains 1"
        else:
            verdict = f"{'faster' if speedup.low > 1 else 'slower'} than the baseline"
        said = f"**{subject} {speedup}**: {verdict} at gamma {run.primary_gamma}."
    if unclear := best_in_words(summary["arms"]):
        said += f" Gammas {unclear} in speedup."
    if loops := loops_note(run.metrics):
        said += f" {loops}"
    refuted, why = summary.get("refuted", ""), summary.get("reasons", [])
    # A speedup beside outputs that are wrong comes after them, and says so.
    text = (f"**{refuted}**", *why, f"{said} It is no lossless speedup.") if refuted else (*why, said)
    return Section("Summary", text, ((caption, _table("gamma", arms, by_gamma)),))


def figures_section(run: Run) -> Section:
    """Show the run's notes, all that a reader must not miss, and its headline figures."""
    metrics = run.metrics
    rows = [
        (_labelled(label, run.simulated), printed_metric(metrics, name, f",.{digits}f"), name)
        for name, label, digits in (*HEADLINES, *((name, name, 4) for name in metrics if name.startswith(OWN)))
        if name in metrics
    ]
    notes = "\n".join(f"- {note}" for note in run.summary()["notes"])
    caption = f"Headline figures at the primary gamma, with {LEVEL} prompt-bootstrap intervals"
    figures = pd.DataFrame(rows, columns=["figure", "value", "metric"])
    return Section(NOTES, (notes,) if notes else (), ((caption, figures),))


def _labelled(label: str, simulated: bool) -> str:
    return f"simulated {label}" if simulated and ("speedup" in label or "per second" in label) else label


def arranged(sections: Sequence[Section], run: Run) -> list[Section]:
    """Return the sections of a run as its page shows them: the figures of the FIRST_SCREEN, as far as there are some,
    behind the words of the first section. Where time is simulated, all tables say so, and headings about times.
    """
    figures = {name: figure for section in sections for name, figure in section.figures}
    shown = tuple((name, figures[name]) for name in FIRST_SCREEN if name in figures)
    pages: list[Section] = []
    for section in sections:
        others = tuple((name, figure) for name, figure in section.figures if name not in FIRST_SCREEN)
        page = replace(section, figures=others)
        if not pages:
            page = replace(section, figures=(*shown, *others), figures_first=bool(shown))
        if run.simulated:
            title = f"{section.title} (simulated time)" if section.title in TIMED else section.title
            page = replace(page.simulated(), title=title)
        pages.append(page)
    return pages


def curves_section(run: Run) -> Section:
    """Show tokens per round and speedup over gamma, measured and by each model; in words where they part."""
    texts, primary, metrics = drafted(run.arms().texts), run.primary_gamma, run.metrics
    basis = run_figures.Basis(texts["prompt"].nunique(), int(texts["rounds"].sum()), metrics.get("account/alpha"))
    words, figures = [], []
    for quantity, name in (("tokens_per_round", "tokens per round"), ("speedup", "speedup over the baseline")):
        label = _labelled(name, run.simulated)
        table, lines = run.points(quantity), run.lines(quantity)
        points = dict(zip(table["gamma"], table["value"], strict=True))
        gamma = next((at for at in points if at == primary), next(iter(points)))
        # The title says what the models expect at that gamma, and what was measured.
        expected = [f"{lines[key][gamma]:.2f} {said}" for key, said in TITLED.items() if gamma in lines.get(key, {})]
        clock = "on that clock" if label.startswith("simulated") else "measured"
        seen = ", ".join([*expected, f"{points[gamma]:.2f} {clock}"])
        title = f"{label[:1].upper()}{label[1:]} at γ {gamma}: {seen}\n{run.title}"
        # The models besides these are about acceptance alone: in tokens per round they are seen without costs.
        shown = {key: lines[key] for key in PRICED if key in lines} if quantity == "speedup" else lines
        figure = run_figures.curve(table, shown, title=title, ylabel=label, basis=basis, primary_gamma=primary)
        paired = "error" in table  # an older run logged no paired errors
        words.append(curve_verdict(table, label) if paired else run_figures.curve_in_words(table, lines, label))
        figures.append((f"curve_{quantity}", figure))
    if primary is not None and all(primary in lines.get(name, {}) for name in ("capped_geometric", "priced")):
        formula, priced, measured = lines["capped_geometric"][primary], lines["priced"][primary], metrics["speedup"]
        acceptance = metrics["tokens_per_round"] / metrics["tokens_per_round.capped_geometric"]
        clock = "simulated" if run.simulated else "measured"
        words.append(
            f"How much is cost and how much is acceptance, at gamma {primary}: the capped geometric's {formula:.3f} "
            "counts drafts but lets a call on several tokens cost as little as on one; at the "
            f"{clock} t(n) and c the same tokens per round would give {priced:.3f} (verifying, a factor of "
            f"{priced / formula:.3f}). {measured:.3f} was {clock}: acceptance is a factor of {acceptance:.3f}, the "
            f"loop's own time, net of the baseline's, one of {measured / priced / acceptance:.3f}."
        )
    return Section("Curves over gamma", tuple(words), figures=tuple(figures))


def lengths_section(run: Run) -> Section:
    """Show accepted tokens per round against the law of the capped geometric, and where a round's time goes."""
    measured, alpha = run.arms(), run.metrics.get("account/alpha")
    words, figures = [], []
    try:
        arms = measured.by_gamma()
        primary = arms[max(arms) if run.primary_gamma is None else run.primary_gamma]
        figures.append(("accepted_lengths", run_figures.accepted_lengths(primary, alpha, title=run.title)))
    except ValueError as error:  # no proposal at all, or every round cut: there is no length to show
        words.append(f"Accepted lengths are not shown: {error}.")
    figures.append(("time_split", run_figures.time_split(measured, title=run.title, primary_gamma=run.primary_gamma)))
    return Section("Rounds: what is accepted, where the time goes", tuple(words), figures=tuple(figures))


def category_section(run: Run) -> Section:
    """Show the headline figures of each category, where the prompts have more than one."""
    categories = by_category(run.metrics)
    if not categories:
        return Section("By category", ("The prompts of this run are of one category.",))
    table = _table("category", dict(sorted(categories.items())), {metric: metric for metric in OURS})
    speedups = {name: Interval.from_metrics(values, "speedup") for name, values in categories.items()}
    order = sorted((name for name in speedups if speedups[name].known), key=lambda name: speedups[name].estimate)
    words = []
    if len(order) > 1:
        words.append(
            f"Of {len(order)} categories the {_labelled('speedup', run.simulated)} is largest in {order[-1]}, "
            f"{speedups[order[-1]]}, and smallest in {order[0]}, {speedups[order[0]]}."
        )
    if few := [name for name, own in categories.items() if not Interval.from_metrics(own, "tokens_per_round").known]:
        words.append(f"Too few prompts for an interval: {joined(few)}.")
    caption = f"At the primary gamma, with {LEVEL} prompt-bootstrap intervals"
    return Section("By category", tuple(words), ((caption, table),))


def papers_section(run: Run) -> Section:
    """Show speed by category as the papers define it. KeyError for a run of a version that did not log it."""
    metrics = run.metrics
    rate, overhead = metrics["acceleration_rate"], metrics["step_overhead"]
    words = [
        f"Acceleration rate {rate:.3f} over overhead {overhead:.3f} is the speedup, {rate / overhead:.3f} (Medusa). "
        "The compression ratio is tokens over calls of the target: one call a round, so it is the rate again."
    ]
    if "speedup.original" in metrics:
        names = ("speedup.original", "step_overhead.original", "speedup", "step_overhead")
        values = [Interval.from_metrics(metrics, name) for name in names]
        words.append(
            "Against the model that the target was before it was trained, decoded on the same prompts between the "
            f"other methods, the speedup is {values[0]} and the overhead {values[1]}; against the target's own "
            f"baseline {values[2]} and {values[3]}."
        )
    caption = f"At the primary gamma, prefill apart, with {LEVEL} prompt-bootstrap intervals"
    columns = {name: heading for name, heading in {**RATES, **AGAINST_ORIGINAL}.items() if name in metrics}
    categories = by_category(metrics)
    ordered = sorted(categories, key=lambda name: (name == MULTI_TURN, name))  # what pools others stands behind them
    rows = {**{name: categories[name] for name in ordered}, "overall": metrics}
    return Section("As the papers define it", tuple(words), ((caption, _table("category", rows, columns)),))


def _table(key: str, rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a line per entry of `rows`, named by the column `key`: the metrics of `columns` with their intervals."""
    printed = {words: [printed_metric(row, metric) for row in rows.values()] for metric, words in columns.items()}
    return pd.DataFrame({key: list(rows), **printed})


def cost_section(run: Run) -> Section:
    """Show t(1), the drafter's step and t(n); with a grid of calls also the fitted model of their cost."""
    calibration = run.calibration()
    t1 = float(calibration["t1_s"])
    rows = [
        {"rows n": int(rows), "ms": 1e3 * float(item["median_s"]), "t(n) / t(1)": float(item["ratio"])}
        for rows, item in calibration["t_n"].items()
    ]
    step = float(calibration["draft_step_s"])
    behind = f" behind {counted(calibration['context'], 'token')}" if "context" in calibration else ""
    said = f"a step of the drafter {1e3 * step:.4g} ms: c = {step / t1:.4g}" if step else "the drafter proposed nothing"
    alone = f"Calibrated alone{behind}, a call of the target on one token takes {1e3 * t1:.4g} ms in the median"
    words = [f"{alone}, {said}."]
    if "cost/t1_ms" in run.metrics:
        words[0] += (
            f" The t(1) of the account, {run.metrics['cost/t1_ms']:.4g} ms, is the mean of such calls in plain "
            "decoding, behind all that was written so far."
        )
    caption = "Calls on n rows and over that on one, calibrated before decoding (medians; no intervals)"
    tables = [(caption, pd.DataFrame(rows))]
    if len(experts := run.experts()):
        words.append(experts_in_words(experts))
        timed = {int(rows): float(item["ratio"]) for rows, item in calibration["t_n"].items()}
        tables.append(("Experts that verifications chose, and what they read", experts_table(experts, timed)))
    report = fitted_cost(run, calibration)
    if report is None:
        words.append(
            "There is no model of the cost of a call: this run measured no grid of calls, which "
            "measurement.cost_contexts asks for (a target that does arithmetic, at least one context)."
        )
        return Section("Cost of a call", tuple(words), tuple(tables))
    words += [report.fit_in_words(), report.roofline_in_words()]
    bound = f"at {report.context} cached tokens; bound by arithmetic from {report.machine['threshold']:.3g}"
    intensity = intensity_table(report.model.products, report.context)
    intensity = intensity.rename(columns={n: f"n = {n}" for n in intensity.columns if isinstance(n, int)})
    tables.append((f"Operations per byte over n, {bound}", intensity))
    figures = (("cost_model", cost_figure(report, title=run.title)),)
    return Section("Cost of a call", tuple(words), tuple(tables), figures)


def fitted_cost(run: Run, calibration: Mapping[str, Any]) -> CostReport | None:
    """Return the cost model of the run's grid of calls; None without a grid, and for a run that ended before it had
    measured the machine. UsageError if `cost.json` is missing otherwise.
    """
    if not calibration.get("grid"):
        return None
    try:
        cost = run.cost()
    except UsageError:
        if (standing := run.standing()) and standing.partial:
            return None
        raise
    return CostReport(calibration["grid"], [Product(**item) for item in cost["products"]], cost["machine"])


def environment_section(run: Run) -> Section:
    """Show hardware, versions, code and the content hashes of models and prompts, as recorded."""
    environment = run.environment()
    rows = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in flattened({part: environment.get(part) for part in ENVIRONMENT}).items()
        if value not in (None, [], "")
    ]
    table = pd.DataFrame(rows, columns=["item", "value"])
    return Section("Environment", tuple(map(str, environment.get("notes") or [])), (("As recorded by the run", table),))


def reproduce_section(run: Run) -> Section:
    """Show the command that made the run, and one that runs its resolved configuration again."""
    environment, config = run.environment(), run.fetch("config.yaml")
    program, *arguments = environment["argv"]
    module = str(program).replace("\\", "/").rpartition("/")[2].removesuffix(".py").removeprefix("specdec-")
    given = f"python -m specdec.{module} {shlex.join(arguments)}".rstrip()
    sweep = any(argument in ("-m", "--multirun") for argument in arguments)
    code = environment.get("code") or {}
    commit = code.get("commit")
    state = " with changes that were not committed" if code.get("dirty") else ""
    where = f"at commit `{commit}`{state}" if commit else "of a version that recorded no commit"
    # What MLflow gives is a copy that is gone when this process ends.
    kept = Path(run.source).is_dir()
    folder = shlex.quote(str(config.parent.resolve())) if kept else '"$PWD/FOLDER"'
    again = f"python -m specdec.run --config-path {folder} --config-name config"
    saved = "" if kept else f" (an artifact of {run.source}; save it in FOLDER)"
    return Section(
        "How to reproduce",
        (
            f"The run was made {where} by this command{', one cell of its sweep' if sweep else ''}:",
            f"```\n{given}\n```",
            f"The resolved configuration, `config.yaml` of the run{saved}, runs {'this cell' if sweep else 'it'} again "
            "whatever the defaults have become:",
            f"```\n{again}\n```",
            f"Texts depend on the seed ({run.params.get('seed', 'not recorded')}) and not on timing; times depend on "
            "the machine.",
        ),
    )


def standing_section(run: Run) -> Section:
    """Mark the run's alpha, c and gamma in the pictures of the paper: best gamma, speedup, operations, the oracle.
    UsageError if the run has no alpha, because nothing was ever proposed, or did not finish.
    """
    metrics, gamma = run.metrics, run.primary_gamma
    if gamma is None or "account/alpha" not in metrics or "cost/c" not in metrics:
        raise UsageError(f"{run.source} has no alpha and c to mark: nothing was proposed, or the run did not finish.")
    measured, timed = Interval.from_metrics(metrics, "speedup"), run.curves.get("curve/speedup/measured", {})
    c_ops, operations = metrics.get("cost/c_ops", 0.0), metrics.get("operations/measured", nan)
    here = theory_figures.Standing(metrics["account/alpha"], gamma, metrics["cost/c"], c_ops, measured, operations)
    seen = f"Measured: {measured:.3f} at γ {gamma}" if isfinite(measured.estimate) else "Nothing was timed"
    if timed.keys() - {gamma}:
        fastest = max(timed, key=timed.__getitem__)
        other = f", and {timed[fastest]:.3f} at γ {fastest}" if fastest != gamma else ""
        seen += f"{other}, the fastest of the {len(timed)} measured"
    text = (
        *theory_figures.standing_in_words(here),
        f"{seen}. The capped geometric assumes that a call on γ + 1 tokens takes as long as on a single one, that a "
        "round is draft and verification alone, and that every token is equally likely to be accepted; the account "
        "says what each of these costs.",
    )
    figures = (
        ("best_gamma", theory_figures.best_gamma(here)),
        ("speedup_and_operations", theory_figures.speedup_and_operations(here)),
        ("oracle_bound", theory_figures.oracle_bound(here)),
    )
    return Section(STANDING, text, figures=figures)


def timeline_section(run: Run) -> Section:
    """Draw a few rounds and the baseline. UsageError without a primary gamma, ValueError without a common text."""
    if run.primary_gamma is None:
        raise UsageError(f"{run.source} has no primary gamma: the run did not finish.")
    shown = run_figures.stretch(run.arms(), run.primary_gamma)
    ours, plain = shown.rows[f"γ = {run.primary_gamma}"], shown.rows["baseline"]
    ours_s, plain_s = float(ours["round_s"].sum()), float(plain["round_s"].sum())
    text = (
        f"In {counted(len(ours), 'round')} the primary gamma commits {counted(shown.tokens, 'token')} in "
        f"{1e3 * ours_s:.3g} ms, of which drafting takes {ours['draft_s'].sum() / ours_s:.0%}; the baseline needs "
        f"{counted(len(plain), 'call')} and {1e3 * plain_s:.3g} ms for {int(plain['committed'].sum())}.",
    )
    pace = float(ours["committed"].sum()) / ours_s / (float(plain["committed"].sum()) / plain_s)
    seen = f"{counted(shown.tokens, 'token')} in {counted(len(ours), 'round')}"
    title = f"{seen}: {pace:.2f} times the baseline's pace here\n{run.title}"
    figure = run_figures.timeline(shown, title=title, simulated=run.simulated)
    return Section(TIMELINE, text, figures=(("timeline", figure),))


def measured_depths(run: Run, arms: Sequence[Mapping[str, Any]]) -> list[Measured]:
    """Return the drafter of a run at every depth (of `arms`) that has a speedup. UsageError for a missing file."""
    environment, facts = run.environment(), run.facts()
    drafter = environment.get("drafters", {}).get(run.method) if run.method else environment.get("drafter")
    gpu, cpu = environment.get("gpu") or {}, environment.get("cpu") or {}
    calls: dict[int, float] = {}
    try:
        cells = (run.calibration().get("grid") or {}).get("cells") or []
        # At the shortest context: the longest runs into a cache that no batch of these prompts would fill.
        shortest = min((cell["context"] for cell in cells), default=0)
        calls = {cell["rows"]: float(np.median(cell["seconds"])) for cell in cells if cell["context"] == shortest}
        texts = run.generations()
        prompt, output = texts["prompt_token_ids"].map(len).mean(), texts["tokens"].mean()
    except UsageError:
        pass  # made of another engine's files, or cut off before: one sequence says nothing of several
    depths = []
    for arm in (arm for arm in arms if "speedup" in arm):
        depth, nodes = int(arm["gamma"]), float(arm.get("nodes_per_round", "nan"))
        depths.append(
            Measured(
                params=run.params,
                depth=depth,
                # The last drafts of a text, which are cut, leave the mean below the tokens that a draft offers.
                nodes=depth if facts.single or isnan(nodes) else max(depth, ceil(nodes)),
                speedup=Interval.from_metrics(arm, "speedup"),
                format=str((drafter or {}).get("format") or ""),
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
