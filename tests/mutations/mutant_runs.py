"""Runs tests against copies of the source tree in which a bug was planted; the tree itself is never written to.

One process imports the heavy packages, but nothing of specdec, and is forked once for each bug: an import of torch and
its company takes longer than most of the tests.
"""

import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import pytest

from mutations.patch_files import PatchError, PlantedBug

SOURCES = ("specdec", "analysis", "conf", "tests", "notebooks", "pyproject.toml", "README.md")
HEAVY = (
    "torch",
    "torch.fx.experimental.symbolic_shapes",
    "transformers",
    "transformers.cache_utils",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "pandas",
    "scipy.optimize",
    "scipy.stats",
    "matplotlib.pyplot",
    "mlflow",
    "hydra",
    "pydantic",
    "safetensors.torch",
    "hypothesis",
    "jinja2",
    "sqlite3",
)
PLUGINS = ("xdist.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
"""The plugins that the options in pyproject.toml need; no other plugin of pytest is loaded."""

Status = Literal["killed", "survived", "broken", "hung", "skipped"]

_NO_VERDICT = (ImportError, SyntaxError, NameError)
"""Errors that a patch makes which does not run at all; a test that fails of them has noticed nothing."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one bug.

    Attributes:
        name: of the bug.
        status: "killed" where a test failed by an assertion or an error raised in it; "broken" where the patch does not
            apply or run, or its tests cannot be collected; "skipped" where all of them need what this machine lacks, as
            arithmetic in bfloat16.
        reason: the test that failed and how, or what is wrong with the patch.
        seconds: processor time.
    """

    name: str
    status: Status
    reason: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.status in ("killed", "skipped")


def preload() -> None:
    """Import the heavy packages once, for all children; on one thread each, because several run at once."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in (*HEAVY, *PLUGINS):
        importlib.import_module(name)
    # No child collects what all share: pytest ends with several collections of everything, which take a second.
    gc.collect()
    gc.freeze()


def verdicts(bugs: Sequence[PlantedBug], root: Path, scratch: Path, *, at_once: int, limit: float) -> Iterator[Verdict]:
    """Yield the verdict of each bug as it is known.

    Args:
        root: the source tree.
        scratch: an empty folder on a disk, for the copies.
        at_once: children at one time.
        limit: seconds after which a child is ended and its bug called "hung".
    """
    tree = scratch / "tree"
    tree.mkdir()
    for source in (root / name for name in SOURCES):
        if source.is_dir():
            shutil.copytree(source, tree / source.name, symlinks=True)
        elif source.is_file():
            shutil.copy2(source, tree / source.name)
    for part in ("analysis", "conf"):  # as once installed, so that nothing of an installation is used
        if (tree / part).is_dir() and (tree / "specdec").is_dir():
            (tree / "specdec" / part).symlink_to(Path("..") / part)
    context, waiting = multiprocessing.get_context("fork"), list(bugs)
    running: dict[Connection, tuple[BaseProcess, PlantedBug, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                bug = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(bug, scratch, theirs))
                process.start()
                theirs.close()
                running[ours] = process, bug, time.monotonic() + limit
            first = min(until for *_, until in running.values())
            ready = wait(list(running), timeout=max(0.0, first - time.monotonic()))
            for connection in [each for each in running if each in ready or running[each][2] <= time.monotonic()]:
                process, bug, _ = running.pop(connection)
                status: Status = "broken" if connection in ready else "hung"
                verdict = Verdict(
                    bug.name, status, f"its tests ended the process, or did not end: {_log(bug, scratch)}"
                )
                if connection in ready:
                    with suppress(EOFError):
                        verdict = connection.recv()
                _end(process)
                yield verdict
                shutil.rmtree(_folder(bug, scratch), ignore_errors=True)
    finally:
        for process, *_ in running.values():
            _end(process)


def _folder(bug: PlantedBug, scratch: Path) -> Path:
    return scratch / bug.name.replace("/", "-")


def _log(bug: PlantedBug, scratch: Path) -> str:
    """Return the last lines that the tests of a bug have written."""
    log = _folder(bug, scratch) / "log"
    return (
        " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-6:]) if log.exists() else ""
    )


def _end(process: BaseProcess) -> None:
    """End a child, and whatever it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _child(bug: PlantedBug, scratch: Path, connection: Connection) -> None:
    """Run the tests of a bug in a copy of the tree and send the verdict. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        _folder(bug, scratch).mkdir()
        log = os.open(_folder(bug, scratch) / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        connection.send(_verdict(bug, scratch))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        connection.close()
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing that the parent would do at its own end: its threads and handlers are not ours.
        os._exit(status)


def _verdict(bug: PlantedBug, scratch: Path) -> Verdict:
    began, folder = sum(os.times()[:4]), _folder(bug, scratch)  # of this process and those that it waited for
    tree = folder / "tree"
    shutil.copytree(scratch / "tree", tree, symlinks=True, copy_function=os.link)
    try:
        bug.plant(tree)
    except PatchError as error:
        return Verdict(bug.name, "broken", str(error))
    for path in map(Path, bug.files()):
        for compiled in (tree / path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
    ended = _run_tests(bug, tree, folder)
    called = {name for test in ended.called for name in (test, test.split("[")[0])}  # with and without parameters
    silent = [test for test in bug.killed_by if test not in called]
    if ended.failed:
        status, reason = "killed", ended.failed[0]
    elif ended.errors or silent:
        status, reason = "broken", (ended.errors or [f"{silent[0]} was not run: {_log(bug, scratch)}"])[0]
    elif ended.skipped and not ended.passed:
        status, reason = "skipped", f"{ended.skipped[0]} is skipped on this machine"
    else:
        status, reason = "survived", bug.bug
    return Verdict(bug.name, status, reason, sum(os.times()[:4]) - began)


class _Ended:
    """A pytest plugin that keeps how each test ended, and stops at the first that fails in its own body."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.passed: list[str] = []
        self.skipped: list[str] = []
        self.failed: list[str] = []
        self.errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.called.append(report.nodeid)
        if report.skipped:
            self.skipped.append(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_exception_interact(
        self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> None:
        assert call.excinfo is not None
        said = f"{report.nodeid}: {call.excinfo.exconly(tryshort=True)}".split("\n")[0]
        if call.when == "call" and not call.excinfo.errisinstance(_NO_VERDICT):
            self.failed.append(said)
            node.session.shouldstop = "noticed"
        else:
            self.errors.append(f"{said} (in {call.when})")


def _run_tests(bug: PlantedBug, tree: Path, folder: Path) -> _Ended:
    os.chdir(tree)
    # First on the path, here and in commands that tests start: before an editable installation, whose finder is asked
    # last.
    sys.path[:] = [str(tree), *(entry for entry in sys.path if not entry.endswith("tests"))]
    os.environ["PYTHONPATH"] = str(tree)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["SPECDEC_CACHE"] = str(folder / "cache")  # what a bug has computed and kept reaches no other bug's tests
    ended = _Ended()
    plugins = [f"-p{name}" for name in (*PLUGINS, "no:cacheprovider")]
    options = ["-q", "-n0", "-mslow or not slow", "-Wignore::pytest.PytestAssertRewriteWarning", f"--rootdir={tree}"]
    options += [*plugins, f"--basetemp={folder / 'files'}"]
    pytest.main([*options, *bug.killed_by], plugins=[ended])
    used = getattr(sys.modules.get("specdec"), "__file__", None)
    if used is not None and not Path(used).is_relative_to(tree):
        raise RuntimeError(f"the tests ran against {used} and not against the copy in {tree}")
    return ended
