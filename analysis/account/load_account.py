"""The account of a server under load: where a request's time goes, what takes the gain of speculation from tokens per
round to what was measured, and the forecast beside it. Knows tables of load points (`load_points`), no file.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isinf, nan

import numpy as np
import pandas as pd

from specdec.errors import UsageError

from ..comparisons import printed
from ..cost import load_forecast
from ..cost.load_forecast import PlainCurve, Speculating, Unknowns, draft_ms, forecast, forecast_once, held_slots
from ..engines.vllm_flags import batch_schedule
from ..read.load_points import COLUMNS, Gauges, LoadTests, ServerFacts
from ..sections import Section

FEW_WAIT = 0.05  # share of requests in flight below which waiting for admission is not spoken of
# By which steps at K = 0 of a scheduled server were longer than plain ones, with 2 and with 189 requests: gemma-4-31B
# in FP8 on an H100 NVL, vLLM 0.27.1, runner V1, the drafter's memory included (vllm-project/vllm#49986, August 2026).
PIECEWISE = (0.0656, 0.2158)
OTHER_PROMPTS = 1.5  # ratio of mean prompt tokens from which on load points of a server are another context
FACTORS = {  # column: the factor that nothing says without it
    "step_ms": "the time of a step",
    "ttft_ms": "waiting and prefill",
    "prompt_tokens": "prefill in a step",
    "output_tokens": "the time of a request",
}


def explain(tests: LoadTests, contexts: Sequence[float] = ()) -> tuple[Section, ...]:
    """Return the account of load tests. UsageError for points of several targets or several plain servers.
    contexts: prompt tokens, other than measured, that a forecast is asked for.
    """
    points, gauges, facts = tests.points, tests.gauges, tests.facts
    plain, speculative = _servers(points, facts)
    sections = [_observed(points, gauges)]
    curves = [PlainCurve(table) for table in plain if len(table) > 2 and table["step_ms"].notna().all()]
    for server, table in speculative.items():
        sections.append(_acceptance(server, table))
        gamma = facts.of("gamma", server)
        gamma = gamma if gamma == gamma else float(table["gamma"].iloc[0])
        prompt = float(table["prompt_tokens"].mean())
        curve = min(curves, key=lambda each: abs(np.log((each.prompt + 1) / (prompt + 1))), default=None)
        inside = curve is not None and table["in_flight"].between(curve.loads[0], curve.loads[-1])
        usable = table[inside & table["step_ms"].notna()]
        if curve is None or gamma != gamma or usable.empty:
            lacks = f"--gamma {server}=K, the draft tokens per round"
            if curve is None or usable.empty:
                lacks = "plain runs at 3 loads, and times between tokens of both at loads between them"
            what, shared = "gain and its forecast", pd.DataFrame()
            if plain:
                shared = table.merge(plain[0], on="in_flight", suffixes=("", "_plain"))
                shared = shared.dropna(subset=["step_ms", "step_ms_plain"])
            if len(shared):
                what = "split of a step into draft and verification, and the forecast,"
            sections.append(_requests(server, table, None, f"The {what} need {lacks}."))
            sections += [_same_load(server, shared)] if len(shared) else []
            continue
        limit, evidence = _limit(curve, server, round(gamma), facts, gauges)
        at = Speculating.of_point(usable.iloc[0].to_dict(), round(gamma), limit)
        sections += [_requests(server, table, curve), _gain(server, usable, curve, at, evidence)]
        sections.append(_forecast(server, table, curve, at, evidence))
        for context in contexts:
            others = [each for each in curves if each is not curve]
            room = facts.slots.get(str(plain[0]["server"].iloc[0]), inf) / held_slots(context, curve.output, 0)
            asked = curve.with_prompts(context, others, max(room, 1.0))
            limit, evidence = _limit(asked, server, round(gamma), facts, gauges)
            sections.append(_forecast(server, table.iloc[:0], asked, replace(at, admitted=limit), evidence))
    if not speculative:
        sections.append(Section("Speculation", ("No point drafts: give the results of the speculative server too.",)))
    return tuple(sections)


def _servers(points: pd.DataFrame, facts: ServerFacts) -> tuple[list[pd.DataFrame], dict[str, pd.DataFrame]]:
    """Return the plain server's points, a table for each length of prompts, the most points first, and those of each
    speculative one, all by load; repeats of a load are averaged.
    """
    models = sorted(set(points["model"]) - {""})
    if len(models) > 1:
        raise UsageError(f"The files mix servers of {' and '.join(models)}: give the files of one target.")
    plain, speculative = dict[str, list[pd.DataFrame]](), dict[str, list[pd.DataFrame]]()
    for server, own in points.groupby("server", sort=False):
        own = own.sort_values("prompt_tokens")
        other = own["prompt_tokens"] > OTHER_PROMPTS * own["prompt_tokens"].shift()
        contexts = [
            table.groupby("in_flight", as_index=False)[list(COLUMNS[3:])].mean().assign(server=server)
            for table in sorted((table for _, table in own.groupby(other.cumsum())), key=len, reverse=True)
        ]
        least = {"pooled": 1.0, "drafts": 0.0, "by_request": 1.05}  # of a server that drafts, one has more than these
        drafts = any((table[name] > value).any() for table in contexts for name, value in least.items())
        (speculative if drafts else plain)[str(server)] = contexts
    if len(plain) > 1:
        raise UsageError(f"The files hold several plain servers ({', '.join(plain)}): give the files of one server.")
    for server, contexts in speculative.items():
        if len(contexts) > 1:
            lengths = " and ".join(f"{table['prompt_tokens'].mean():,.0f}" for table in contexts)
            raise UsageError(
                f"{server} was measured with prompts of {lengths} tokens: give each length a name of its own, such as "
                f"{server}2=FILE. Plain runs of several lengths keep one name."
            )
    named = {name for fact, said in vars(facts).items() for name in said if fact != "slots" or name not in plain}
    if unknown := sorted(named - set(speculative) - {""}):
        raise UsageError(
            f"{unknown[0]} is no speculative server of these files: they have {', '.join(speculative) or 'none'}."
        )
    return (plain.popitem()[1] if plain else []), {server: contexts[0] for server, contexts in speculative.items()}


def _limit(
    curve: PlainCurve, server: str, gamma: int, facts: ServerFacts, gauges: Sequence[Gauges]
) -> tuple[float, str]:
    """Return the requests that can run, infinite where nothing is known, and the sentence that says why.
    curve: of the prompts that it is about; the facts are about those that were measured.
    """
    ran, slots, held = (facts.of(name, server) for name in ("most_running", "slots", "held"))
    grown = curve.prompt - curve.measured.prompt
    text = held_slots(curve.measured.prompt, curve.output, gamma)
    if held != held:
        held = held_slots(curve.measured.prompt, curve.output, gamma, float(np.nan_to_num(facts.of("state", server))))
    said = f"{ran:.0f} run at most, as --most-running says"
    # Requests that wait while the KV cache is used up wait for memory, and not because of a limit of sequences.
    if full := next((gauge for gauge in gauges if gauge.usage >= 0.95 and gauge.waiting > 0), None):
        slots = full.slots if slots != slots else slots
        ran = full.running if ran != ran else ran
        said = (
            f"memory: the gauges show {full.running:.0f} running and {full.waiting:.0f} waiting with {full.usage:.1%} "
            "of the KV cache in use"
        )
    if ran == ran and slots == slots:
        held = slots / ran
        said += f"; of {slots:,.0f} slots each holds {held:,.0f}"
        if held > 2 * text:
            said += (
                f", though its text and draft fill {text:,.0f} on average: more is held for it, such as a copy of a "
                "recurrent state for each drafted token"
            )
    if ran == ran and grown:
        scaled = max(ran * held / max(held + grown, 1.0), 1.0)
        if slots == slots or full:
            return scaled, f"{said}; with these prompts {held + grown:,.0f} each, so that {scaled:.0f} run"
        ran = min(ran, scaled)  # what held them back may be a limit of sequences: that stays
        said += f"; {ran:.0f} with these prompts, if memory holds the others back (--slots tells)"
    if ran == ran:
        return ran, said
    if slots == slots:
        admits = max(slots / max(held + grown, 1.0), 1.0)
        return admits, f"memory: {slots:,.0f} slots over {held + grown:,.0f} that a request holds admit {admits:.0f}"
    return inf, ""


def _observed(points: pd.DataFrame, gauges: Sequence[Gauges]) -> Section:
    """Say what the files have, and which factor is unknown for lack of a column."""
    shown = points.sort_values(["server", "in_flight"])
    columns = {
        "server": shown["server"],
        "in flight": shown["in_flight"].astype(int),
        "tokens/s": shown["throughput"].map(_digits),
        "tokens per round": shown["pooled"].fillna(shown["by_request"]).map("{:.3f}".format),
        "step, ms": shown["step_ms"].map("{:.2f}".format),
        "first token, ms": shown["ttft_ms"].map("{:.0f}".format),
    }
    text = ["Observed: tokens per second, tokens per round, the time of a step, and the time to the first token."]
    for server, table in points.groupby("server", sort=False):
        lacking = [f"{factor} ({name})" for name, factor in FACTORS.items() if table[name].isna().all()]
        if lacking:
            text.append(f"Unknown for {server}, because its files lack the column: {', '.join(lacking)}.")
    text.append(
        "Bounded: a step's parts, draft and verification, by what a plain curve leaves open about the cost of a token. "
        "Not knowable from load tests: which kernel a step waits for, and whether outputs are the target's own."
    )
    for gauge in gauges:
        shown_there = {
            f"{gauge.running:.0f} requests running": gauge.running,
            f"{gauge.waiting:.0f} waiting": gauge.waiting,
            f"{gauge.usage:.1%} of the KV cache in use": gauge.usage,
        }
        known = ", ".join(words for words, value in shown_there.items() if value == value)
        text.append(f"The server's page shows at most {known}." if known else "The server's page has no gauges.")
    return Section("What the files say", tuple(text), (("Load points", pd.DataFrame(columns)),))


def _acceptance(server: str, table: pd.DataFrame) -> Section:
    """Reconcile the numbers of acceptance that a file has, at the largest load."""
    pooled, mean, share = (float(table[name].iloc[-1]) for name in ("pooled", "by_request", "accepted_share"))
    said = []
    if pooled == pooled and mean == mean:
        said.append(
            f"{pooled:.2f} and {mean:.2f} tokens per round both count the target's own (bonus) token: {pooled:.2f} "
            f"pools all rounds (1 + accepted over rounds), which throughput follows; {mean:.2f} is the mean over "
            f"requests, {mean / pooled - 1:+.1%}, in which one that accepts little counts no more though it takes more "
            "rounds."
        )
    elif pooled == pooled:
        said.append(f"{pooled:.2f} tokens per round, pooled over rounds, the target's own (bonus) token included.")
    else:
        said.append(
            f"{mean:.2f} tokens per round is a mean over requests, the target's own (bonus) token included; what "
            "throughput follows, pooled over rounds, is at most that."
        )
    if share == share and pooled == pooled and share > 0:
        said.append(
            f"{share:.1%} is accepted over offered draft tokens without the bonus token; at {(pooled - 1) / share:.1f} "
            f"offered per round that is the same {pooled:.2f}. Neither is the chance that one token passes after those "
            "before it passed (conditional), which is larger."
        )
    return Section(f"{server}: tokens per round", (" ".join(said),))


def _parts(table: pd.DataFrame, curve: PlainCurve | None) -> pd.DataFrame:
    """Return, for each load, the seconds of a request (Little: in flight over requests per second) and its parts:
    waiting for admission, first (prefill, and steps under way), rounds and rest; overlap, what those that were measured
    are too long together; and running, the requests admitted.
    """
    per_second = table["throughput"] / table["output_tokens"]
    total = table["in_flight"] / per_second
    first = table["ttft_ms"] / 1e3
    if curve is None or not np.isfinite(curve.first_ms).all():
        own = table["ttft_ms"].iloc[0] / 1e3
    else:
        step = table["step_ms"].to_numpy(float)
        own = curve.first_token_ms(table["in_flight"].to_numpy(float), step) / 1e3
    waiting = (first - own).clip(lower=0)
    waiting = waiting.where(waiting > FEW_WAIT * total, 0.0)
    # The first token ends the time to the first token.
    rounds = (table["output_tokens"] - 1) * table["step_ms"] / table["pooled"].fillna(table["by_request"]) / 1e3
    made = {"total": total, "waiting": waiting, "first": first - waiting, "rounds": rounds}
    parts = pd.DataFrame({"in_flight": table["in_flight"], **made})
    left = parts["total"] - parts[["waiting", "first", "rounds"]].sum(axis=1)
    parts["rest"], parts["overlap"] = left.clip(lower=0), -left.clip(upper=0)
    parts["running"] = (table["in_flight"] - waiting * per_second).where(waiting.notna(), nan)
    return parts


def _requests(server: str, table: pd.DataFrame, curve: PlainCurve | None, ends: str = "") -> Section:
    """Say where a request's time goes, and what made it longer."""
    parts = _parts(table, curve)
    names = {"waiting": "waiting", "first": "first token", "rounds": "rounds", "rest": "the rest"}
    last = parts.iloc[-1]
    if last["total"] != last["total"] or last["waiting"] != last["waiting"]:
        return Section(f"{server}: a request's time", (f"Unknown: the files lack what it needs. {ends}".strip(),))
    shares = ", ".join(f"{words} {last[name] / last['total']:z.0%}" for name, words in names.items())
    text = [f"With {last['in_flight']:.0f} in flight a request takes {last['total']:.3g} s: {shares}."]
    free = parts[parts["waiting"] == 0]
    if last["waiting"] > 0 and len(free):
        before = free.iloc[-1]
        more = {name: (last[name] - before[name]) / (last["total"] - before["total"]) for name in names}
        text.append(
            f"{last['in_flight'] - last['running']:.0f} of {last['in_flight']:.0f} wait to be admitted, "
            f"{last['running']:.0f} run. From {before['in_flight']:.0f} in flight on a request takes "
            f"{last['total'] - before['total']:.3g} s more, {more['waiting']:.0%} of it waiting and "
            f"{more['rounds']:.0%} slower rounds: admission, "
            f"{'not' if more['waiting'] > 0.5 else 'and even more'} computation, is what further load costs."
        )
    if (overlap := (parts["overlap"] / parts["total"]).max()) > 0.005:
        text.append(
            f"The parts that were measured add up to {overlap:.1%} more than the whole request at most, so the rest is "
            "0 there: medians and means of different requests stand side by side; the shares are no surer than that."
        )
    if ends:
        text.append(ends)
    shown = parts[["total", *names]].map("{:.3g}".format).rename(columns=names)
    shown = shown.assign(running=parts["running"].map("{:.0f}".format))
    shown.insert(0, "in flight", parts["in_flight"].astype(int))
    return Section(f"{server}: a request's time", (" ".join(text),), (("Seconds of a request by load", shown),))


