"""Study `serving`: at which load a server should stop speculating. Everything it says about time is simulated, and it
says so in every heading, table, figure and metric; the comparison with study `batching` is the exception.
"""

import json
from collections.abc import Mapping, Sequence
from math import exp, inf, isfinite, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t as student

from ..comparisons import curves_of, interval, intervals, listed, metrics_of, printed
from ..figures import pictures, style
from ..intervals import FEWEST, LEVEL, Interval
from ..sections import About, Findings, Section, Tables, counted, register

NONE, ADAPTIVE = "none", "adaptive"  # policies: plain decoding, and the gamma that is chosen anew for each step
ALWAYS, NEVER = inf, 0.0  # the largest load still pays; no load pays
SLACK = 0.01  # disadvantages below 1% are none: with little load all policies have the same goodput, up to the edges
SETTLED = 0.95  # of the capacity: above it a queue takes longer to settle than a simulation lasts
_KEYS = ["policy", "load", "replication"]
_CELL = {"load": "load:g", "policy": "policy", "rho": "used:.2f", "queue": "queue"}  # heading -> column and format
_RATES = {**_CELL, "goodput, tokens/s": "goodput:.3g", "throughput, tokens/s": "throughput:.3g",
          "within the target": "met:.0%", "ms per output token": "tpot_ms:.3g"}  # fmt: skip
_WAITS = {**_CELL, "first token, s": "ttft:.3g", "first token p99, s": "ttft_p99:.3g",
          "latency p50, s": "latency_p50:.3g", "latency p90, s": "latency_p90:.3g",
          "latency p99, s": "latency_p99:.3g"}  # fmt: skip
_SETTLES = ("goodput", "throughput", "met", "tpot")
_QUEUED = ("ttft", "ttft_p99", "latency_p50", "latency_p90", "latency_p99")  # grow with the length of an overloaded run


@register("serving")
def findings(tables: Tables, about: About) -> Findings:
    """Read all tables of the study but `call_times`."""
    found, check = ServingNumbers(tables), closed_check(tables)
    settled = found.cells.groupby("load")["used"].max() < 1
    latency = "Simulated: no load can be served by all policies, so that latencies are compared policy by policy."
    if settled.any():
        at = settled.index[settled].max()
        lines = found.cells[found.cells["load"] == at].to_dict("records")
        told = "; ".join(f"{line['policy']} {interval(line, 'latency_p99'):.3g} s" for line in lines)
        latency = f"Simulated: p99 of latency at a load of {at:g}, the largest that all serve: {told}."
    waits = (
        latency,
        "Latency runs from arrival to the last token, the time to the first token to the end of the round that gave "
        "it; both contain the wait for a slot and the prefill, which stops all other sequences.",
    )
    first, last = found.chosen.iloc[0], found.chosen.iloc[-1]
    choices = (
        f"Simulated: the adaptive policy drafts {first['gamma']:.2f} tokens on average in steps of "
        f"{int(first['batch'])}, {last['gamma']:.2f} in steps of {int(last['batch'])}. In each step it takes the "
        "gamma with the most expected tokens per second of that batch, by the cost model and the acceptance at each "
        "depth that it has seen so far.",
    )
    drafted = pictures.over(found.chosen, "batch", "gamma", _look(found, ADAPTIVE))
    by_batch = pictures.chart(
        pictures.Panel("draft tokens of each, mean", {"_": drafted}, zero=True),
        title="Simulated: draft tokens by size of the batch",
        caption=f"Simulated: means over all steps of all loads, {int(found.chosen['steps'].sum()):,} steps.",
        xlabel="sequences in a step",
    )
    tail = _figure(found, "latency_p99", "p99 of latency, s", "Simulated: tail latency over load")
    table = ("Simulated: latencies by policy and load", listed(found.cells, _WAITS))
    chooses = "Simulated: what the adaptive policy chooses"
    sections = [
        _answer(found),
        _over_load(found),
        Section("Simulated: latency", waits, (table,), (("latency_p99", tail),)),
        Section(chooses, choices, figures=(("adaptive_gamma", by_batch),)),
        _assumptions(found, tables["step_times"]),
        *([_check(check)] if len(check) else []),
    ]
    if skipped := about.caveats(tables["skipped"]):
        sections.append(Section("Prompts", skipped))
    # Policies are named without a space. A load at which speculation stops paying is 0 where it never pays, and absent
    # where the largest load still does.
    ends = found.ends.reset_index()
    ends, cells = (each.replace({"policy": r" "}, {"policy": ""}, regex=True) for each in (ends, found.cells))
    cells["per_cent"] = (100 * cells["load"]).round().astype(int)
    shown = {column: column for column in ("goodput", "tpot", "latency_p99")}
    curves = curves_of(cells, "curve/serving/simulated.{what}.{policy}", ["policy"], "per_cent", shown)
    metrics = metrics_of(cells, "serving/simulated.{policy}.{what}.{load:g}", shown)
    names = {"capacity": "capacity", "switch_off_load": "load", "switch_off_batch": "batch"}
    names |= {"switch_off_load.goodput": "goodput"}
    metrics |= metrics_of(ends, "serving/simulated.{policy}.{what}", names)
    metrics |= metrics_of(ends, "serving/simulated.{policy}.{what}", {"model_batch": "model_batch"}, bounds=False)
    for by in ("by_steps", "by_model") if len(check) else ():
        ratios = check.assign(ratio=check[by] / check["measured"])
        name = f"serving/simulated.{by}_over_measured.{{batch:g}}.{{gamma:g}}"
        metrics |= metrics_of(ratios, name, {"": "ratio"}, bounds=False)
    return Findings(tuple(sections), {"serving/simulated.little_error": found.little, **metrics}, curves)


