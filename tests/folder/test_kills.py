"""Kills without warning, at random moments: no round is lost, none stands twice, and the tables are those of a
run that nothing disturbed. The runs are children of one process, which has imported everything, and nothing else: a
child of a process that has run hundreds of tests copies so much memory that it is killed before it decodes anything.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from fixtures.resumed_runs import config_of, decode, found

from specdec.analysis.read.facts import RunStatus
from specdec.folder import results

KILLS = 25
RUN = ("+drafter=ngram", "measurement.repeats=2", "measurement.gammas=[1]", "measurement.max_new_tokens=6")


def child(config, folder) -> int:
    """Start a process that decodes what is left of the run; return its number."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            results._KEPT_S = -1.0
            decode(config, folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return number


def killed_after(number: int, seconds: float) -> bool:
    """Kill a child after some seconds; return False if it finished before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            assert status == 0, "the run failed by itself"
            return False
        time.sleep(0.001)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return True


def kill_again_and_again(place: Path) -> None:
    """Kill runs until there were so many kills, and compare each that ended with one that nothing disturbed."""
    # A child of a process with threads of its own would wait for them for ever.
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    config = config_of(*RUN)
    decode(config, place / "first")  # what the first run makes once, such as caches, is no part of a run's time
    began = time.monotonic()
    _, status = os.waitpid(child(config, place / "whole"), 0)
    assert status == 0, "the run that nothing disturbed failed"
    whole_s = time.monotonic() - began
    whole = found(place / "whole")
    dice = random.Random(15)
    kills = runs = 0
    while kills < KILLS:
        folder = place / f"killed-{runs}"
        window_s = whole_s / 2
        while killed_after(child(config, folder), dice.uniform(0, window_s)):
            kills += 1
            # A machine that has become slower since would kill every child before its first step.
            window_s *= 1.1
            standing = RunStatus.read(folder)
            if standing is not None and standing.status == "finished":
                break  # killed behind its last step
        after = found(folder)
        differ = [name for name in whole if after.get(name) != whole[name]]
        assert not differ, f"run {runs} differs in {differ}"
        runs += 1


@pytest.mark.slow
def test_kills_lose_and_double_nothing():
    tests = str(Path(__file__).resolve().parent.parent)
    answer = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": tests}, timeout=580
    )
    assert answer.returncode == 0, answer.stderr[-3000:]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        kill_again_and_again(Path(folder))
