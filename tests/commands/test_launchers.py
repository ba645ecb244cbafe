"""Sweeps in other processes: of two cells one kills its process; the other finishes, and the table has both."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec.commands import launchers
from specdec.signals import interruptible
from specdec.tracking.store import locate, opened

# A command of its own, because workers have to load the task: a cell says who ran it, and the first one dies.
CELLS = """
import os, signal
from pathlib import Path
from specdec.commands import cli
from specdec.config import TrackingConfig, validated
from specdec.tracking.writer import tracked_run

def task(values):
    gamma = values["structure"]["gamma"]
    if gamma == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    settings = validated(TrackingConfig, values["tracking"])
    with tracked_run(settings, name=f"g{gamma}", params={}, tags={}, results=cli.output_dir()) as run:
        run.metrics({"speedup": 1 + gamma / 10})
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    (cli.output_dir() / "who").write_text(f"{gpu} {Path.cwd()}")
    return {"speedup": 1 + gamma / 10}

if __name__ == "__main__":
    cli.main("config", task)
"""
SWEEP = ("+drafter=ngram", "structure.gamma=2,1", "hydra.sweep.dir=swept")


def launched(folder: Path, *arguments: str, gpus: Sequence[str] = ("",)) -> Path:
    """Sweep in `folder`, check what a dead cell leaves and that the other took one of `gpus`, and return the sweep's
    folder.
    """
    (folder / "cells.py").write_text(CELLS)
    command = [sys.executable, "cells.py", "-m", *SWEEP, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.endswith("specdec: 1 of 2 cells failed; the table says why.\n"), ended.stderr
    sweep = folder / "swept"
    table = (sweep / "sweep.csv").read_text().splitlines()[1:]
    assert [line.partition(",")[0] for line in table] == ["0", "1"]
    assert [line.split(",", 2)[2] for line in table] == [",,1,The cell's process died.", "1.100,,0,"]
    assert "The cell's process died." in (sweep / "sweep.md").read_text()
    gpu, place = (sweep / "1" / "who").read_text().split(" ")
    assert place == str(folder), "relative paths mean the same in every worker"
    assert gpu in gpus
    return sweep


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[sweep,ray]'")


@pytest.mark.slow
def test_joblib_loses_the_dead_cell_alone(tmp_path, made_database):
    """Its pool dies with the worker: the cell that was lost runs again, with its tracking below the same parent, and
    its worker takes a GPU.
    """
    needs("hydra_plugins.hydra_joblib_launcher")
    share = "+hydra.job.env_set.SPECDEC_GPUS=0:1"
    sweep = launched(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", share, gpus=("0", "1"))
    parent, below = (json.loads((folder / "mirror.json").read_text()).popitem()[1] for folder in (sweep, sweep / "1"))
    client, _ = opened(locate(None, tmp_path), "specdec")
    assert below["complete"]
    assert client.get_run(below["run_id"]).data.tags["mlflow.parentRunId"] == parent["run_id"]


@pytest.mark.slow
def test_submitit_waits_for_the_other(tmp_path):
    needs("hydra_plugins.hydra_submitit_launcher")
    launched(tmp_path, "hydra/launcher=submitit_local", "tracking.enabled=false")


@pytest.mark.slow
def test_ray_spreads_cells_over_the_nodes_of_a_cluster(tmp_path, monkeypatch):
    needs("hydra_plugins.hydra_ray_launcher")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 80 * 2**20}
    cluster = Cluster()
    try:
        try:
            cluster.add_node(num_cpus=1, include_dashboard=False, **store)
            cluster.add_node(num_cpus=1, **store)
        except Exception as error:  # ray waits 30 s for a node, which a busy machine may not keep
            pytest.skip(f"no local ray cluster: {error}")
        address = f"hydra.launcher.ray.init.address={cluster.address}"
        launched(tmp_path, "hydra/launcher=ray_cluster", address, "tracking.enabled=false")
    finally:
        cluster.shutdown()


def test_cells_that_were_lost_before_they_began_are_launched_again_in_neighbouring_groups(tmp_path):
    launched: list[tuple[int, int]] = []

    def launch(_: object, overrides: list[list[str]], first: int) -> list[object]:
        launched.append((first, len(overrides)))
        if len(launched) == 1:
            for cell in (0, 1, 4, 8):
                (tmp_path / str(cell)).mkdir()
                (tmp_path / str(cell) / launchers.OUTCOME).touch()
            raise OSError("the pool died")
        return []

    launchers._again(launch, tmp_path)(None, [[]] * 10, 0)
    assert launched == [(0, 10), (2, 2), (5, 3), (9, 1)]


def test_two_processes_take_two_gpus_and_a_third_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv(launchers.GPUS, "4,7")
    monkeypatch.setattr(launchers.time, "sleep", lambda seconds: os._exit(66))  # it would wait

    def claimed() -> tuple[int, bytes, int]:
        """Claim a GPU in a child; return the child, the GPU that it got, and the pipe that ends it. The answer is
        awaited here: children that claim at the same time get theirs in any order.
        """
        answer, said = os.pipe()
        hold, release = os.pipe()
        child = os.fork()
        if not child:
            os.close(release)
            launchers.claim_gpu()
            os.write(said, os.environ["CUDA_VISIBLE_DEVICES"].encode())
            os.read(hold, 1)
            os._exit(0)
        os.close(said), os.close(hold)
        return child, os.read(answer, 9), release

    children = [claimed() for _ in range(2)]
    assert [gpu for _, gpu, _ in children] == [b"4", b"7"]
    third, gpu, release = claimed()
    assert gpu == b"" and os.waitstatus_to_exitcode(os.waitpid(third, 0)[1]) == 66
    for child, _, release in children:
        os.write(release, b"x")
        os.waitpid(child, 0)
    child, gpu, release = claimed()  # a process that ended gave its GPU back
    assert gpu == b"4"
    os.write(release, b"x")
    os.waitpid(child, 0)


def test_an_interrupted_sweep_asks_its_running_cells_to_end(tmp_path):
    """The cell gets SIGTERM and writes its outcome before the sweep's table is made."""
    ready, said = os.pipe()
    child = os.fork()
    if not child:
        try:
            with interruptible():
                (tmp_path / "3").mkdir()
                launchers.write_process(tmp_path / "3")
                os.write(said, b"x")
                signal.sigtimedwait([], 60)
        finally:
            (tmp_path / "3" / launchers.OUTCOME).write_text("{}")
            os._exit(0)
    os.read(ready, 1)
    launchers.stop_cells(tmp_path)
    assert (tmp_path / "3" / launchers.OUTCOME).is_file()
    os.waitpid(child, 0)