def over_replications(values: Sequence[float] | np.ndarray) -> Interval:
    """Return the mean of independent replications of a positive quantity with Student's interval (Law, Simulation
    Modeling and Analysis, 9.4) on the logarithm's scale; no bounds where a value is missing or infinite, nor of fewer
    than `FEWEST`.
    """
    array = np.asarray(values, dtype=float)
    mean, n = float(array.mean()) if len(array) else nan, len(array)
    if n < FEWEST or not np.isfinite(array).all():
        return Interval(mean, prompts=n)
    half = float(student.ppf((1 + LEVEL) / 2, n - 1)) * float(array.std(ddof=1)) / sqrt(n)
    reach = exp(half / mean) if mean > 0 else 1.0
    return Interval(mean, mean / reach, mean * reach, prompts=n)


def stops_paying_at(loads: Sequence[float], worse: Sequence[float] | np.ndarray) -> float:
    """Return the load from which on a policy is worse than plain decoding: where `worse`, its disadvantage at each
    ascending load, first exceeds `SLACK`, on a straight line from the load before; `NEVER` where it does so at the
    smallest load already, `ALWAYS` where it never does. `worse` is a share of what plain decoding has.
    """
    values = np.asarray(worse, dtype=float)
    exceeds = np.flatnonzero(values > SLACK)
    if not len(exceeds):
        return ALWAYS
    first = int(exceeds[0])
    if first == 0:
        return NEVER
    before = min(float(values[first - 1]), 0.0)
    return float(loads[first - 1] + -before / (values[first] - before) * (loads[first] - loads[first - 1]))


