"""The watch of a process reads the time that others take, from kernel files written by hand and from a real burner."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from specdec.clock import SimulatedClock
from specdec.disturbance import ProcessWatch, Watch, affinity, disturbed, gpu_watch
from specdec.errors import EnvironmentFault

MS = 1_000_000  # nanoseconds


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write the kernel's files: nanoseconds that threads ran and waited, ticks that were stolen of each processor."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr("specdec.disturbance.affinity", lambda: {0, 2})
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)

    def write(after=0.0, stolen=(0, 0, 0), **threads):
        now[0] += after
        for name, (ran, waited) in threads.items():
            (tmp_path / "self/task" / name[1:]).mkdir(parents=True, exist_ok=True)
            (tmp_path / "self/task" / name[1:] / "schedstat").write_text(f"{ran} {waited} 7\n")
        lines = [f"cpu  {' 0' * 7} {sum(stolen)} 0 0"]
        lines += [f"cpu{number} 9 9 9 9 9 9 9 {ticks} 0 0" for number, ticks in enumerate(stolen)]
        (tmp_path / "stat").write_text("\n".join([*lines, "intr 5"]) + "\n")

    return tmp_path, write


def test_waiting_is_that_of_all_threads_that_compute_and_of_no_other(machine):
    proc, write = machine
    write(t1=(900 * MS, 5 * MS), t2=(900 * MS, 0), t3=(1 * MS, 0))
    watch = ProcessWatch(proc=proc)
    assert not watch.blind
    write(1.1, t1=(1700 * MS, 5 * MS), t2=(1700 * MS, 0), t3=(1 * MS, 0))
    before = watch.read()  # lists the threads again: the third has done nothing since
    write(0.05, t1=(1700 * MS, 35 * MS), t2=(1700 * MS, 12 * MS), t3=(1 * MS, 40 * MS))
    assert watch.waited(before, watch.read()) == pytest.approx(0.042)
    before = watch.read()
    write(1.1, t1=(2700 * MS, 65 * MS), t2=(1700 * MS, 1000 * MS), t4=(900 * MS, 100 * MS))
    after = watch.read()  # the new thread counts from here on, and a starved one goes on to count
    assert watch.waited(before, after) == pytest.approx(0.03 + 0.988)
    write(0.05, t1=(2700 * MS, 65 * MS), t2=(1700 * MS, 1001 * MS), t4=(900 * MS, 102 * MS))
    assert watch.waited(after, watch.read()) == pytest.approx(0.003)


def test_steal_is_that_of_all_own_processors_spread_over_the_time_between_two_readings(machine):
    proc, write = machine
    write(t1=(MS, 0), stolen=(10, 10, 10))
    watch = ProcessWatch(proc=proc)
    first = watch.read()
    write(0.06, t1=(MS, 0), stolen=(10, 99, 10))
    second = watch.read()  # too soon to look
    write(0.14, t1=(MS, 0), stolen=(14, 999, 20))
    third = watch.read()
    ticks = (4 + 10) / os.sysconf("SC_CLK_TCK")
    assert watch.waited(first, second) == pytest.approx(0.3 * ticks)
    assert watch.waited(second, third) == pytest.approx(0.7 * ticks)


def test_a_gpu_that_is_held_back_disturbs_all_of_the_time_between_two_readings(machine):
    proc, write = machine
    write(t1=(MS, 0))
    held = [False]
    watch = ProcessWatch(lambda: held[0], proc=proc)
    first = watch.read()
    held[0] = True
    write(0.2)
    second = watch.read()
    held[0] = False
    write(0.2)
    assert watch.waited(first, second) == pytest.approx(0.2)
    assert watch.waited(second, watch.read()) == 0.0


@pytest.mark.parametrize(
    ("reasons", "pids", "used", "held"),
    [(4, (1,), (), False), (0x40, (1,), (), True), (0, (1, 8), ((8, 60),), True), (0, (1, 8), ((8, 2),), False),
     (0, (8,), ((8, 60),), False)],
)  # fmt: skip
def test_nvml_tells_of_heat_and_of_others_but_not_of_ones_own_power_cap(monkeypatch, reasons, pids, used, held):
    own = {1: os.getpid()}
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlClocksThrottleReasonHwSlowdown=0x8,
        nvmlClocksThrottleReasonSwThermalSlowdown=0x20,
        nvmlClocksThrottleReasonHwThermalSlowdown=0x40,
        nvmlClocksThrottleReasonHwPowerBrakeSlowdown=0x80,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: reasons,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=own.get(pid, pid)) for pid in pids],
        nvmlDeviceGetProcessUtilization=lambda handle, since: [
            SimpleNamespace(pid=own.get(pid, pid), smUtil=share, timeStamp=since + 1) for pid, share in used
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    watch = gpu_watch("GPU-1")
    assert watch is not None and watch() is held


def test_a_machine_that_shows_nothing_is_said_and_switches_stand_in(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    switches = [10]
    monkeypatch.setattr("resource.getrusage", lambda who: SimpleNamespace(ru_nivcsw=switches[0]))
    watch = ProcessWatch(proc=tmp_path)
    assert watch.blind.startswith("This machine does not show how long threads wait") and "steals" in watch.blind
    monkeypatch.setattr("specdec.disturbance._APART_S", 0.0)
    before = watch.read()
    switches[0] = 13
    assert watch.waited(before, watch.read()) == pytest.approx(0.003)
    monkeypatch.setattr("torch.get_num_threads", lambda: 9_999)
    assert ProcessWatch(proc=tmp_path).blind.startswith("9999 threads compute on")


def test_rounds_shorter_than_two_readings_share_what_was_lost_between_them(machine):
    proc, write = machine
    write(t1=(MS, 0))
    watch = ProcessWatch(proc=proc)
    times = [watch.read()]
    for waited in (0.0, 0.3, 0.3, 0.3, 0.9):  # the third of these is the first that is read
        write(0.006, t1=(MS, int(waited * MS)))
        times.append(watch.read())
    lost = [watch.waited(*pair) for pair in pairwise(times)]
    assert lost == pytest.approx([0.0001, 0.0001, 0.0001, 0.0003, 0.0003])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_burner_on_the_same_processor_is_noticed():
    mine = affinity()
    os.sched_setaffinity(0, {min(mine)})
    watch = ProcessWatch()
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before, begin, spent = watch.read(), time.perf_counter(), time.thread_time()
        while time.thread_time() - spent < 0.2:
            pass
        seconds, waited = time.perf_counter() - begin, watch.waited(before, watch.read())
    finally:
        burner.kill()
        burner.wait()
        os.sched_setaffinity(0, mine)
    assert disturbed(waited, seconds) and waited == pytest.approx(seconds - 0.2, rel=0.3)


def test_simulated_time_is_never_disturbed():
    watch = SimulatedClock().watch
    assert type(watch) is Watch and watch.waited(watch.read(), 1.0) == 0.0


class Neighbour(Watch):
    """Takes these shares of the processors, one look after the other."""

    def __init__(self, *shares):
        self.shares = list(shares)

    def others(self, seconds):
        return self.shares.pop(0)


def test_a_quiet_machine_is_waited_for_and_not_for_ever(monkeypatch, capsys):
    for calm in (Neighbour(None), Neighbour(0.04)):
        calm.await_quiet()
    assert not capsys.readouterr().out
    Neighbour(0.9, 0.5, 0.3, 0.01).await_quiet()
    said = " ".join(capsys.readouterr().out.split())
    assert "Wait for a quiet machine: other work takes 90% of its processors" in said
    monkeypatch.setattr("specdec.disturbance._AWAITED_S", -1.0)
    with pytest.raises(EnvironmentFault, match=r"Other work took 50% of the processors .* measurement\.quiet=report\."):
        Neighbour(0.9, 0.5).await_quiet()


def test_others_are_all_that_is_busy_on_own_processors_but_this_process(machine, monkeypatch):
    proc, write = machine
    write(t1=(MS, 0), stolen=(0, 0, 0))
    watch = ProcessWatch(proc=proc)
    monkeypatch.setattr(time, "process_time", iter((5.0, 5.5)).__next__)
    monkeypatch.setattr(time, "sleep", lambda seconds: write(seconds, t1=(MS, 0), stolen=(90, 900, 30)))
    assert watch.others(1.0) == pytest.approx((0.9 + 0.3 - 0.5) / 2)
    assert ProcessWatch(proc=proc / "none").others(1.0) is None
