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
Status = Literal["killed", "survived", "broken", "hung", "skipped", "unpatched"]
_NO_VERDICT = (ImportError, SyntaxError, NameError)
"""Errors that a patch makes which does not run at all; a test that fails of them has noticed nothing."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one bug, or of the named tests without any.

    Attributes:
        name: of the bug; "unpatched" and a file for tests without one.
        status: "killed" where a test failed by an assertion or an error raised in it; "broken" where the patch does not
            apply or run, or its tests cannot be collected, or fail without it; "skipped" where all of them need what
            this machine lacks, as arithmetic in bfloat16; "unpatched" where tests pass without.
        reason: the test that failed and how, or what is wrong with the patch.
        seconds: processor time.
    """

    name: str
    status: Status
    reason: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.status in ("killed", "skipped", "unpatched")


@dataclass(frozen=True)
class _Ran:
    """Tests that ended in a child: ids that passed, were skipped, failed in their own body, or otherwise; and the
    processor time that they took, in seconds.
    """

    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    failed: tuple[str, ...]
    errors: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class _Job:
    """Tests to run in a copy of the tree, with a bug or, with None, without."""

    bug: PlantedBug | None
    tests: tuple[str, ...]
    name: str


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


def verdicts(
    bugs: Sequence[PlantedBug], root: Path, scratch: Path, *, at_once: int, unpatched: bool, limit: float
) -> Iterator[Verdict]:
    """Yield the verdict of each bug as it is known, and before those of bugs whether their tests pass without them.

    Args:
        root: the source tree.
        scratch: an empty folder on a disk, for the copies.
        at_once: children at one time.
        unpatched: run each named test once without a bug.
        limit: seconds after which a child is ended and its bug called "hung".
    """
    tree = scratch / "tree"
    _copy_sources(root, tree)
    planted: list[_Job] = []
    for bug in bugs:
        try:
            bug.patched(tree)
        except PatchError as error:
            yield Verdict(bug.name, "broken", str(error))
            continue
        planted.append(_Job(bug, bug.killed_by, bug.name))
    by_file: dict[str, dict[str, None]] = {}
    for test in (test for job in planted if unpatched for test in job.tests):
        by_file.setdefault(test.split("::")[0], {})[test] = None
    jobs = [_Job(None, tuple(tests), file) for file, tests in by_file.items()] + planted
    yield from _run(jobs, scratch, at_once, limit)


def _copy_sources(root: Path, tree: Path) -> None:
    """Copy what tests read. `specdec` gets its parts as once installed, so that nothing of an installation is used."""
    tree.mkdir()
    for name in SOURCES:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True)
        elif source.is_file():
            shutil.copy2(source, tree / name)
    for part in ("analysis", "conf"):
        if (tree / part).is_dir() and (tree / "specdec").is_dir():
            (tree / "specdec" / part).symlink_to(Path("..") / part)


