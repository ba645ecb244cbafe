"""Fifty kills without warning, at random moments: no round is lost, none stands twice, and the tables are those of a
run that nothing disturbed. The runs are children of this process, which has imported everything.
"""

import os
import random
import signal
import time
import traceback

import pyarrow as pa
import pytest
from fixtures.resumed_runs import config_of, decode, found

from specdec.analysis.read.facts import RunStatus
from specdec.experiment import results

KILLS = 50
RUN = ("+drafter=ngram", "measurement.repeats=4", "measurement.gammas=[1,2]", "measurement.max_new_tokens=12")
GRACE_S = 900.0  # generous: other work may keep the machine busy
LONGEST_S = 4.0  # of a run: one that other work held up says nothing about when the next is at work


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """A child of a process with threads of its own would wait for them for ever."""
    before = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    yield
    pa.set_cpu_count(before[0])


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


@pytest.mark.slow
def test_fifty_kills_lose_and_double_nothing(tmp_path):
    config = config_of(*RUN)
    began = time.monotonic()
    decode(config, tmp_path / "whole")
    whole_s = min(time.monotonic() - began, LONGEST_S)
    whole = found(tmp_path / "whole")
    dice = random.Random(15)
    kills = runs = 0
    while kills < KILLS:
        folder = tmp_path / f"killed-{runs}"
        while killed_after(child(config, folder), dice.uniform(0, whole_s / 2)):
            kills += 1
            assert time.monotonic() - began < GRACE_S, f"{kills} kills in {GRACE_S} s"
            standing = RunStatus.read(folder)
            if standing is not None and standing.status == "finished":
                break  # killed behind its last step
        assert found(folder) == whole
        runs += 1
