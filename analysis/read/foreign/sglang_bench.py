"""Load tests of SGLang's bench_serving (sgl-project/sglang, python/sglang/bench_serving.py), a JSON object a run."""

from typing import Any

from ..load_points import LoadFile, number_of
from .vllm_bench import bench_point, bench_runs

LOAD_FILES = (  # what writes them: how they begin
    "SGLang's bench_serving: "
    '{"backend": "sglang", "max_concurrency": 16, "output_throughput": 1250.0,  "mean_itl_ms": 5.1, "accept_length": '
    "2.5, ...}"
)


def load_points(file: LoadFile) -> list[dict[str, Any]]:
    points = []
    for where, value in bench_runs(file, sglang=True):
        pooled = number_of(where, value, "accept_length")  # tokens of a message, which share its time
        step = number_of(where, value, "mean_itl_ms", "mean_tpot_ms") * (pooled if pooled > 1 else 1.0)
        points.append(bench_point(where, value) | {"step_ms": step, "pooled": pooled})
    return points