def _same_load(server: str, shared: pd.DataFrame) -> Section:
    """Say what takes tokens per round to the gain where plain decoding was measured at the same loads, but at too few
    for a curve.
    shared: the server's points, beside those of plain decoding under names that end in _plain.
    """
    tokens = shared["pooled"].fillna(shared["by_request"])
    factors = pd.DataFrame({"tokens": tokens, "step": shared["step_ms_plain"] / shared["step_ms"]})
    gain = shared["throughput"] / shared["throughput_plain"]
    factors = factors.assign(rest=gain / factors.prod(axis=1, skipna=False), gain=gain)
    last, times = factors.iloc[-1], shared.iloc[-1]
    text = (
        f"{server} with {times['in_flight']:.0f} in flight: {last['tokens']:.2f} tokens per round become "
        f"{last['gain']:.2f} times plain throughput: a longer step x {last['step']:.2f} (a round takes "
        f"{times['step_ms']:.3g} ms, a plain step {times['step_ms_plain']:.3g}), the rest x {last['rest']:.2f}: first "
        "tokens, which drafts do not shorten, and whatever the means hide."
    )
    shown = factors.map("{:.3f}".format)
    shown.insert(0, "in flight", shared["in_flight"].astype(int))
    return Section(f"{server}: from theory to the measured gain", (text,), (("Factors by load", shown),))


