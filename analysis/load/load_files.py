"""Readers of what load generators and engines write: each gives load points, a line of a table for each number of
requests in flight; and vLLM's gauges. A format is told from its content.
"""

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import filled_lines, printable

from ..read.foreign.vllm_prometheus import LABEL

Values = Mapping[str, Any]
COLUMNS = (  # of a table of load points; all but the first two are numbers, NaN where the file does not say them
    "server",  # the name of a run: what was served, of which the points are loads
    "model",  # the target's id; "" where the file has none
    "in_flight",  # requests at once
    "throughput",  # output tokens per second, of all requests
    "step_ms",  # a round of decoding: the time between two messages of a stream
    "ttft_ms",  # median time to the first token
    "ttft_p99_ms",
    "prompt_tokens",  # mean
    "output_tokens",  # mean
    "requests",  # completed
    "pooled",  # tokens per round, the target's own included, over all rounds
    "by_request",  # the same, its mean over requests
    "drafts",  # rounds that drafted
    "accepted_share",  # accepted over offered draft tokens
    "gamma",  # draft tokens offered per round
)
KINDS = (  # each with what tells it
    "GuideLLM's table (model,offered_concurrency,aggregate_output_tps,mean_itl_ms,...)",
    'GuideLLM\'s JSON ({"benchmarks": [{"config": ..., "metrics": ...}]})',
    '`vllm bench serve --save-result` ({"output_throughput": 1250.0, "mean_itl_ms": 12.7, "max_concurrency": 16, ...})',
    'SGLang\'s bench_serving (the same with "accept_length")',
    'llama-server\'s responses, one a line ({"timings": {"prompt_n": 190, "predicted_n": 750, "draft_n": 70, ...}})',
    'vLLM\'s page /metrics (vllm:num_requests_running{model_name="M"} 74.0)',
)


@dataclass(frozen=True)
class Gauges:
    """The gauges of a vLLM server's pages: the largest number of requests that ran, that waited then, the share of the
    KV cache in use, and its slots; NaN where a page lacks them.
    """

    running: float
    waiting: float
    usage: float
    slots: float

    @property
    def full(self) -> bool:
        """True where requests waited while the KV cache was used up: memory, and not a limit of sequences."""
        return self.usage >= 0.95 and self.waiting > 0


def read_loads(path: Path) -> pd.DataFrame | Gauges:
    """Return the load points of a file (`COLUMNS`), or gauges. UsageError for a file of no known kind, or a number that
    cannot be: below 0, or no number.
    """
    text = b"".join(raw for _, raw in filled_lines(path, f"The file {path}")).decode("utf-8", "replace")
    if re.search(r"^(# (HELP|TYPE) )?vllm:", text, re.MULTILINE):
        return _gauges(path, text)
    if "offered_concurrency" in text.partition("\n")[0]:
        lines = csv.DictReader(text.splitlines())
        return _table([_guidellm_line(path, number, line) for number, line in enumerate(lines, 2)])
    values = _documents(text)
    made: list[dict[str, Any]] = []
    for number, value in enumerate(values, 1):
        where = f"{path}, run {number}" if len(values) > 1 else str(path)
        if "benchmarks" in value:
            made += [_guidellm(f"{where}, benchmark {place}", path, one) for place, one in enumerate(_list(value), 1)]
        elif "timings" not in value and (read := _bench(value)):
            made.append(read(where, path, value))
    timings = [value["timings"] for value in values if isinstance(value.get("timings"), dict)]
    if timings:
        made.append(_llama_server(path, timings))
    if not made:
        raise UsageError(f"{path} is of no kind that specdec.explain knows: {'; '.join(KINDS)}.")
    return _table(made)


