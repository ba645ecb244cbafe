"""Runs beside a process that computes on one processor now and then: what they say of it, by the clock and repaired.
Two processors or more; about 40 minutes.

The other work comes in bursts of two seconds in the mean that fill 0 to 60% of the time. The share that it really took
is that of the time of a drafter's rounds and of those it is compared with; runs say the share of it that was disturbed.
On one thread less than there are processors a run leaves the other work a processor of its own, and nothing is
disturbed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.measuring import load
from fixtures.other_work import other_work

from specdec.analysis.busy_machine import BusyMachine
from specdec.analysis.read.runs import open_folder

pytestmark = pytest.mark.benchmark
SEEDS = (0, 1, 2)
POCKET = ("+drafter=ngram", "measurement.drafters=[suffix]", "measurement.gammas=[]", "prompts.limit=8")
REAL = ("+drafter=ngram", "target=smollm2", "measurement.gammas=[]", "prompts.limit=5", "measurement.max_new_tokens=32")
COMMON = ("tracking.enabled=false", "measurement.cost_contexts=[]", "measurement.sampled_temperature=null")
RUNS = [
    *(("pocket", POCKET, level, threads) for level in (0.0, 0.2, 0.4, 0.6) for threads in (2, None)),
    *(("SmolLM2-135M", REAL, level, 2) for level in (0.0, 0.2)),
]


def decode(windows: Path, arguments: Sequence[str]) -> None:
    """Run specdec.run and write down the method, the begin and the end of every round in its tables."""
    from specdec import run
    from specdec.session.session import Session

    written, found = Session._lines, []

    def noted(self: Any, prompt: Any, repeat: int, done: dict[int, Any]) -> Any:
        for arm in (*self.parts.plain, *self.parts.speculative):
            rounds = done[id(arm)].rounds if id(arm) in done else ()
            found.extend((arm.method, each.marks.start, each.marks.committed) for each in rounds)
        return written(self, prompt, repeat, done)

    Session._lines = noted  # type: ignore[method-assign]
    sys.argv = ["specdec.run", *arguments]
    try:
        run.main()
    finally:
        windows.write_text(json.dumps(found))


def taken(windows: Path, log: Path, methods: Collection[str]) -> float:
    """Return the share of the time of some methods' rounds in which the other work computed."""
    # The clock of rounds, CpuClock, is the monotonic one of Linux.
    decoded = [(begin, end) for method, begin, end in json.loads(windows.read_text()) if method in methods]
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
            [sys.executable, __file__, str(windows), *command, *COMMON, *own],
            check=True, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
    for run in open_folder(tmp_path / "run").drafters:
        metrics, arms = run.metrics, run.arms()
        busy, really = BusyMachine.of(arms), taken(windows, log, {method for method, _ in arms})
        log_figure(
            what="a run", model=model, level=level, seed=seed, threads_asked=threads,
            threads=run.calibration()["threads"]["threads"], drafter=run.method or "ngram",
            taken=round(really, 3), said=round(busy.share, 3), verdict=not busy.doubt,
            speedup=[round(metrics.get(f"speedup{end}", float("nan")), 3) for end in ("", ".ci_low", ".ci_high")],
            by_clock=round(metrics["speedup"] * metrics.get("account/machine", 1.0), 3),
            **load(),
        )  # fmt: skip
        assert threads is None or abs(busy.share - really) < 0.15


if __name__ == "__main__":
    decode(Path(sys.argv[1]), sys.argv[2:])
