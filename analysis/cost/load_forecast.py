"""The forecast of a speculative server under load, with memory (theory.md 7.5): from a plain load curve, one
speculative point, and the requests that memory admits. Knows tables of load points (`load_points.COLUMNS`), no file.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
import pandas as pd

from specdec.errors import UsageError
from specdec.theory.capped_geometric import accepted_pmf, alpha_for, tokens_per_round

from .break_even import stops_paying

DESIGN_EFFECT = 15.0  # of rounds of one request, the largest of public logs (theory.md 6)
DRAWS = 1000  # of what is not known, for an interval
FORECAST = ("running", "step_ms", "throughput", "ttft_ms", "token_ms", "gain")


@dataclass(frozen=True)
class Unknowns:
    """A value for each of the things that a plain curve cannot tell, from 0 to 1; 1/2 where nothing is known."""

    floor: float = 0.5  # the cheapest that a token may be over the dearest, unless prompts that came at once say it
    within: float = 0.5  # cost of a token in steps as wide as the curve's, from the cheapest (0) to the dearest (1)
    beyond: float = 0.5  # the same in wider steps, from the cost within (0) to the dearest (1): a step's cost is convex
    drafting: float = 0.5  # growth of a draft's cost with the batch, from none (0) to that of a plain step (1)
    wide: float = 1.0  # share of the cost of a token in calls as wide as possible that is its own, not its arrival's
    # attention, prefill: with other prompts than measured, the share of what a request costs a step that grows with its
    # text; and the cost of a prompt token, from that of prompts which came together (0) to that of a token in wide
    # steps (1), or, where none came together, from that to all of the time to the first token
    attention: float = 0.5
    prefill: float = 0.5
    # step, first: error of a step and of a time to the first token, in standard deviations of the curve's residuals
    step: float = 0.0
    first: float = 0.0
    acceptance: float = 0.0  # error of the tokens per round, in standard errors


class PlainCurve:
    """Plain decoding over the requests in flight.

    A plain step with B running carries B (1 + P / O) tokens, because a request of P prompt and O output tokens brings
    P / O tokens of prefill for each that it writes. Its slope belongs partly to tokens, partly to requests; the curve
    cannot tell the two apart, so the cost of a token has bounds (theory.md 7.5).

    Attributes:
        dearest: ms of a token if all of the slope belonged to tokens.
        wide: ms of a token in calls as wide as possible, from the slowest first tokens of requests that began together;
            0 where the table does not say it.
        cheapest: the same where it is below `dearest`, else None: then it bounds steps that compute limits (roofline).
        residuals: relative deviation of steps, and of first tokens, from the lines between their neighbours, root mean
            square.
        prompt, output, prefill: tokens of a text, and those of its prompt for each that it writes.
        measured: the curve of the prompts that were measured; this one, unless it is of others (`with_prompts`).
        others: curves of the same server with other prompts, where this one is of prompts that nobody measured.
        admitted: requests that memory lets run without a drafter; infinite where they were measured.
    """

    def __init__(self, plain: pd.DataFrame) -> None:
        self.loads, self.steps = plain["in_flight"].to_numpy(float), plain["step_ms"].to_numpy(float)
        if len(plain) < 3 or not (np.isfinite(self.steps).all() and (self.steps > 0).all()):
            raise UsageError(
                "The plain runs have times between tokens at fewer than 3 numbers of requests in flight: the forecast "
                "needs 3 loads, 1 and the largest among them."
            )
        weights = plain["requests"].fillna(0) + 1
        self.prompt = float(np.average(plain["prompt_tokens"], weights=weights))
        self.output = float(np.average(plain["output_tokens"], weights=weights))
        if not (self.prompt >= 0 and self.output > 0):
            raise UsageError("The plain runs lack the tokens of prompts and outputs: the forecast needs their means.")
        self.throughput = plain["throughput"].to_numpy(float)
        self.prefill = self.prompt / self.output  # tokens of prefill for each that is written
        upper = self.loads >= self.loads[-1] / 4
        upper[-2:] = True  # a slope needs two
        self.slope = max(_slope(self.loads[upper], self.steps[upper]), 0.0)
        self.dearest = self.slope / (1 + self.prefill)
        # In a closed loop the first B requests come together. The p99 of first tokens is the share of that burst which
        # is left above 1% of all requests, and a further prompt in it costs its tokens.
        read = (self.loads - 0.01 * plain["requests"].to_numpy(float)) * self.prompt
        slowest = plain["ttft_p99_ms"].to_numpy(float)
        burst = (read > 0) & (self.loads > 1) & np.isfinite(slowest)
        self.wide = max(_slope(read[burst], slowest[burst]), 0.0) if burst.sum() >= 3 else 0.0
        self.cheapest = self.wide if 0 < self.wide < self.dearest else None
        self.first_ms = plain["ttft_ms"].to_numpy(float)
        self.first_per_step = max(_slope(self.steps[upper], self.first_ms[upper]), 0.0)
        self.residuals = tuple(_roughness(self.loads, values) for values in (self.steps, self.first_ms))
        self.measured, self.admitted, self.others = self, inf, tuple[PlainCurve, ...]()

    def with_prompts(self, prompt: float, others: "Sequence[PlainCurve]" = (), admitted: float = inf) -> "PlainCurve":
        """Return the curve of the same server with prompts of another length and outputs of the same; what of a
        request's cost grows with its text is `Unknowns.attention`, unless curves with other prompts say it.

        others: the same server's curves with other prompts; admitted: requests that memory lets run.
        """
        made, here = copy(self), copy(self.measured)
        made.prompt, made.prefill, made.admitted = prompt, prompt / self.output, admitted
        made.measured, made.others = here, tuple(others)
        here.measured = here
        for other in others:  # prefill makes a slope steeper by what tokens cost, and a longer text does no less
            more = other.prefill - here.prefill
            errors = sum(each.residuals[0] * each.steps[-1] / each.loads[-1] for each in (here, other))
            if more:
                most = (other.slope - here.slope) / more + errors / abs(more)
                here.dearest = min(here.dearest, max(most, here.cheapest or 0.0))
        return made

    def per_request(self, unknowns: Unknowns) -> float:
        """Return the ms that a request costs a step beside its tokens."""
        here = self.measured
        within = here.token_ms(unknowns)[0]
        cost = here.slope - (1 + here.prefill) * within
        if self is here:
            return cost
        attended, grown = here.prompt + here.output / 2, self.prompt - here.prompt
        each = unknowns.attention * cost / attended  # ms for each token of the text that a step reads
        if self.others:
            x, y = [], []  # by load of each other curve: further tokens read, ms beside those that any request costs
            for other in self.others:
                longer = other.prompt + other.output / 2 - attended
                x.append(other.loads * longer)
                y.append(other.steps - here.step_ms(other.loads, 1 + other.prefill, unknowns))
            read, longer_ms = np.concatenate(x), np.concatenate(y)
            each = max(float(read @ longer_ms / max(read @ read, 1.0)), 0.0)
        return max(cost + each * grown, 0.0)

    def token_ms(self, unknowns: Unknowns) -> tuple[float, float]:
        """Return the cost of a token within the curve's widths and beyond them."""
        floor = self.dearest * unknowns.floor if self.cheapest is None else self.cheapest
        within = floor + unknowns.within * (self.dearest - floor)
        return within, within + unknowns.beyond * (self.dearest - within)

    def step_ms(self, running: np.ndarray, tokens: float, unknowns: Unknowns) -> np.ndarray:
        """Return the target's part of a step in which each of `running` requests has `tokens`, prefill included."""
        here = self.measured
        within, beyond = here.token_ms(unknowns)
        widths = here.loads * (1 + here.prefill)
        of_tokens = here.steps - (here.slope - (1 + here.prefill) * within) * here.loads
        width = running * tokens
        wider = np.maximum(width - widths[-1], 0) * beyond
        step = np.interp(width, widths, of_tokens) + wider + self.per_request(unknowns) * running
        return np.maximum(step, unknowns.wide * here.wide * width)

    def plain_ms(self, running: np.ndarray, unknowns: Unknowns) -> np.ndarray:
        """Return the time of a plain step with `running` requests."""
        if self is self.measured:
            return np.interp(running, self.loads, self.steps)
        return self.step_ms(running, 1 + self.prefill, unknowns)

    def first_token_ms(self, running: np.ndarray, step_ms: np.ndarray, unknowns: Unknowns = Unknowns()) -> np.ndarray:
        """Return the time to the first token without waiting for memory: that of plain decoding, what a slower step
        adds by the line that the plain runs say, because a request waits for steps under way, and what further prompt
        tokens take.
        """
        here = self.measured
        plain_first, plain_step = (np.interp(running, here.loads, each) for each in (here.first_ms, here.steps))
        first = plain_first + here.first_per_step * (step_ms - plain_step)
        if self is not here:
            alone, beyond = here.first_ms[0] / max(here.prompt, 1.0), here.token_ms(unknowns)[1]
            low, high = (here.wide, max(here.wide, beyond)) if here.wide else (min(beyond, alone), alone)
            each = low + unknowns.prefill * (high - low)  # ms of a prompt token
            first = np.maximum(first + (self.prompt - here.prompt) * each, self.prompt * each)
        return np.maximum(first, 0)

    def plain_throughput(self, loads: np.ndarray, unknowns: Unknowns) -> np.ndarray:
        """Return the tokens per second of plain decoding: as measured, or in proportion to the time of a request."""
        measured = np.interp(loads, self.loads, self.throughput)
        if self is self.measured:
            return measured
        seconds, running = [], (loads, np.minimum(loads, self.admitted))
        for curve, runs in zip((self.measured, self), running, strict=True):
            step = curve.plain_ms(runs, unknowns)
            seconds.append(np.nan_to_num(curve.first_token_ms(runs, step, unknowns)) + curve.output * step)
        return measured * (running[1] / running[0]) * seconds[0] / seconds[1]


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the slope of the line of least squares, 0 where x does not vary."""
    away = x - x.mean()
    return float(away @ y / (away @ away)) if away.any() else 0.0


def _roughness(loads: np.ndarray, values: np.ndarray) -> float:
    """Return the relative deviation of values from the lines between their neighbours, root mean square; 0 for NaN."""
    places = range(1, len(loads) - 1)
    lines = [np.interp(loads[place], np.delete(loads, place), np.delete(values, place)) for place in places]
    return float(np.nan_to_num(np.sqrt(np.mean(np.square(values[1:-1] / lines - 1)))))


@dataclass(frozen=True)
class Speculating:
    """One measured speculative point with all of its requests running, and what was drafted."""

    in_flight: float
    step_ms: float
    tokens: float  # per round, pooled over rounds, the target's own included; what throughput follows
    streamed: float  # tokens per round that a user sees between two messages: the mean over requests where it is known
    error: float  # standard error of `tokens`, 0 where nobody counted rounds or requests
    first_ms: float  # time to the first token; NaN where nobody measured it
    gamma: int
    admitted: float = inf  # requests that memory lets run, infinite where nothing limits them

    @classmethod
    def of_point(cls, point: dict[str, Any], gamma: int, admitted: float = inf) -> "Speculating":
        """Return what a line of a table says. UsageError where a number is missing or does not fit gamma."""
        tokens = point["pooled"] if point["pooled"] == point["pooled"] else point["by_request"]
        who = f"{point['server']} at {point['in_flight']:g} in flight"
        if not (tokens == tokens and point["step_ms"] == point["step_ms"]):
            raise UsageError(f"{who} lacks tokens per round or times between tokens: the forecast needs both there.")
        alpha = alpha_for(tokens, {gamma: 1.0})
        if alpha is None:
            raise UsageError(f"{who}: {tokens:.2f} tokens per round are more than gamma {gamma} + 1: correct --gamma.")
        law = accepted_pmf(alpha, gamma)
        spread = sqrt(float(law @ np.arange(gamma + 1) ** 2 - (law @ np.arange(gamma + 1)) ** 2))
        rounds = point["drafts"]
        if not rounds > 0:
            rounds = point["requests"] * point["output_tokens"] / tokens
        error = spread * sqrt(DESIGN_EFFECT / rounds) if rounds > 0 else 0.0
        streamed = point["by_request"] if point["by_request"] == point["by_request"] else tokens
        return cls(point["in_flight"], point["step_ms"], tokens, streamed, error, point["ttft_ms"], gamma, admitted)


def held_slots(prompt: float, output: float, gamma: int, state: float = 0.0) -> float:
    """Return the KV slots that a request holds, on average over its life: prompt, half of its output, and the gamma + 1
    of a draft. A model with recurrent layers keeps gamma + 1 copies of its state, a block of `state` slots each, and
    its text fills whole blocks.
    """
    return prompt + output / 2 + gamma + 1 + state * (gamma + 1.5)


def draft_ms(curve: PlainCurve, at: Speculating, unknowns: Unknowns, running: np.ndarray) -> np.ndarray:
    """Return the time of a draft and of all else that a plain step lacks: what the measured point leaves beside the
    target's part of its step, growing with the batch.
    """
    here, point = curve.measured, np.array([at.in_flight])
    alone = at.step_ms - here.step_ms(point, at.gamma + 1 + at.tokens * here.prefill, unknowns)
    growth = curve.plain_ms(running, unknowns) / here.plain_ms(point, unknowns) - 1
    return alone * (1 + unknowns.drafting * growth)


def forecast_once(
    curve: PlainCurve,
    at: Speculating,
    unknowns: Unknowns,
    gamma: int | None = None,
    loads: np.ndarray | None = None,
    idle: float = 0.0,
) -> dict[str, np.ndarray]:
    """Return `FORECAST` over the loads of the curve, or over others within them.

    gamma: draft tokens where other than measured; the tokens per round are then those of the capped geometric, and half
    of a draft's cost goes with its length. 0: the drafter is loaded, and its memory taken, but nothing is drafted;
    `idle` is the share of the measured draft's cost that is paid even so.
    """
    loads = curve.loads if loads is None else loads
    running = np.minimum(loads, at.admitted)
    tokens = max(at.tokens + unknowns.acceptance * at.error, 1.0)
    width = at.gamma + 1 + tokens * curve.prefill
    draft = draft_ms(curve, at, unknowns, running)
    scale, streamed = 1.0, at.streamed * tokens / at.tokens
    gamma = at.gamma if gamma is None else gamma
    if gamma != at.gamma:
        other = float(tokens_per_round(alpha_for(tokens, {at.gamma: 1.0}) or 1.0, gamma)) if gamma else 1.0
        scale, streamed = ((1 + gamma / at.gamma) / 2, streamed * other / tokens) if gamma else (idle, 1.0)
        tokens, width = other, gamma + 1 + other * curve.prefill
    step = curve.step_ms(running, width, unknowns) + scale * draft
    step = np.where(loads > at.in_flight, step * (1 + unknowns.step * curve.residuals[0]), step)
    first = curve.first_token_ms(running, step, unknowns) * (1 + unknowns.first * curve.residuals[1])
    if at.first_ms == at.first_ms and gamma == at.gamma and curve is curve.measured:
        first = np.where(loads == at.in_flight, at.first_ms, first)
    rate = running / (np.nan_to_num(first) + curve.output * step / tokens) * 1e3  # requests per second
    throughput = rate * curve.output
    plain = curve.plain_throughput(loads, unknowns)
    waiting = (loads - running) / rate * 1e3  # Little's law over those that are not admitted
    values = running, step, throughput, first + waiting, step / streamed, throughput / plain
    return dict(zip(FORECAST, values, strict=True))


def forecast(curve: PlainCurve, at: Speculating) -> pd.DataFrame:
    """Return in_flight, each of `FORECAST`, and NAME_low and NAME_high: 95% over what is not known (`Unknowns`)."""
    random, of_prompts = np.random.default_rng(0), np.random.default_rng(1)
    draws = []
    for _ in range(DRAWS):
        shares, errors = random.uniform(size=5), random.standard_normal(3)
        draws.append(forecast_once(curve, at, Unknowns(*shares, *of_prompts.uniform(size=2), *errors)))
    made = {"in_flight": curve.loads, **forecast_once(curve, at, Unknowns())}
    for name in FORECAST:
        low, high = np.quantile([draw[name] for draw in draws], (0.025, 0.975), axis=0)
        made |= {f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(made)


def off_load(table: pd.DataFrame, column: str = "gain") -> float:
    """Return the load from which speculation loses for good, between two loads on the logarithm's scale: infinite where
    it gains at the largest, the smallest load where it never gains.
    """
    return max(float(table["in_flight"].iloc[0]), float(stops_paying(table["in_flight"], 1 + np.log(table[column]))))