def gain_factors(table: pd.DataFrame, curve: PlainCurve, at: Speculating) -> pd.DataFrame:
    """Return in_flight, the factors whose product is gain (measured throughput over that of plain decoding), and gain.

    `tokens` is theory: tokens per round for the price of a plain step. `draft` and `verify` make the step dearer;
    `memory` is what waiting costs: fewer requests run, in shorter steps; `rest` is what the means of a table hide.
    """
    parts, loads = _parts(table, curve), table["in_flight"].to_numpy(float)
    running = parts["running"].fillna(table["in_flight"]).to_numpy(float)
    plain_step = np.interp(loads, curve.loads, curve.steps)
    gain = table["throughput"].to_numpy(float) / np.interp(loads, curve.loads, curve.throughput)
    tokens = table["pooled"].fillna(table["by_request"]).to_numpy(float)
    step = table["step_ms"].to_numpy(float)
    alone = replace(at, admitted=inf)
    modelled = [forecast_once(curve, alone, Unknowns(), loads=size)["step_ms"] for size in (loads, running)]
    if_all = step * modelled[0] / modelled[1]  # the step if nobody waited: as measured where nobody does
    drafting = plain_step + draft_ms(curve, at, Unknowns(), loads)
    made = {
        "in_flight": loads,
        "tokens": tokens,
        "draft": plain_step / drafting,
        "verify": drafting / if_all,
        "memory": running / loads * if_all / step,
    }
    made["rest"] = gain / (made["tokens"] * made["draft"] * made["verify"] * made["memory"])
    return pd.DataFrame({**made, "gain": gain})