class ServingNumbers:
    """The study in numbers.

    Attributes:
        policies, loads: in the order of the study, and ascending.
        cells: a line for each policy and load: used (rho, offered requests over what the policy finishes at full slots;
            a queue settles below 1), and _SETTLES and _QUEUED with _low and _high over replications; what grows with
            the queue is missing where there is no steady state. tpot_ms is tpot in milliseconds.
        ends: by policy, with _low and _high over replications: capacity (requests per second at full slots), load (over
            the capacity of plain decoding, from which on plain decoding takes less time per output token; `ALWAYS` or
            `NEVER` without bounds), batch (mean sequences in a step of the policy at that load) and goodput (that load
            by goodput). And model_batch: the smallest batch at which a step without drafts commits more tokens per
            second by the cost model, at the texts' mean tokens per round; `ALWAYS` where none up to the slots does
            (theory.md 7.4). Missing for plain decoding.
        recording: the line of the table `recording`.
        chosen: mean gamma of the adaptive policy by batch, with the steps.
        best_fixed: the fixed gamma whose tokens take least time at the smallest load; None where plain decoding takes
            less.
        adaptive: time per output token of the adaptive policy over that of plain decoding, by load.
        little: the largest relative error of Little's law over all simulations.
    """

    def __init__(self, tables: Tables) -> None:
        self.recording, full = tables["recording"].to_dict("records")[0], tables["capacity"]
        by_policy = (full["requests"] / full["seconds"]).groupby(full["policy"], sort=False)
        capacity = {str(policy): over_replications(rates.to_numpy()) for policy, rates in by_policy}
        adaptive = tables["served_steps"].query("policy == @ADAPTIVE")
        drafted = adaptive.assign(gamma=adaptive["gamma"] * adaptive["steps"])
        chosen = drafted.groupby("batch")[["gamma", "steps"]].sum().reset_index()
        self.chosen = chosen.assign(gamma=chosen["gamma"] / chosen["steps"])
        runs, lines = simulation_values(tables), []
        for (policy, load), part in runs.groupby(["policy", "load"], sort=False):
            used = load * capacity[NONE].estimate / capacity[str(policy)].estimate
            line = {"policy": policy, "load": float(load), "used": used, "queue": "settles" if used < 1 else "grows"}
            for column in (*_SETTLES, *_QUEUED):
                value = over_replications(part[column]) if used < 1 or column not in _QUEUED else Interval(nan)
                # Student's interval, cut to the values that a column can have: none is negative, a share is at most 1.
                low, high = max(value.low, 0.0), min(value.high, 1.0 if column == "met" else inf)
                line |= Interval(value.estimate, low, high).as_columns(column)
            lines.append(line)
        self.cells = pd.DataFrame(lines).sort_values("load", kind="stable", ignore_index=True)
        for end in ("", "_low", "_high"):
            self.cells[f"tpot_ms{end}"] = 1e3 * self.cells[f"tpot{end}"]
        self.policies: list[str] = list(dict.fromkeys(runs["policy"]))
        self.loads = sorted(float(load) for load in runs["load"].unique())
        wide = runs.pivot(index=["policy", "load"], columns="replication").sort_index()
        tpot = {policy: wide.loc[policy]["tpot"].to_numpy() for policy in self.policies}  # [loads, replications]
        best = min((each for each in self.policies if each != ADAPTIVE), key=lambda each: float(tpot[each][0].mean()))
        self.best_fixed = None if best == NONE else best
        self.adaptive = tpot[ADAPTIVE].mean(axis=1) / tpot[NONE].mean(axis=1)
        self.little = float(tables["simulations"]["little"].max())
        ends, step_times = [], tables["step_times"].sort_values("batch").groupby("gamma")
        for policy in self.policies:
            load = batch = goodput = Interval(nan)
            model_batch = nan
            if policy != NONE:
                # Replications are paired: all policies of one serve the same requests.
                good, plain = (wide.loc[name]["goodput"].to_numpy() for name in (policy, NONE))
                batches = wide.loc[policy]["batch"].to_numpy()
                load, batch = _switch_off(self.loads, tpot[policy], tpot[NONE], 1, batches)
                goodput, _ = _switch_off(self.loads, good, plain, -1, batches)
            if policy not in (NONE, ADAPTIVE):
                own, mine = (step_times.get_group(gamma) for gamma in (0, int(policy.split()[1])))
                rate = mine["tokens_per_round"].to_numpy() / mine["seconds"].to_numpy()
                lost = np.flatnonzero(rate < 1 / own["seconds"].to_numpy())
                model_batch = float(mine["batch"].iloc[lost[0]]) if len(lost) else ALWAYS
            line = {"policy": policy, "model_batch": model_batch, **capacity[policy].as_columns("capacity")}
            line |= load.as_columns("load") | batch.as_columns("batch") | goodput.as_columns("goodput")
            ends.append(line)
        self.ends = pd.DataFrame(ends).set_index("policy")

    def of(self, policy: str) -> pd.DataFrame:
        """Return the lines of `cells` of a policy by ascending load."""
        return self.cells[self.cells["policy"] == policy]


