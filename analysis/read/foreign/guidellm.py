"""Load tests of GuideLLM: its own JSON, and its results as vllm-project/speculators tabulates them."""

import csv
from functools import partial
from math import nan
from typing import Any

from specdec.errors import UsageError

from ..load_points import LoadFile, Values, number_of

LOAD_FILES = (  # what writes them: how they begin
    "GuideLLM, as a table: model,offered_concurrency,successful_requests,aggregate_output_tps,mean_itl_ms,... "
    'dspark,16,402,2600.6,5.77,...; GuideLLM: {"benchmarks": [{"config": {"strategy": {"streams": 16}},  "metrics": '
    '{"output_tokens_per_second": {"successful": {"mean": 2600.6}}, "inter_token_latency_ms": ...}}]}'
)


def load_points(file: LoadFile) -> list[dict[str, Any]]:
    if not file.documents and "offered_concurrency" in file.text.partition("\n")[0]:
        lines = [*csv.DictReader(file.text.splitlines())]
        if not lines:
            raise UsageError(f"{file.path} is a table of GuideLLM with no line below its header: measure a load first.")
        return [_of_line(f"{file.path}:{number}", line) for number, line in enumerate(lines, 2)]
    points = []
    for where, value in file.documents:
        found = value.get("benchmarks")
        benchmarks = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        points += [_of_benchmark(f"{where}, benchmark {place}", one) for place, one in enumerate(benchmarks, 1)]
    return points


def _of_line(where: str, line: Values) -> dict[str, Any]:
    """Return the point of a line, whose time between tokens is that of a request over its tokens."""
    of = partial(number_of, where, line)
    drafts, accepted, by_request = map(of, ("num_drafts", "num_accepted_tokens", "mean_output_tokens_per_iteration"))
    return {
        "where": where,
        "server": line.get("model"),
        "in_flight": of("offered_concurrency"),
        "throughput": of("aggregate_output_tps"),
        "step_ms": of("mean_itl_ms") * by_request,
        "ttft_ms": of("median_ttft_ms"),
        "ttft_p99_ms": of("p99_ttft_ms"),
        "prompt_tokens": of("mean_prompt_tokens"),
        "output_tokens": of("mean_output_tokens"),
        "requests": of("successful_requests"),
        "by_request": by_request,
        "drafts": drafts,
        "pooled": 1 + accepted / drafts if drafts > 0 else of("acceptance_length"),
    }


def _of_benchmark(where: str, value: Values) -> dict[str, Any]:
    """Return the point of a benchmark (GenerativeMetrics in guidellm/benchmark/schemas). Its time between tokens is
    weighted by tokens: times the tokens of a message without the first, a mean over messages, it is that of a step.
    """
    metrics = value.get("metrics", {})

    def of(name: str, statistic: str = "mean") -> float:
        return number_of(where, metrics, f"{name}.successful.{statistic}", f"{name}.total.{statistic}")

    per_message = of("iter_tokens_per_iteration")
    if per_message != per_message:  # as older versions call it
        per_message = of("output_tokens_wo_first_per_iteration")
    by_request = of("output_tokens_per_iteration") if per_message != per_message else nan
    in_flight = number_of(where, value, "config.strategy.streams", "config.strategy.max_concurrency")
    return {
        "where": where,
        "in_flight": in_flight if in_flight > 0 else of("request_concurrency"),
        "throughput": of("output_tokens_per_second"),
        "step_ms": of("inter_token_latency_ms") * (by_request if by_request == by_request else per_message),
        "ttft_ms": of("time_to_first_token_ms", "median"),
        "ttft_p99_ms": of("time_to_first_token_ms", "percentiles.p99"),
        "prompt_tokens": of("prompt_token_count"),
        "output_tokens": of("output_token_count"),
        "requests": number_of(where, metrics, "request_totals.successful"),
        "by_request": by_request,
        "pooled": per_message,
    }