def _gain(server: str, table: pd.DataFrame, curve: PlainCurve, at: Speculating, evidence: str) -> Section:
    """Say what takes tokens per round to the measured gain."""
    factors = gain_factors(table, curve, at)
    last = factors.iloc[-1]
    text = [
        f"{server} with {last['in_flight']:.0f} in flight: {last['tokens']:.2f} tokens per round become "
        f"{last['gain']:.2f} times plain throughput: draft x {last['draft']:.2f}, verification x {last['verify']:.2f}, "
        f"waiting for admission x {last['memory']:.2f}, the rest x {last['rest']:.2f}."
    ]
    if last["memory"] != 1 and (wait := 1 - _parts(table, curve)["running"].iloc[-1] / last["in_flight"]) > FEW_WAIT:
        unknown = "The files do not say whether memory or max-num-seqs holds them back: --slots or /metrics would."
        reason = f"What limits them: {evidence}." if evidence else unknown
        text.append(
            f"{wait:.0%} of the requests wait. {reason} If all ran, steps would be wider and the gain about "
            f"{last['gain'] / last['memory']:.2f}: waiting takes a factor of {last['memory']:.2f} of throughput, and "
            "nearly all of the time to the first token."
        )
    bounds = (Unknowns(floor=share, within=share) for share in (1.0, 0.0))
    low, high = (draft_ms(curve, at, bound, np.array([at.in_flight]))[0] for bound in bounds)
    cheapest = "0" if curve.cheapest is None else f"{curve.cheapest:.3f} (as prompts that came together show)"
    text.append(
        f"A token costs {cheapest} to {curve.dearest:.3f} ms (if all of the plain slope is theirs); so draft and all "
        f"else beside the target's step take {low:.2f} to {high:.2f} ms at {at.in_flight:g} in flight."
    )
    shown = factors.drop(columns="in_flight").map("{:.3f}".format)
    shown.insert(0, "in flight", factors["in_flight"].astype(int))
    return Section(f"{server}: from theory to the measured gain", tuple(text), (("Factors by load", shown),))