def _documents(text: str) -> list[Values]:
    """Return the JSON objects of a text: one, a list of them, or one a line; none where it is no JSON."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return []
    return [value for value in (whole if isinstance(whole, list) else [whole]) if isinstance(value, dict)]


def _list(value: Values) -> list[Values]:
    found = value["benchmarks"]
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _number(where: str, values: Values, *keys: str) -> float:
    """Return the first of `keys` that `values` has, NaN without one. UsageError for what is no number of 0 or more."""
    for key in keys:
        value: Any = values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None or value == "":
            continue
        try:
            number = float(value[0] if isinstance(value, list) and value else value)
        except (TypeError, ValueError):
            raise UsageError(f"{where}: {key} is {printable(str(value))!r:.40}, and a number was expected.") from None
        if number < 0 or number == float("inf"):
            raise UsageError(
                f"{where}: {key} is {number:g}, which no clock and no counter gives: measure that point again, or "
                "leave it out."
            )
        return number
    return nan


def _table(points: list[dict[str, Any]]) -> pd.DataFrame:
    """Return points as a table. UsageError where the requests in flight or the throughput are unknown."""
    for point in points:
        for name, lacking in (("in_flight", "requests in flight"), ("throughput", "output tokens per second")):
            if not point[name] > 0:
                raise UsageError(f"{point['where']} does not say the {lacking}: no factor can be known without it.")
    table = pd.DataFrame(points).reindex(columns=list(COLUMNS))
    return table.astype({name: float for name in COLUMNS[2:]})


def _guidellm_line(path: Path, number: int, line: Values) -> dict[str, Any]:
    """A point of GuideLLM's results as vllm-project/speculators tabulates them. Its time between tokens is that of a
    request over its tokens, so a step is as many of them as tokens came in a message.
    """
    where = f"{path}:{number}"
    read = {
        name: _number(where, line, column)
        for name, column in {
            "in_flight": "offered_concurrency",
            "throughput": "aggregate_output_tps",
            "step_ms": "mean_itl_ms",
            "ttft_ms": "median_ttft_ms",
            "ttft_p99_ms": "p99_ttft_ms",
            "prompt_tokens": "mean_prompt_tokens",
            "output_tokens": "mean_output_tokens",
            "requests": "successful_requests",
            "by_request": "mean_output_tokens_per_iteration",
            "drafts": "num_drafts",
        }.items()
    }
    accepted = _number(where, line, "num_accepted_tokens")
    pooled = 1 + accepted / read["drafts"] if read["drafts"] > 0 else _number(where, line, "acceptance_length")
    read["step_ms"] *= read["by_request"]
    return {
        "where": where,
        "server": printable(str(line.get("model") or path.stem)),
        "model": "",
        **read,
        "pooled": pooled,
    }


def _guidellm(where: str, path: Path, value: Values) -> dict[str, Any]:
    """A benchmark of GuideLLM's own JSON; its time between tokens as in its table."""
    metrics = value.get("metrics", {})

    def of(name: str, statistic: str = "mean") -> float:
        return _number(where, metrics, f"{name}.successful.{statistic}", f"{name}.total.{statistic}")

    by_request = of("output_tokens_per_iteration")
    streams = ("config.strategy.streams", "config.strategy.max_concurrency")
    in_flight = _number(where, value, *streams)
    return {
        "where": where,
        "server": path.stem,
        "model": "",
        "in_flight": in_flight if in_flight > 0 else of("request_concurrency"),
        "throughput": of("output_tokens_per_second"),
        "step_ms": of("inter_token_latency_ms") * by_request,
        "ttft_ms": of("time_to_first_token_ms", "median"),
        "ttft_p99_ms": of("time_to_first_token_ms", "percentiles.p99"),
        "prompt_tokens": of("prompt_token_count"),
        "output_tokens": of("output_token_count"),
        "requests": _number(where, metrics, "request_totals.successful"),
        "by_request": by_request,
    }


def _bench(value: Values) -> Callable[[str, Path, Values], dict[str, Any]] | None:
    """Return the reader of a result of `vllm bench serve` or of SGLang's bench_serving; None for another file."""
    if "output_throughput" not in value or not {"mean_itl_ms", "mean_tpot_ms"} & set(value):
        return None
    return _sglang_bench if "accept_length" in value or "sglang" in str(value.get("backend")) else _vllm_bench


