"""Time of a call while other work computes on no processor, one or two: by threads, and by how these wait for another.

Passive waiting is what `OMP_WAIT_POLICY=PASSIVE` chooses: threads sleep at once instead of spinning first.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.measuring import load
from fixtures.other_work import other_work

pytestmark = pytest.mark.benchmark


def calls(out: Path) -> None:
    """Time calls of the 135M model on one and on five tokens, by two threads and by one in turn."""
    import torch
    from fixtures.measuring import target_of

    from specdec.models.decoder import Decoder
    from specdec.records import chain_tree

    target = target_of("causal", "smollm2", dtype="float32", compile=False)
    decoder = Decoder(target.model, "smollm2", 128)
    decoder.start(list(range(5, 70)), 128)
    drafts = {count: (torch.arange(count) + 5, chain_tree(count - 1)) for count in (1, 5)}
    times: dict[str, list[float]] = {}
    until = time.monotonic() + 15
    with torch.inference_mode():
        while time.monotonic() < until:
            for threads in (2, 1):
                torch.set_num_threads(threads)
                for count, draft in drafts.items():
                    for place in range(4):
                        decoder.length = 64
                        began = time.perf_counter()
                        decoder.forward(*draft)
                        if place:
                            times.setdefault(f"{threads} {count}", []).append(time.perf_counter() - began)
    out.write_text(json.dumps({key: statistics.quantiles(each, n=4) for key, each in times.items()}))


@pytest.mark.timeout(600)
def test_what_a_call_costs_beside_other_work(tmp_path, log_figure):
    for policy in ("", "PASSIVE"):
        for burners in (0, 1, 2):
            out, log = tmp_path / f"calls{policy}{burners}.json", tmp_path / "bursts.txt"
            with other_work(float(burners > 0), 0, log, range(burners)):
                environment = os.environ | ({"OMP_WAIT_POLICY": policy} if policy else {})
                environment["PYTHONPATH"] = str(Path(__file__).parents[1])
                subprocess.run([sys.executable, __file__, str(out)], check=True, env=environment)
            for key, (low, median, high) in json.loads(out.read_text()).items():
                threads, count = map(int, key.split())
                log_figure(
                    what=f"t({count})", model="SmolLM2-135M", waiting=policy.lower() or "spinning",
                    burners=burners, threads=threads,
                    ms=round(1e3 * median, 1), quartiles_ms=[round(1e3 * low, 1), round(1e3 * high, 1)],
                    **load(),
                )  # fmt: skip


if __name__ == "__main__":
    calls(Path(sys.argv[1]))