def _forecast(server: str, table: pd.DataFrame, curve: PlainCurve, at: Speculating, evidence: str) -> Section:
    """Say up to which load speculation pays, by plain runs and the one point, with the errors where it was measured.
    table: the server's points; empty where the curve is of other prompts than measured.
    """
    made = forecast(curve, at)
    off, low, high = (load_forecast.off_load(made, column) for column in ("gain", "gain_low", "gain_high"))
    unlimited = load_forecast.off_load(forecast(curve, replace(at, admitted=inf)))
    largest, lost = curve.loads[-1], at.gamma + 1 - at.tokens
    if isinf(off):
        answer = f"{server} pays at every load up to {largest:.0f} in flight"
        answer += f"; perhaps only up to {low:.0f}." if not isinf(low) else "."
    else:
        bound = f"above {largest:.0f}" if isinf(high) else f"{high:.0f}"
        answer = f"Switch {server} off from {off:.0f} requests in flight on ({low:.0f} to {bound}), because "
        if unlimited > 1.1 * off:
            answer += (
                f"memory admits only {at.admitted:.0f}; without that limit it would be {min(unlimited, largest):.0f}."
            )
        else:
            worse = f"; that only {at.admitted:.0f} are admitted makes it worse beyond them"
            answer += (
                f"each request then pays for {at.gamma + 1} tokens in a step, of which {lost:.1f} are thrown away"
                f"{worse if largest > at.admitted else ''}."
            )
    text = [
        f"**{answer}** Fitted to the plain runs and the point at {at.in_flight:g} in flight only"
        + (f"; {evidence}." if evidence else "; no limit of memory was named (--slots, --most-running).")
    ]
    heading = f"{server}: forecast"
    if curve is not curve.measured:
        heading += f" with prompts of {curve.prompt:,.0f} tokens"
        text.append(_unmeasured(curve))
    # Every draft length on the server with the drafter loaded; 0 drafts nothing.
    by_length = [forecast_once(curve, at, Unknowns(), length) for length in range(at.gamma + 1)]
    text.append(_schedule(curve, at, np.stack([each["gain"] for each in by_length])))
    compared = made.merge(table, on="in_flight", how="left", suffixes=("", "_measured"))
    shown = {"in flight": made["in_flight"].astype(int), "running": made["running"].map("{:.0f}".format)}
    names = {"throughput": "tokens/s", "ttft_ms": "first token, ms", "step_ms": "step, ms"}
    for name, words in names.items():
        ends = zip(made[name], made[f"{name}_low"], made[f"{name}_high"], strict=True)
        shown[words] = [f"{_digits(value)} ({_digits(low)} to {_digits(high)})" for value, low, high in ends]
        error = compared[name] / compared[f"{name}_measured"] - 1
        if len(table):
            shown[f"{words}: error"] = error.map(lambda value: "" if value != value else f"{value:+.1%}")
    shown["per token, ms"] = made["token_ms"].map("{:.3g}".format)
    shown["gain"] = printed(made, "gain", ".2f")
    tables = [("Forecast by load, 95%", pd.DataFrame(shown))]
    for name, words in ("throughput", "Tokens/s"), ("ttft_ms", "First token, ms,"), ("token_ms", "Time per token, ms,"):
        columns = {f"K = {length}": list(map(_digits, each[name])) for length, each in enumerate(by_length)}
        title = f"{words} by draft length (K = 0: the drafter is loaded, nothing is drafted)"
        tables.append((title, pd.DataFrame({"in flight": shown["in flight"], **columns})))
    return Section(heading, tuple(text), tuple(tables))