def _switch_off(
    loads: Sequence[float], values: np.ndarray, plain: np.ndarray, worse: int, batches: np.ndarray
) -> tuple[Interval, Interval]:
    """Return the load at which a policy should be switched off, and its sequences in a step there, from its values,
    those of plain decoding and its sequences, [loads, replications] each; worse: 1 where larger values are, else -1.
    """
    each = np.array([stops_paying_at(loads, disadvantage) for disadvantage in worse * _change(values, plain).T])
    load = stops_paying_at(loads, worse * _change(values.mean(axis=1), plain.mean(axis=1)))
    if not (isfinite(load) and np.isfinite(each).all() and (each > 0).all()):
        return Interval(load), Interval(nan)
    at = [np.interp(here, loads, column) for here, column in zip(each, batches.T, strict=True)]
    return over_replications(each), over_replications(at)


def simulation_values(tables: Tables) -> pd.DataFrame:
    """Return a line for each simulation: policy, load, replication, _SETTLES and _QUEUED, and batch (mean over the
    steps of the window). Time per output token runs from the end of the prefill to the last token, over all tokens: a
    first round may give several, so that leaving out the first token and its time, as for plain decoding, would flatter
    speculation.
    """
    (recording,) = tables["recording"].to_dict("records")
    served = tables["served"].copy()
    served["latency"] = served["finished"] - served["arrived"]
    served["ttft"] = served["first"] - served["arrived"]
    served["tpot"] = (served["finished"] - served["prefilled"]) / served["tokens"]
    target = recording["target_s"]
    limit = recording["target_factor"] * served["alone_s"] if pd.isna(target) else float(target)
    served["met"] = (served["latency"] <= limit).astype(float)
    served["good_tokens"] = served["met"] * served["tokens"]
    grouped = served.groupby(_KEYS, sort=False)
    values = grouped[["tpot", "ttft", "met"]].mean()
    for percent in (50, 90, 99):
        values[f"latency_p{percent}"] = grouped["latency"].quantile(percent / 100)
    values["ttft_p99"] = grouped["ttft"].quantile(0.99)
    window = tables["simulations"].set_index(_KEYS)["window_s"]
    values["goodput"] = grouped["good_tokens"].sum() / window
    steps = tables["served_steps"]
    sums = steps.assign(batch=steps["batch"] * steps["steps"]).groupby(_KEYS)[["batch", "steps", "tokens"]].sum()
    values["throughput"], values["batch"] = sums["tokens"] / window, sums["batch"] / sums["steps"]
    return values.reset_index()


def _change(value: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Return value / plain - 1, and 0 where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value == plain, 0.0, value / plain - 1)


def _load_in_words(found: ServingNumbers, load: Interval) -> str:
    if load.estimate == ALWAYS:
        return f"above {found.loads[-1]:g}, the largest that was simulated"
    return "0: no load pays" if load.estimate == NEVER else f"{load:.2f}"


