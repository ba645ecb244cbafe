"""Runs beside a process that computes on one processor now and then: what they say of it, by the clock and repaired,
and what a call costs by threads and by their way of waiting. Two processors or more.

The other work comes in bursts of two seconds in the mean that fill 0 to 60% of the time. The share that it really took
is that of the time in which prompts were decoded; runs say the share of their own that was disturbed. On one thread
less than there are processors a run leaves the other work a processor of its own, and nothing is disturbed.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixtures.measuring import load

from specdec.analysis.busy_machine import BusyMachine
from specdec.analysis.read.runs import open_folder

pytestmark = pytest.mark.benchmark
BURST_S, SEEDS = 2.0, (0, 1, 2)
POCKET = ("+drafter=ngram", "measurement.drafters=[suffix]", "measurement.gammas=[]", "prompts.limit=6")
REAL = ("+drafter=ngram", "target=smollm2", "measurement.gammas=[]", "prompts.limit=5", "measurement.max_new_tokens=32")
COMMON = ("tracking.enabled=false", "measurement.cost_contexts=[]", "measurement.traced=0")
RUNS = [
    *(("pocket", POCKET, level, threads) for level in (0.0, 0.2, 0.4, 0.6) for threads in (2, None)),
    *(("SmolLM2-135M", REAL, level, 2) for level in (0.0, 0.2)),
]


@contextmanager
def other_work(share: float, seed: int, log: Path, processors: Sequence[int] = (0,)) -> Iterator[None]:
    """Compute on each of some processors for this share of the time, and write down when."""
    burners = [
        subprocess.Popen([sys.executable, __file__, "burn", str(share), str(seed), str(log), str(processor)])
        for processor in processors
        if share
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def burn(share: float, seed: int, log: Path, processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    dice, idle = random.Random(seed), BURST_S * (1 - share) / share
    with log.open("a") as lines:
        while True:
            if idle:
                time.sleep(dice.expovariate(1 / idle))
            begin = time.monotonic()
            end = begin + (dice.expovariate(1 / BURST_S) if idle else BURST_S)
            print(begin, end, file=lines, flush=True)
            while time.monotonic() < end:
                pass


def decode(windows: Path, arguments: Sequence[str]) -> None:
    """Run specdec.run and write down when it decoded prompts."""
    from specdec import run
    from specdec.session.session import Session

    whole, found = Session.run_prompt, []

    def timed(*given: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return whole(*given, **named)
        finally:
            found.append((began, time.monotonic()))

    Session.run_prompt = timed  # type: ignore[method-assign]
    sys.argv = ["specdec.run", *arguments]
    try:
        run.main()
    finally:
        windows.write_text(json.dumps(found))


def taken(windows: Path, log: Path) -> float:
    """Return the share of the windows in which the other work computed."""
    decoded = json.loads(windows.read_text())
    bursts = [tuple(map(float, line.split())) for line in log.read_text().splitlines()] if log.is_file() else []
    both = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in decoded for first, last in bursts)
    return both / sum(end - begin for begin, end in decoded)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("model", "command", "level", "threads"), RUNS)
def test_what_a_run_says_beside_other_work(model, command, level, threads, seed, tmp_path, log_figure):
    windows, log = tmp_path / "windows.json", tmp_path / "bursts.txt"
    own = [f"measurement.threads={threads or 'null'}", f"seed={seed}", f"hydra.run.dir={tmp_path / 'run'}"]
    with other_work(level, seed, log):
        subprocess.run(
            [sys.executable, __file__, "decode", str(windows), *command, *COMMON, *own],
            check=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
    run = open_folder(tmp_path / "run")
    metrics, busy = run.metrics, BusyMachine.of(run.arms())
    really = taken(windows, log)
    for name in ("", *run.beside):
        of = f"drafter/{name}/" if name else ""
        speedup = metrics[f"{of}speedup"]
        log_figure(
            what="a run", model=model, level=level, seed=seed,
            threads_asked=threads, threads=run.calibration()["threads"]["threads"], drafter=name or "ngram",
            taken=round(really, 3), said=round(busy.share, 3), verdict=not busy.doubt,
            speedup=[round(metrics.get(f"{of}speedup{end}", float("nan")), 3) for end in ("", ".ci_low", ".ci_high")],
            by_clock=round(speedup * metrics.get(f"{of}account/machine", 1.0), 3),
            **load(),
        )  # fmt: skip
    assert threads is None or abs(busy.share - really) < 0.15


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
                subprocess.run([sys.executable, __file__, "calls", str(out)], check=True, env=environment)
            for key, (low, median, high) in json.loads(out.read_text()).items():
                threads, count = map(int, key.split())
                log_figure(
                    what=f"t({count})", model="SmolLM2-135M", waiting=policy.lower() or "spinning",
                    burners=burners, threads=threads,
                    ms=round(1e3 * median, 1), quartiles_ms=[round(1e3 * low, 1), round(1e3 * high, 1)],
                    **load(),
                )  # fmt: skip


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "burn":
        burn(float(rest[0]), int(rest[1]), Path(rest[2]), int(rest[3]))
    elif kind == "decode":
        decode(Path(rest[0]), rest[1:])
    else:
        calls(Path(rest[0]))
