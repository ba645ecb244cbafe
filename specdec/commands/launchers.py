"""Launchers that start cells in other processes: a cell whose process dies costs a sweep that cell, and no other.
joblib's pool dies with its first worker, and submitit and ray report the first dead cell while others still run: here
lost cells are launched again, or each is waited for on its own. Knows Hydra; nothing of decoding.
"""

import json
import logging
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from specdec.errors import Interrupted, UsageError
from specdec.text.writing import write_json
from specdec.tracking.store import process_runs, this_process

logger = logging.getLogger(__name__)

OUTCOME = "cell.json"
PROCESS = "process.json"
GPUS = "SPECDEC_GPUS"  # environment variable: the GPUs that cells on one machine share out, one each: 0:1:2
_PLUGINS = "hydra_plugins.hydra_{}_launcher.{}"
JOBLIB = _PLUGINS.format("joblib", "joblib_launcher.JoblibLauncher")
RAY = _PLUGINS.format("ray", "ray_launcher.RayLauncher")
SUBMITIT = tuple(_PLUGINS.format("submitit", f"submitit_launcher.{kind}Launcher") for kind in ("Local", "Slurm"))
STOP_SECONDS = 60.0  # for the cells of an interrupted sweep to write their partial results
ALL_AT_ONCE = 256  # cells that wait for a cluster at one time, where the launcher has no setting for it
Launch = Callable[[Any, Sequence[Sequence[str]], int], Sequence[Any]]
_originals: dict[str, Any] = {}  # each plugin's own `launch`
_claimed: list[Any] = []  # the lock of this process's GPU, kept as long as the process lives


def prepare_launcher(target: str, folder: Path) -> None:
    """Make a launcher, by its class (`hydra.launcher._target_`), survive a dead cell of the sweep in a folder: Hydra
    takes launchers from its plugins' modules alone, so the class gets another `launch`.
    """
    launcher = Plugins.instance().class_name_to_class.get(target)
    wrap = _again if target == JOBLIB else _apart if target in (RAY, *SUBMITIT) else None
    if launcher is not None and wrap is not None:
        launch = _originals.setdefault(target, vars(launcher).get("launch") or launcher.launch)
        launcher.launch = wrap(launch, folder)
        logging.getLogger("hydra_plugins").setLevel(logging.WARNING)  # they count each launch from 0


def _again(original: Any, folder: Path) -> Launch:
    """Return a `launch` that starts lost cells again: those that had begun one by one, because one of them may be the
    one that killed its worker, and the others together.
    """

    def launch(self: Any, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        cells = dict(enumerate(job_overrides, initial_job_idx))
        logger.info("Launching %d cells into %s", len(cells), folder)
        try:
            return list(original(self, job_overrides, initial_job_idx))
        except (Interrupted, UsageError):
            raise
        except Exception as error:
            lost = [cell for cell in cells if not (folder / str(cell) / OUTCOME).is_file()]
            if not lost:
                raise
            begun = [cell for cell in lost if (folder / str(cell)).is_dir()]
            logger.warning(
                "A worker died (%s) and took the pool with it: %d of %d cells are launched again.",
                type(error).__name__, len(lost), len(cells),
            )  # fmt: skip
        for cell in begun:
            try:
                original(self, [cells[cell]], cell)
            except (Interrupted, UsageError):
                raise
            except Exception as error:
                logger.warning("Cell %d died alone, too (%s).", cell, type(error).__name__)
        others = enumerate(cell for cell in lost if cell not in begun)
        for _, neighbours in groupby(others, lambda pair: pair[1] - pair[0]):  # launchers number on from the first one
            group = [cell for _, cell in neighbours]
            launch(self, [cells[cell] for cell in group], group[0])
        return []  # results come back through files

    return launch


def _apart(original: Any, folder: Path) -> Launch:
    """Return a `launch` that waits for each cell on its own."""

    def launch(self: Any, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        if hasattr(self, "ray_cfg"):  # the cluster is started or joined once, before several threads would
            import ray

            if not ray.is_initialized():
                settings: Any = OmegaConf.to_container(self.ray_cfg.init, resolve=True)
                ray.init(**settings)
        at_once = int(getattr(self, "params", {}).get("array_parallelism") or ALL_AT_ONCE)
        if getattr(self, "_EXECUTOR", "") == "local":
            at_once = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        places = threading.Semaphore(at_once)
        faults: dict[int, BaseException] = {}

        def start(cell: int, overrides: Sequence[str]) -> None:
            with places:
                try:
                    original(self, [overrides], cell)
                except BaseException as error:
                    faults[cell] = error

        cells = list(enumerate(job_overrides, initial_job_idx))
        logger.info("Launching %d cells into %s", len(cells), folder)
        # As daemons: an interrupted sweep does not wait for a cluster.
        threads = [threading.Thread(target=start, args=cell, daemon=True) for cell in cells]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for cell, fault in sorted(faults.items()):
            if (folder / str(cell)).is_dir():
                logger.warning("Cell %d died: %s.", cell, type(fault).__name__)
            else:  # it never began: the launcher itself is at fault
                raise fault
        return []  # results come back through files

    return launch


def write_process(folder: Path) -> None:
    """Write down which process runs the cell of a folder."""
    write_json(folder / PROCESS, {"specdec.host": socket.gethostname(), "specdec.process": this_process()})


def stop_cells(folder: Path) -> None:
    """Ask the cells of a sweep that still run on this machine to end, and wait until they wrote what they have."""
    own, waiting = this_process(), dict[Path, str]()
    for path in folder.rglob(PROCESS):
        tags = json.loads(path.read_text("utf-8"))
        if tags["specdec.host"] == socket.gethostname() and tags["specdec.process"] != own:
            waiting[path.parent] = tags["specdec.process"]

    def running() -> list[str]:
        return [each for cell, each in waiting.items() if not (cell / OUTCOME).is_file() and process_runs(each)]

    for process in running():
        with suppress(ProcessLookupError):
            os.kill(int(process.partition(":")[0]), signal.SIGTERM)
    limit = time.monotonic() + STOP_SECONDS
    while time.monotonic() < limit and running():
        time.sleep(0.1)


def claim_gpu() -> None:
    """Take one of the GPUs of `SPECDEC_GPUS` for this process alone, while it lives; wait while all are taken."""
    names = [name for name in re.split(r"[,:\s]+", os.environ.get(GPUS, "")) if name]
    if not names or _claimed:  # CUDA reads the variable below once: a worker keeps its GPU
        return
    user = os.getuid() if hasattr(os, "getuid") else 0
    while True:
        for name in names:
            lock = FileLock(Path(tempfile.gettempdir()) / f"specdec-{user}-gpu-{name}.lock", timeout=0)
            try:
                lock.acquire()
            except Timeout:
                continue
            _claimed.append(lock)
            os.environ["CUDA_VISIBLE_DEVICES"] = name
            return
        time.sleep(0.5)