def _answer(found: ServingNumbers) -> Section:
    best, capacity = found.best_fixed, interval(found.ends.loc[NONE], "capacity")
    answer = (
        "Simulated: with this drafter, this acceptance and these costs, no fixed gamma pays, even on a server that is "
        "nearly idle."
    )
    if best is not None:
        off, gamma = found.ends.loc[best], int(best.split()[1])
        load = interval(off, "load")
        stop = f"a load of {load:.2f} of what plain decoding can serve"
        if load.estimate == ALWAYS:
            stop = f"no load up to {found.loads[-1]:g}, the largest"
        if load.known:
            stop += (
                f", {load.estimate * capacity.estimate:.3g} requests per second, where its steps hold "
                f"{interval(off, 'batch'):.1f} sequences: from there on a token takes less time without drafts"
            )
        answer = (
            f"Simulated: a server that drafts {counted(gamma, 'token')} should stop at {stop}. On a nearly idle "
            f"server, gamma {gamma} is the fixed one whose tokens take least time."
        )
    drafting = found.ends.drop(index=NONE).reset_index()
    lines = {
        "policy (simulated)": drafting["policy"],
        "worse per token from load": [_load_in_words(found, load) for load in intervals(drafting, "load")],
        "sequences in a step there": printed(drafting, "batch", ".1f"),
        "batch by cost model alone": drafting["model_batch"].map("{:.0f}".format).replace({"nan": "–", "inf": "none"}),
        "less goodput from load": [_load_in_words(found, load) for load in intervals(drafting, "goodput")],
        "capacity, requests/s": printed(drafting, "capacity", ".3g"),
    }
    text = (
        answer,
        "Simulated: choosing gamma anew for each step by SmartSpec's rule (2406.14066), a token takes "
        f"{found.adaptive[0]:.2f} times as long as without drafts at a load of {found.loads[0]:g}, "
        f"{found.adaptive.max():.2f} times at the worst load.",
        "A load is offered requests per second over the requests per second that plain decoding finishes when its "
        f"slots are always full, {capacity:.3g}. All policies serve the same requests at the same times; "
        f"intervals are 95%, over {found.recording['replications']} independent replications.",
    )
    table = ("Simulated: the load from which on plain decoding is better, by policy", pd.DataFrame(lines))
    return Section("Simulated: at which load should a server stop speculating?", text, (table,))


def _over_load(found: ServingNumbers) -> Section:
    top, cells, recording = found.loads[-1], found.cells, found.recording
    lines = cells[cells["load"] == top].to_dict("records")
    reached = [f"{line['policy']} {interval(line, 'throughput'):.3g}" for line in lines]
    target = f"within {recording['target_factor']:g} times what they would take alone on the server, without drafts"
    if not pd.isna(recording["target_s"]):
        target = f"within {recording['target_s']:g} s of their arrival"
    # `over` are simulations without a steady state, `near` those that have hardly had the time to reach it.
    over, near = [], []
    for policy in found.policies:
        lines = found.of(policy)
        if (lines["used"] >= 1).any():
            over.append(f"{policy} from {lines.loc[lines['used'] >= 1, 'load'].min():g} on")
        settling = lines[(lines["used"] >= SETTLED) & (lines["used"] < 1)]
        near += [f"{policy} at {load:g}" for load in settling["load"]]
    overloads = "No policy is overloaded at these loads."
    if over:
        overloads = (
            "Overloaded, offered load over capacity, so that the queue grows as long as the simulation lasts: "
            f"{', '.join(over)}. There only throughput, and time per token in full batches, mean anything; times of "
            "waiting are left out."
        )
    text = (
        f"Simulated: at a load of {top:g} the server writes, in tokens per second: {'; '.join(reached)}.",
        overloads + (f" Close to it, and perhaps not settled: {', '.join(near)}." if near else ""),
        f"Goodput counts the tokens of requests that finish {target}. SmartSpec calls another quantity goodput, "
        "accepted and bonus tokens per second of a step; here that is what the adaptive policy maximises.",
    )
    good = _figure(found, "goodput", "tokens per second within the target", "Simulated: goodput over load")
    per_token = _figure(found, "tpot_ms", "ms per output token", "Simulated: time per output token over load")
    table = ("Simulated: rates by policy and load", listed(found.cells, _RATES))
    figures = (("goodput", good), ("time_per_token", per_token))
    return Section("Simulated: goodput and time per token", text, (table,), figures)