def _planted(tree: Path, copy: Path, bug: PlantedBug | None) -> None:
    """Make `copy`, whose files are those of `tree` but for the patched ones."""
    shutil.copytree(tree, copy, symlinks=True, copy_function=os.link)
    for name, text in bug.patched(tree).items() if bug else ():
        path = copy / name
        path.unlink()
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _run(jobs: Sequence[_Job], scratch: Path, at_once: int, limit: float) -> Iterator[Verdict]:
    context = multiprocessing.get_context("fork")
    waiting = list(enumerate(jobs))
    running: dict[Connection, tuple[BaseProcess, _Job, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, job = waiting.pop(0)
                folder = scratch / f"job{number}"
                folder.mkdir()
                _planted(scratch / "tree", folder / "tree", job.bug)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(job, folder, theirs))
                began = time.monotonic()
                process.start()
                theirs.close()
                running[ours] = process, job, folder, began
            oldest = min(began for *_, began in running.values())
            ready = wait(list(running), timeout=max(0.0, oldest + limit - time.monotonic()))
            now = time.monotonic()
            late = [each for each, (*_, began) in running.items() if began + limit <= now and each not in ready]
            for connection in (*ready, *late):
                process, job, folder, began = running.pop(connection)
                ran = None
                if connection in ready:
                    with suppress(EOFError):
                        ran = connection.recv()
                _end(process)
                log = folder / "log"
                yield _verdict(job, ran, _tail(log), hung=connection in late)
                shutil.rmtree(folder)
    finally:
        for process, *_ in running.values():
            _end(process)


def _end(process: BaseProcess) -> None:
    """End a child, and whatever it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().split("\n") if log.is_file() else [""]
    return " | ".join(lines[-6:])


def _verdict(job: _Job, ran: _Ran | None, log: str, *, hung: bool) -> Verdict:
    def verdict(status: Status, reason: str) -> Verdict:
        return Verdict(job.name, status, reason, ran.seconds if ran else 0.0)

    if hung:
        return verdict("hung", f"its tests did not end in time: {log}")
    if ran is None:
        return verdict("broken", f"its tests ended the process: {log}")
    silent = [
        test for test in job.tests if not any(_names(test, ended) for ended in (*ran.passed, *ran.failed, *ran.skipped))
    ]
    idle = f"{ran.skipped[0]} is skipped on this machine" if ran.skipped and not ran.passed else ""
    if job.bug is None:
        bad = [*ran.failed, *ran.errors, *(f"{test} does not exist" for test in silent)]
        if bad:
            return verdict("broken", "without a bug: " + "; ".join(bad))
        return verdict("skipped", idle) if idle else verdict("unpatched", "")
    if ran.failed:
        return verdict("killed", ran.failed[0])
    if ran.errors:
        return verdict("broken", ran.errors[0])
    if silent:
        return verdict("broken", f"{silent[0]} was not run: {log}")
    return verdict("skipped", idle) if idle else verdict("survived", job.bug.bug)


def _names(test: str, ended: str) -> bool:
    """Return whether `test`, as a patch names it, stands for the test that ended, one of its parameters perhaps."""
    ended = ended.split(": ")[0]
    return ended == test or ended.startswith(f"{test}[") or ended.startswith(f"{test}::")


class _Recorder:
    """A pytest plugin that keeps how each test ended."""

    def __init__(self, stop: bool) -> None:
        """
        Args:
            stop: end at the first test that fails in its own body.
        """
        self._stop = stop
        self.passed: list[str] = []
        self.skipped: list[str] = []
        self.failed: list[str] = []
        self.errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
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
            if self._stop:
                node.session.shouldstop = "noticed"
        else:
            self.errors.append(f"{said} (in {call.when})")


def _child(job: _Job, folder: Path, connection: Connection) -> None:
    """Run the tests of a job in its copy of the tree and send what came of them. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        connection.send(_run_tests(job, folder))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        connection.close()
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing that the parent would do at its own end: its threads and handlers are not ours.
        os._exit(status)


def _run_tests(job: _Job, folder: Path) -> _Ran:
    began = sum(os.times()[:4])  # of this process and those that it waited for
    tree = folder / "tree"
    os.chdir(tree)
    # First on the path, here and in commands that tests start: before an editable installation, whose finder is asked
    # last.
    sys.path[:] = [str(tree), *(entry for entry in sys.path if not entry.endswith("tests"))]
    os.environ["PYTHONPATH"] = str(tree)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["SPECDEC_CACHE"] = str(folder / "cache")  # what a bug has computed and kept reaches no other bug's tests
    recorder = _Recorder(stop=job.bug is not None)
    plugins = [f"-p{name}" for name in (*PLUGINS, "no:cacheprovider")]
    options = ["-q", "-n0", "-mslow or not slow", "-Wignore::pytest.PytestAssertRewriteWarning", f"--rootdir={tree}"]
    options += [*plugins, f"--basetemp={folder / 'files'}"]
    code = pytest.main([*options, *job.tests], plugins=[recorder])
    used = getattr(sys.modules.get("specdec"), "__file__", None)
    if used is not None and not Path(used).is_relative_to(tree):
        raise RuntimeError(f"the tests ran against {used} and not against the copy in {tree}")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        recorder.errors.append(f"pytest ended with code {int(code)}: {_tail(folder / 'log')}")
    ended = recorder.passed, recorder.skipped, recorder.failed, recorder.errors
    return _Ran(*map(tuple, ended), sum(os.times()[:4]) - began)
