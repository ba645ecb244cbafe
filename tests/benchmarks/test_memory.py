"""Resident memory while a 110M model decodes eagerly on a CPU: growth under the cache's size and 15% of the weights.

Growth is counted from before the prefill, so that the cache and what the prefill leaves behind are in it; the peak
inside the prefill, whose activations are as long as the prompt, is logged beside it. Each case is a process of its own,
because what one run leaves in the allocator would hide what the next one takes.
"""

import json

import pytest
from fixtures.measuring import alone

pytestmark = pytest.mark.benchmark
PROMPT, OUTPUT, GAMMA = 512, 64, 5

SCRIPT = """
import gc, json, sys, threading, time
import psutil
from fixtures.decoding import decode, seeded
from fixtures.measuring import target_of
from fixtures.small_parts import read_group_values

dtype, prompt_length, output, gamma = sys.argv[1], *map(int, sys.argv[2:])
target = target_of("causal", "random_110m", dtype=dtype, compile=False)
values = read_group_values("drafter", "ngram")
prompt = [index * 7919 % target.vocab_size for index in range(prompt_length)]
process, seen, done = psutil.Process(), [], threading.Event()

def watch():
    while not done.is_set():
        seen.append((time.perf_counter(), process.memory_info().rss))
        time.sleep(0.002)

gc.collect()
before = process.memory_info().rss
watcher = threading.Thread(target=watch)
watcher.start()
generation = decode(target, values, gamma, prompt, output, **seeded())
done.set()
watcher.join()
seen.append((time.perf_counter(), process.memory_info().rss))
began = generation.prefill[1]
print(json.dumps({"weights": target.describe()["weight_bytes"], "cache": target.cache_bytes, "before": before,
                  "prefill_peak": max(size for at, size in seen if at < began) - before,
                  "growth": max(size for at, size in seen if at >= began) - before}))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_growth_while_decoding(dtype, log_figure):
    found = json.loads(" ".join(alone(SCRIPT, dtype, PROMPT, OUTPUT, GAMMA)))
    bound = found["cache"] + 0.15 * found["weights"]
    log_figure(
        what="growth of resident memory while decoding",
        **{"model": "random_110m", "dtype": dtype, "prompt_tokens": PROMPT, "new_tokens": OUTPUT, "gamma": GAMMA},
        **{f"{name}_mb": round(value / 2**20, 1) for name, value in {**found, "bound": bound}.items()},
        growth_beyond_cache_over_weights=round((found["growth"] - found["cache"]) / found["weights"], 4),
    )
    assert found["growth"] < bound