def _assumptions(found: ServingNumbers, step_times: pd.DataFrame) -> Section:
    said = found.recording
    text = [
        f"Simulated are {said['slots']} slots, {said['arrivals']}, {said['requests']} requests behind a warm-up of "
        f"{said['warmup']} in each of {said['replications']} replications. Little's law holds to {found.little:.0e} "
        "in all.",
        f"Texts: {said['texts']}; means of {said['prompt_tokens']:.0f} prompt and {said['output_tokens']:.0f} output "
        "tokens. Requests draw them with replacement.",
        f"Costs: {said['cost']}. Every further sequence adds {said['draft_growth']:.0%} of a draft and "
        f"{said['overhead_growth']:.0%} of the overhead of one sequence.",
    ]
    if not pd.isna(said["error_median"]):
        text.append(
            f"A fit of the calls without the largest batch misses that batch by {said['error_median']:.0%} in the "
            f"median, {said['error_worst']:.0%} at worst."
        )
    text.append(
        "Not simulated: memory limits, preemption, prompts prefilled in chunks beside decoding, shared prefixes, "
        "drafts of different length in one step."
    )
    if said["unknown"]:
        text.append(
            f"At {said['unknown']:.1%} of the positions the run does not say how much more would have been accepted; "
            "nothing more is assumed."
        )
    shown = step_times[step_times["batch"].isin([1 << power for power in range(10)])]
    table = shown.pivot(index="gamma", columns="batch", values="seconds").mul(1e3).map("{:.3g}".format)
    table = table.rename(columns="B = {}".format).rename_axis(columns=None)
    table.insert(0, "tokens per round", shown.groupby("gamma")["tokens_per_round"].first().map("{:.2f}".format))
    caption = "Simulated: milliseconds of a step by the cost model"
    return Section("Simulated: what was assumed", tuple(text), ((caption, table.reset_index()),))


def closed_check(tables: Tables) -> pd.DataFrame:
    """Return a line for each batch and gamma that study `batching` measured: batch, gamma, measured with _low and _high
    (tokens per second while every slot was in use, over repeats), by_steps and by_model (simulated with the measured
    seconds of a step, and with those of the cost model), tokens (per round and sequence, simulated over measured) and
    step (seconds by the cost model over measured).
    """
    lines = []
    for (batch, gamma), mine in tables["measured_batches"].groupby(["batch", "gamma"]):
        rates = over_replications((mine["tokens"] / mine["seconds"]).to_numpy())
        sums = mine[["tokens", "steps", "seconds"]].sum()
        closed = tables["closed"].query("batch == @batch and gamma == @gamma").set_index("by")
        if closed.empty:
            continue
        by_steps, by_model = (closed.loc[by, sums.index].astype(float) for by in ("measured", "model"))
        simulated = {
            "by_steps": by_steps["tokens"] / by_steps["seconds"],
            "by_model": by_model["tokens"] / by_model["seconds"],
            "tokens": by_steps["tokens"] / by_steps["steps"] / (sums["tokens"] / sums["steps"]),
            "step": by_model["seconds"] / by_model["steps"] / (sums["seconds"] / sums["steps"]),
        }
        lines.append({"batch": int(batch), "gamma": int(gamma), **rates.as_columns("measured"), **simulated})
    return pd.DataFrame(lines)


