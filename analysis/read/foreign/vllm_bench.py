"""Load tests of `vllm bench serve --save-result` (vllm-project/vllm, vllm/benchmarks/serve.py), a JSON object a run;
and what SGLang's bench_serving, which was adapted from it, calls by the same names.
"""

from math import nan
from typing import Any

from ..load_points import LoadFile, Values, number_of

LOAD_FILES = (  # what writes them: how they begin
    'vllm bench serve --save-result: {"max_concurrency": 16, "output_throughput": 1250.0, "mean_itl_ms": 12.7,  '
    '"spec_decode_num_drafts": 800, "spec_decode_acceptance_length": 2.5, ...}'
)


def load_points(file: LoadFile) -> list[dict[str, Any]]:
    points = []
    for where, value in bench_runs(file, sglang=False):
        drafts = number_of(where, value, "spec_decode_num_drafts")
        speculation = {
            "step_ms": number_of(where, value, "mean_itl_ms"),  # between messages, which is a step
            "pooled": number_of(where, value, "spec_decode_acceptance_length"),
            "drafts": drafts,
            "accepted_share": number_of(where, value, "spec_decode_acceptance_rate") / 100,  # printed as a percentage
            "gamma": number_of(where, value, "spec_decode_draft_tokens") / drafts if drafts > 0 else nan,
        }
        points.append(bench_point(where, value) | speculation)
    return points


def bench_runs(file: LoadFile, sglang: bool) -> list[tuple[str, Values]]:
    """Return the results of SGLang's bench in a file, or those of vLLM's, each behind what messages call it."""
    return [
        (where, value)
        for where, value in file.documents
        if "output_throughput" in value and {"mean_itl_ms", "mean_tpot_ms"} & set(value)
        if sglang == ("accept_length" in value or "sglang" in str(value.get("backend")))
    ]


def bench_point(where: str, value: Values) -> dict[str, Any]:
    """Return what both benches call by the same names."""
    requests = number_of(where, value, "completed")
    per_request = requests if requests > 0 else nan
    return {
        "where": where,
        "model": value.get("model_id"),
        "in_flight": number_of(where, value, "max_concurrency", "concurrency"),
        "throughput": number_of(where, value, "output_throughput"),
        "ttft_ms": number_of(where, value, "median_ttft_ms", "mean_ttft_ms"),
        "ttft_p99_ms": number_of(where, value, "p99_ttft_ms"),
        "prompt_tokens": number_of(where, value, "total_input_tokens", "total_input") / per_request,
        "output_tokens": number_of(where, value, "total_output_tokens", "total_output") / per_request,
        "requests": requests,
    }