def _unmeasured(curve: PlainCurve) -> str:
    """Say what a forecast for other prompts than measured rests on."""
    measured, most = curve.measured, curve.loads[-1:]
    said = f"Nobody measured prompts of {curve.prompt:,.0f} tokens, but of {measured.prompt:,.0f}: "
    if curve.others:
        lengths = " and ".join(f"{other.prompt:,.0f}" for other in curve.others)
        said += f"what a longer text costs a step is fitted to plain runs with prompts of {lengths} tokens, too. "
    else:
        grid = [Unknowns(floor=0.0, within=w, beyond=b) for w in (0.0, 1.0) for b in (0.0, 1.0)]
        low, high = (
            limit(float(curve.plain_ms(most, replace(each, attention=grows))[0]) for each in grid)
            for limit, grows in ((min, 0.0), (max, 1.0))
        )
        said += (
            f"with one length of prompts attention is bounded: a plain step with {most[0]:.0f} running takes {low:.4g} "
            f"ms if nothing that a request costs grows with its text (weights only) and up to {high:.4g} ms if all of "
            "it does (in proportion), whatever a token costs. "
        )
    room = f"runs {curve.admitted:.0f} at most, as its --slots say"
    if isinf(curve.admitted):
        room = "is taken to have memory for all (--slots NAME=N of the plain server counts it)"
    return (
        f"{said}A first token takes what its further prompt tokens do. Tokens per round and outputs stay those "
        f"measured; plain decoding {room}."
    )