def _check(check: pd.DataFrame) -> Section:
    text, inside = [], {}
    for by, words in (("by_steps", "its measured seconds of a step"), ("by_model", "the cost model")):
        ratios, within = check[by] / check["measured"], check[by].between(check["measured_low"], check["measured_high"])
        inside[f"{by}_inside"] = np.where(within, "yes", "no")
        text.append(
            f"With all slots full and {words}, the simulation gives {ratios.median():.2f} times the tokens per second "
            f"that study 'batching' measured, in the median of {len(check)} batches and gammas ({ratios.min():.2f} to "
            f"{ratios.max():.2f}); {within.sum()} of {len(check)} lie within the 95% interval of the measurement."
        )
    text.append(
        "What a ratio misses is the product of the last two columns: tokens per round, because other texts are "
        "served, and the seconds of a step, which the cost model knows from calls on one sequence. Prefills are in "
        "neither."
    )
    columns = {"batch": "batch", "gamma": "gamma", "measured, tokens/s": "measured:.3g",
               "simulated, measured steps": "by_steps:.3g", "inside": "by_steps_inside",
               "simulated, cost model": "by_model:.3g", "inside it": "by_model_inside",
               "tokens per round, simulated over measured": "tokens:.2f",
               "step, cost model over measured": "step:.2f"}  # fmt: skip
    shown = listed(check.assign(**inside), columns)
    caption = "Simulated against measured: closed loop, prefill apart"
    return Section("Simulated against measured batches", tuple(text), ((caption, shown),))


RESULT = Path(__file__).resolve().parents[1] / "results" / "serving.json"


def write_committed(
    setting: str, found: Findings, facts: Mapping[str, Any], order: Sequence[str], path: Path = RESULT
) -> None:
    """Write what a run said into the file of committed results, in the place of what this setting said before.

    setting: what was simulated, in words; facts: command, date, load average and the like; order: all settings.
    """
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    told = ("Simulated: at which load", "Simulated: what was assumed", "Simulated against")  # what sections begin with
    sections = [
        {"title": section.title, "text": list(section.text),
         "tables": [[caption, table.to_dict("records")] for caption, table in section.tables]}
        for section in found.sections if section.title.startswith(told)
    ]  # fmt: skip
    metrics = {name: float(f"{value:.5g}") for name, value in found.metrics.items()}
    kept[setting] = {**facts, "sections": sections, "metrics": metrics}
    ordered = {name: kept[name] for name in order if name in kept}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def committed_sections(path: Path = RESULT) -> tuple[Section, ...]:
    """Return what the committed runs said, each section under its setting, with command, date and load behind it."""
    sections = []
    for setting, run in json.loads(path.read_text(encoding="utf-8")).items():
        load = run["load_average"]
        origin = (
            f"Committed: `{run['command']}` on {run['date']}, {run['cpu']}, load average {load[0]} before and "
            f"{load[1]} after; {run['clock']}."
        )
        for section in run["sections"]:
            tables = tuple((caption, pd.DataFrame(lines)) for caption, lines in section["tables"])
            title = f"{section['title']} ({setting})"
            sections.append(Section(title, (*section["text"], origin), tables))
    return tuple(sections)


def _look(found: ServingNumbers, policy: str) -> style.Look:
    if policy == NONE:
        return style.Look(style.BLACK, "s", ":")
    return style.look(found.policies.index(policy) - 1)


def _figure(found: ServingNumbers, column: str, ylabel: str, title: str) -> Figure:
    """Draw a value over the load, a line for each policy; overloaded points are hollow and not joined."""
    caption = (
        f"Simulated, {found.recording['arrivals']}, {found.recording['slots']} slots. Bars: 95% intervals over "
        f"{found.recording['replications']} replications."
    )
    if column not in _QUEUED:
        caption += " Hollow: overloaded, the queue grows."
    lines = {}
    for policy in found.policies:
        if len(settled := found.of(policy).query("used < 1")):
            lines[policy] = pictures.over(settled, "load", column, _look(found, policy))
    xlabel = "load: offered requests over the capacity of plain decoding"
    figure = pictures.chart(pictures.Panel(ylabel, lines, zero=True), title=title, caption=caption, xlabel=xlabel)
    for policy in () if column in _QUEUED else found.policies:
        overloaded, look = found.of(policy).query("used >= 1"), _look(found, policy)
        marks = {"color": look.colour, "markersize": style.RC["lines.markersize"], "markerfacecolor": "white"}
        figure.axes[0].plot(overloaded["load"], overloaded[column], look.marker, **marks)
    figure.axes[0].set(xlim=(0, None), ylim=(0, None))
    return figure