def _of_bench(where: str, path: Path, value: Values) -> dict[str, Any]:
    """Return what both benches call by the same names."""
    requests = _number(where, value, "completed")
    per_request = requests if requests > 0 else nan
    return {
        "where": where,
        "server": path.stem,
        "model": printable(str(value.get("model_id") or "")),
        "in_flight": _number(where, value, "max_concurrency", "concurrency"),
        "throughput": _number(where, value, "output_throughput"),
        "ttft_ms": _number(where, value, "median_ttft_ms", "mean_ttft_ms"),
        "ttft_p99_ms": _number(where, value, "p99_ttft_ms"),
        "prompt_tokens": _number(where, value, "total_input_tokens", "total_input") / per_request,
        "output_tokens": _number(where, value, "total_output_tokens", "total_output") / per_request,
        "requests": requests,
    }


def _vllm_bench(where: str, path: Path, value: Values) -> dict[str, Any]:
    """A result of `vllm bench serve`: its time between tokens is that between messages, which is a step."""
    drafts = _number(where, value, "spec_decode_num_drafts")
    share = _number(where, value, "spec_decode_acceptance_rate")
    return {
        **_of_bench(where, path, value),
        "step_ms": _number(where, value, "mean_itl_ms"),
        "pooled": _number(where, value, "spec_decode_acceptance_length"),
        "drafts": drafts,
        "accepted_share": share / 100,  # printed as a percentage
        "gamma": _number(where, value, "spec_decode_draft_tokens") / drafts if drafts > 0 else nan,
    }


def _sglang_bench(where: str, path: Path, value: Values) -> dict[str, Any]:
    """A line of SGLang's bench_serving: it shares the time between messages among their tokens."""
    pooled = _number(where, value, "accept_length")
    between = _number(where, value, "mean_itl_ms", "mean_tpot_ms")
    return {**_of_bench(where, path, value), "step_ms": between * (pooled if pooled > 1 else 1.0), "pooled": pooled}


def _llama_server(path: Path, timings: list[Values]) -> dict[str, Any]:
    """The responses of a llama-server, one after the other: a round commits the accepted tokens and one of the target,
    so there are predicted_n - draft_n_accepted of them.
    """
    lines = pd.DataFrame(
        [
            {
                key: _number(f"{path}, response {place}", one, key)
                for key in ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "draft_n", "draft_n_accepted")
            }
            for place, one in enumerate(timings, 1)
        ]
    )
    drafted = lines["draft_n"].fillna(0).sum()
    rounds = lines["predicted_n"] - lines["draft_n_accepted"].fillna(0)
    seconds = (lines["prompt_ms"] + lines["predicted_ms"]).sum() / 1e3
    made = {
        "where": str(path),
        "server": path.stem,
        "model": "",
        "in_flight": 1.0,
        "throughput": lines["predicted_n"].sum() / seconds if seconds > 0 else nan,
        "step_ms": lines["predicted_ms"].sum() / rounds.sum() if rounds.sum() > 0 else nan,
        "ttft_ms": lines["prompt_ms"].median(),
        "prompt_tokens": lines["prompt_n"].mean(),
        "output_tokens": lines["predicted_n"].mean(),
        "requests": len(lines),
    }
    if drafted > 0:
        made["pooled"] = lines["predicted_n"].sum() / rounds.sum()
        made["by_request"] = (lines["predicted_n"] / rounds).mean()
        made["accepted_share"] = lines["draft_n_accepted"].sum() / drafted
        made["drafts"] = rounds.sum()
    return made


def _gauges(path: Path, text: str) -> Gauges:
    """Return the gauges of one or several scrapes, one behind the other."""
    values: dict[str, list[float]] = {}
    slots = nan
    for line in text.splitlines():
        if found := re.fullmatch(r"vllm:(\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?\s*", line):
            values.setdefault(found[1], []).append(_number(str(path), {found[1]: found[3]}, found[1]))
            labels = dict(LABEL.findall(found[2] or ""))
            if found[1] == "cache_config_info" and labels.get("num_gpu_blocks", "").isdigit():
                slots = float(labels["num_gpu_blocks"]) * _number(str(path), labels, "block_size")

    def most(name: str) -> float:
        return max((value for value in values.get(name, ()) if isfinite(value)), default=nan)

    return Gauges(most("num_requests_running"), most("num_requests_waiting"), most("kv_cache_usage_perc"), slots)