def _schedule(curve: PlainCurve, at: Speculating, gains: np.ndarray) -> str:
    """Write the fastest draft lengths in vLLM's format, and what it costs to change the length at all.
    gains: over plain decoding, of each draft length on the loads of the curve [gamma + 1, loads].
    """
    best, running = gains.argmax(axis=0), np.minimum(curve.loads, at.admitted)
    fixed = int(np.exp(np.log(gains).mean(axis=1))[1:].argmax()) + 1  # the best length for all loads alike
    more = gains.max(axis=0) / gains[fixed] - 1
    most = int(more.argmax())
    schedule = batch_schedule(dict(zip(running.astype(int).tolist(), best.tolist(), strict=True)))
    said = [
        f'For vLLM, by requests that run: `"num_speculative_tokens_per_batch_size": {schedule}`, by the capped '
        f"geometric for shorter drafts. Over K = {fixed} throughout it gains at most {more[most]:.0%}"
        + (f", at {curve.loads[most]:.0f} in flight." if more[most] > 0 else ".")
    ]
    free = forecast_once(curve, replace(at, admitted=inf), Unknowns(), 0)["gain"]
    kept, drafting = gains[0] / free, forecast_once(curve, at, Unknowns(), 0, idle=1.0)["gain"] / free
    worst = int(drafting.argmin())
    taken = f"{kept[worst]:.2f} as its memory lets only {at.admitted:.0f} run, " if kept[worst] < 1 else ""
    said.append(
        "K = 0 keeps the drafter loaded: throughput is then that of a server without one times "
        f"{taken}{drafting[worst]:.2f} if drafts are made all the same, as by runner V2 (vllm #51510), at "
        f"{curve.loads[worst]:.0f} in flight."
    )
    low, high = PIECEWISE
    verdict = "more than the schedule gains: keep one length" if more[most] < low else "to be set against its gain"
    said.append(
        f"Runner V1 loses its full CUDA graphs by a schedule: steps took {low:.1%} (2 requests) to {high:.1%} (189) "
        f"longer in vllm #49986, memory included, {verdict}."
    )
    return " ".join(said)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
