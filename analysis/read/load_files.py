"""Readers of what load generators and engines write: each gives load points, a line of a table for each number of
requests in flight; and vLLM's gauges. A format is told from its content.
"""

import csv
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import filled_lines, printable

from .foreign.llama_server import answered
from .foreign.vllm_prometheus import LABEL
from .importers import kind_of

Values = Mapping[str, Any]
COLUMNS = (  # of a table of load points; all but the first two are numbers, NaN where the file does not say them
    "server",  # the name of a run: what was served, of which the points are loads
    "model",  # the target's id; "" where the file has none
    "in_flight",  # requests at once
    "throughput",  # output tokens per second, of all requests
    "step_ms",  # a round of decoding: the time between two messages of a stream
    "ttft_ms",  # median time to the first token; its mean where every request is known
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
KINDS = {  # what writes them: two lines that tell it
    "GuideLLM, as a table": (
        "model,offered_concurrency,successful_requests,aggregate_output_tps,mean_itl_ms,...",
        "dspark,16,402,2600.6,5.77,...",
    ),
    "GuideLLM": (
        '{"benchmarks": [{"config": {"strategy": {"streams": 16}},',
        ' "metrics": {"output_tokens_per_second": {"successful": {"mean": 2600.6}}, "inter_token_latency_ms": ...}}]}',
    ),
    "vllm bench serve --save-result": (
        '{"max_concurrency": 16, "output_throughput": 1250.0, "mean_itl_ms": 12.7,',
        ' "spec_decode_num_drafts": 800, "spec_decode_acceptance_length": 2.5, ...}',
    ),
    "SGLang's bench_serving": (
        '{"backend": "sglang", "max_concurrency": 16, "output_throughput": 1250.0,',
        ' "mean_itl_ms": 5.1, "accept_length": 2.5, ...}',
    ),
    "AIPerf, profile_export_aiperf.json": (
        '{"request_throughput": {"unit": "requests/sec", "avg": 1.45},',
        ' "output_token_throughput": {"avg": 290.0}, "inter_token_latency": {"avg": 12.7}, ...}',
    ),
    "AIPerf, profile_export_aiperf.csv": (
        "Metric,avg,min,max,p1,p5,p10,p25,p50,p75,p90,p95,p99,std",
        "Inter Token Latency (ms),51.76,46.81,56.30,...",
    ),
    "llama.cpp's server, a response a line": (
        '{"timings": {"prompt_n": 190, "prompt_ms": 50.1, "predicted_n": 75,',
        ' "predicted_ms": 1600.0, "draft_n": 70, "draft_n_accepted": 40}, ...}',
    ),
    "vLLM's page /metrics": (
        'vllm:num_requests_running{model_name="M"} 74.0',
        'vllm:kv_cache_usage_perc{model_name="M"} 0.99',
    ),
}


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


def server_and_path(given: str) -> tuple[str, str]:
    """Return the server and the path of `NAME=FILE`, or "" and the path: an equals sign within a path that exists
    belongs to the path.
    """
    name, sign, path = given.partition("=")
    return (name, path) if sign and "/" not in name and not Path(given).exists() else ("", given)


def is_load(given: str) -> bool:
    """Return whether a file, of which `NAME=FILE` may speak, is a load test that no importer reads."""
    path = Path(server_and_path(given)[1])
    try:
        kind_of(path)
    except UsageError:
        with suppress(UsageError):
            read_loads(path)
            return True
    return False


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
    if text.startswith("Metric,avg,"):
        return _table([_aiperf(str(path), path, _aiperf_rows(text))])
    values = _documents(text)
    made: list[dict[str, Any]] = []
    for number, value in enumerate(values, 1):
        where = f"{path}, run {number}" if len(values) > 1 else str(path)
        if "benchmarks" in value:
            made += [_guidellm(f"{where}, benchmark {place}", path, one) for place, one in enumerate(_list(value), 1)]
        elif "timings" not in value and (read := _bench(value)):
            made.append(read(where, path, value))
    if answers := [value for value in values if isinstance(value.get("timings"), dict)]:
        made.append(_llama_server(path, answers))
    if not made:
        kinds = "; ".join(f"{name}: {first} {second}" for name, (first, second) in KINDS.items())
        raise UsageError(f"{path} is of no kind that specdec.explain knows. What it knows begins with {kinds}")
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
    """A benchmark of GuideLLM's own JSON (GenerativeMetrics in guidellm/benchmark/schemas). Its time between tokens is
    weighted by tokens, so that times tokens per message without the first, a mean over messages, it is that of a step.
    """
    metrics = value.get("metrics", {})

    def of(name: str, statistic: str = "mean") -> float:
        return _number(where, metrics, f"{name}.successful.{statistic}", f"{name}.total.{statistic}")

    per_message = of("iter_tokens_per_iteration")
    if per_message != per_message:  # as older versions call it
        per_message = of("output_tokens_wo_first_per_iteration")
    by_request = of("output_tokens_per_iteration") if per_message != per_message else nan
    streams = ("config.strategy.streams", "config.strategy.max_concurrency")
    in_flight = _number(where, value, *streams)
    return {
        "where": where,
        "server": path.stem,
        "model": "",
        "in_flight": in_flight if in_flight > 0 else of("request_concurrency"),
        "throughput": of("output_tokens_per_second"),
        "step_ms": of("inter_token_latency_ms") * (by_request if by_request == by_request else per_message),
        "ttft_ms": of("time_to_first_token_ms", "median"),
        "ttft_p99_ms": of("time_to_first_token_ms", "percentiles.p99"),
        "prompt_tokens": of("prompt_token_count"),
        "output_tokens": of("output_token_count"),
        "requests": _number(where, metrics, "request_totals.successful"),
        "by_request": by_request,
        "pooled": per_message,
    }


def _bench(value: Values) -> Callable[[str, Path, Values], dict[str, Any]] | None:
    """Return the reader of a result of `vllm bench serve`, SGLang's bench_serving or AIPerf; None for another file."""
    if isinstance(value.get("output_token_throughput"), dict):
        return _aiperf
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


def _aiperf_rows(text: str) -> Values:
    """Return the lines of AIPerf's table under the names of its JSON, such as inter_token_latency for "Inter Token
    Latency (ms)". Single values stand in the column that is avg elsewhere.
    """
    lines = [line for line in csv.reader(text.splitlines()) if len(line) > 1]
    columns = lines[0]
    names = [re.sub(r"\W+", "_", re.sub(r" \(.*", "", line[0]).strip().lower()) for line in lines]
    return {name: dict(zip(columns[1:], line[1:], strict=False)) for name, line in zip(names, lines, strict=True)}


def _aiperf(where: str, path: Path, value: Values) -> dict[str, Any]:
    """AIPerf's statistics of a run (its docs/reference/json-export-schema.md). A step is the time between two messages;
    without that, the time between tokens times those of a round. Little's law gives who is in flight where the
    configuration does not.
    """

    def of(name: str, statistic: str = "avg", *other: str) -> float:
        return _number(where, value, *(f"{tag}.{statistic}" for tag in (name, *other)))

    pooled = of("spec_decode_token_weighted_acceptance_length", "avg", "token_weighted_acceptance_length")
    by_request = of("spec_decode_acceptance_length", "avg", "acceptance_length")
    step = of("inter_chunk_latency")
    if step != step:
        tokens = pooled if pooled == pooled else by_request
        step = of("inter_token_latency") * (tokens if tokens == tokens else 1.0)
    settings = ("loadgen.concurrency", "phases.profiling.concurrency")
    in_flight = _number(where, value, *(f"input_config.{key}" for key in settings))
    if not in_flight > 0 and (waiting := of("request_throughput") * of("request_latency") / 1e3) > 0:
        in_flight = float(max(round(waiting), 1))
    return {
        "where": where,
        "server": path.stem,
        "model": "",
        "in_flight": in_flight,
        "throughput": of("output_token_throughput"),
        "step_ms": step,
        "ttft_ms": of("time_to_first_token", "p50"),
        "ttft_p99_ms": of("time_to_first_token", "p99"),
        "prompt_tokens": of("input_sequence_length"),
        "output_tokens": of("output_sequence_length"),
        "requests": of("request_count"),
        "pooled": pooled,
        "by_request": by_request,
        "drafts": of("total_spec_decode_steps"),
        "accepted_share": of("spec_decode_overall_draft_acceptance_rate", "avg", "overall_draft_acceptance_rate") / 100,
    }


def _llama_server(path: Path, values: list[Values]) -> dict[str, Any]:
    """The responses of a llama.cpp server, one after the other; a text's first token takes no round."""
    answers = [answered(f"{path}, response {place}", value) for place, value in enumerate(values, 1)]
    tokens, rounds, drafted = (sum(getattr(one, name) for one in answers) for name in ("tokens", "rounds", "drafted"))
    milliseconds = sum(one.predicted_ms for one in answers)
    seconds = sum(one.seconds for one in answers)
    made = {
        "where": str(path),
        "server": path.stem,
        "model": printable(str(values[0].get("model") or "")),
        "in_flight": 1.0,
        "throughput": (tokens + len(answers)) / seconds if seconds > 0 else nan,
        "step_ms": milliseconds / rounds if rounds else nan,
        "ttft_ms": fmean(one.prompt_ms for one in answers),
        "prompt_tokens": fmean(one.prompt_n for one in answers),
        "output_tokens": tokens / len(answers) + 1,
        "requests": len(answers),
    }
    if drafted and rounds:
        by_request = fmean(one.tokens / one.rounds for one in answers if one.rounds)
        share = sum(one.accepted for one in answers) / drafted
        made |= {"pooled": tokens / rounds, "by_request": by_request, "drafts": rounds, "accepted_share": share}
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
