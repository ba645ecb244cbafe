"""What compilation makes of a call on a CPU: t(1) and t(5) behind 512 cached tokens, with `target.compile` false, trace
and true, on one thread and on all, interleaved with reads of memory, over the time that reading the weights takes at
the median rate of those reads.

Packages are kept in `models/compiled`; the first run makes them, three for a model and number of threads, in half a
minute on two quiet cores.
"""

import os
import statistics
import time

import pytest
import torch
from fixtures.measuring import load, seconds_of, target_of

from specdec.compiled.passes import compile_decoder
from specdec.models.decoder import Decoder
from specdec.records import chain_tree
from specdec.timing.machine import buffer_bytes

pytestmark = pytest.mark.benchmark

CONTEXT = 512
SECONDS = 8.0  # for all calls of a model, after the first ones


@pytest.fixture(params=sorted({1, len(os.sched_getaffinity(0))}), ids=lambda count: f"{count}_threads")
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "dtype", "bars"),
    [
        ("causal", "bfloat16", {1: 2.2, 5: 4.0}),
        ("causal", "float32", {1: 2.2, 5: 4.0}),
        ("random_110m", "bfloat16", {1: 1.5}),
        ("smollm2", "float32", {1: 1.35, 5: 1.9}),
    ],
    ids=["pocket_bfloat16", "pocket_float32", "random_110m", "smollm2"],
)
@pytest.mark.timeout(1800)
@torch.inference_mode()
def test_time_of_a_call_over_the_time_to_read_the_weights(name, dtype, bars, threads, log_figure):
    with torch.inference_mode(False):  # weights that are moved into one piece of memory
        target = target_of(*dict.fromkeys(("causal", name)), dtype=dtype, compile=True)
    began = time.perf_counter()
    decoders = {mode: Decoder(target.model, name, 1024) for mode in ("false", "trace", "true")}
    compile_decoder(decoders["true"], {1, 5}, CONTEXT + 8, "inductor", packages=target.packages)
    made = time.perf_counter() - began
    compile_decoder(decoders["trace"], {1, 5}, CONTEXT + 8, "trace")
    assert {choice["pass"] for choice in decoders["true"].choices.values()} == {"inductor"}
    for decoder in decoders.values():
        decoder.start([index % 61 for index in range(CONTEXT + 1)], CONTEXT + 8)
    source = torch.ones(buffer_bytes() // 4)
    drafts = {count: (torch.arange(count) + 5, chain_tree(count - 1)) for count in (1, 5)}

    def call(decoder: Decoder, count: int) -> None:
        decoder.length = CONTEXT
        decoder.forward(*drafts[count])

    kernels = {(mode, count): (lambda d=d, n=count: call(d, n)) for mode, d in decoders.items() for count in (1, 5)}
    kernels["read", 0] = source.sum
    times: dict[tuple[str, int], list[float]] = {key: [] for key in kernels}
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times["read", 0]) < 3:
        for key, kernel in kernels.items():
            kernel()  # brings the weights into the caches, where they stay between the calls of a decoding
            times[key] += [seconds_of(kernel) for _ in range(12)]
    # The median of the reads, as of the calls: both felt the same neighbours on the machine.
    bandwidth = buffer_bytes() / statistics.median(times["read", 0])
    described = target.describe()
    read = described["weight_bytes"] / bandwidth
    best = buffer_bytes() / min(times.pop(("read", 0)))
    gigabytes = {"median": round(bandwidth / 1e9, 1), "best": round(best / 1e9, 1)}
    log_figure(model=name, dtype=dtype, what="bandwidth", threads=threads, **gigabytes)
    found = {}
    for (mode, count), seconds in times.items():
        low, median, high = (round(quarter * 1e3, 3) for quarter in statistics.quantiles(seconds, n=4))
        found[mode, count] = statistics.median(seconds) / read
        log_figure(
            **{"model": name, "parameters": described["parameters"], "dtype": dtype, "what": f"t({count})"},
            **{"compile": mode, "context": CONTEXT, "threads": threads},
            **{"ms": median, "quartiles_ms": [low, high], "read_ms": round(read * 1e3, 3)},
            over_read=round(found[mode, count], 2),
            **({"made_or_loaded_s": round(made, 1)} if mode == "true" else {}),
            **load(),
        )
    for count, bar in bars.items():
        assert found["true", count] <= bar
