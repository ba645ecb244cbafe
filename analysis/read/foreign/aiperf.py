"""Load tests of AIPerf (ai-dynamo/aiperf): its statistics of a run, as JSON or as a table."""

import csv
import re
from typing import Any

from ..load_points import LoadFile, Values, number_of

LOAD_FILES = (  # what writes them: how they begin
    'AIPerf, profile_export_aiperf.json: {"request_throughput": {"unit": "requests/sec", "avg": 1.45},  '
    '"output_token_throughput": {"avg": 290.0}, "inter_token_latency": {"avg": 12.7}, ...}; AIPerf, '
    "profile_export_aiperf.csv: Metric,avg,min,max,p1,p5,p10,p25,p50,p75,p90,p95,p99,std "
    "Inter Token Latency (ms),51.76,46.81,56.30,..."
)


def load_points(file: LoadFile) -> list[dict[str, Any]]:
    if file.text.startswith("Metric,avg,"):
        lines = [line for line in csv.reader(file.text.splitlines()) if len(line) > 1]
        # As in JSON: "Inter Token Latency (ms)" is inter_token_latency there. Single values stand in the column avg.
        names = [re.sub(r"\W+", "_", re.sub(r" \(.*", "", line[0]).strip().lower()) for line in lines]
        columns = [dict(zip(lines[0][1:], line[1:], strict=False)) for line in lines]
        return [_of_run(str(file.path), dict(zip(names, columns, strict=True)))]
    runs = [(where, value) for where, value in file.documents if isinstance(value.get("output_token_throughput"), dict)]
    return [_of_run(where, value) for where, value in runs]


def _of_run(where: str, value: Values) -> dict[str, Any]:
    """Return the point of a run (docs/reference/json-export-schema.md). A step is the time between two messages;
    without that, between tokens, times those of a round. Little's law gives who is in flight where the file does not.
    """

    def of(name: str, statistic: str = "avg", *other: str) -> float:
        return number_of(where, value, *(f"{tag}.{statistic}" for tag in (name, *other)))

    pooled = of("spec_decode_token_weighted_acceptance_length", "avg", "token_weighted_acceptance_length")
    by_request = of("spec_decode_acceptance_length", "avg", "acceptance_length")
    step = of("inter_chunk_latency")
    if step != step:
        tokens = pooled if pooled == pooled else by_request
        step = of("inter_token_latency") * (tokens if tokens == tokens else 1.0)
    in_flight = number_of(where, value, "input_config.loadgen.concurrency", "input_config.phases.profiling.concurrency")
    if not in_flight > 0 and (waiting := of("request_throughput") * of("request_latency") / 1e3) > 0:
        in_flight = float(max(round(waiting), 1))
    return {
        "where": where,
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
