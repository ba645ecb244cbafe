"""A sweep (`-m`): a parent run in MLflow before the cells start, an outcome file for each cell, a table at the end.

A cell that fails writes that into its folder instead of raising, so that the other cells run under any launcher. A file
in each sweep's folder says what it sweeps and how it ended, so that a sweep can go on. Knows Hydra and files, nothing
of decoding. Imports stay light.
"""

import csv
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from specdec import __version__, ranks
from specdec.commands.failures import ending
from specdec.commands.launchers import OUTCOME, claim_gpu, prepare_launcher, stop_cells, write_process
from specdec.config import TrackingConfig, validated
from specdec.errors import Interrupted, SpecdecError, UsageError
from specdec.folder.earlier_runs import AUTO, NEVER, KeptRun
from specdec.plugins import code_hash
from specdec.progress import VERBOSE, verbose
from specdec.signals import interruptible, unswallowed
from specdec.text.writing import held, is_locked, read_json, write_json
from specdec.tracking.writer import PARENT_RUN, SWEEP_CELL, TrackedRun, check_store, tracked_run

logger = logging.getLogger(__name__)

HEADLINE = ("speedup", "tokens_per_round")
FAILED_CELLS = 3
_COLUMNS = 4  # results in the table of a training sweep
_GAMMA = "structure.gamma="
RECORD = "sweep.json"
SHARED = ".cells.json"  # what all cells have to know


class Stopped(BaseException):
    """Carries an error past Hydra, which only warns of an Exception in a callback."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class CellOutcome:
    """The end of one cell, with the metrics that the task returned."""

    cell: int
    overrides: list[str]
    exit_code: int
    sentence: str
    results: dict[str, float] = field(default_factory=dict)
    kept: str = ""  # folder of the run that was finished before and stands for this cell


@dataclass(frozen=True)
class SweepRecord:
    """The content of `sweep.json`."""

    overrides: list[str]  # without `resume`
    version: str
    code: str  # the hash of the code that runs the cells
    status: str  # "running" until the sweep ends and after a kill, "finished" if every cell is, else "unfinished"

    @classmethod
    def read(cls, folder: Path) -> "SweepRecord | None":
        try:
            return cls(**(read_json(folder / RECORD) or {}))
        except TypeError:
            return None


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process launched."""

    folder: Path
    record: SweepRecord
    lock: FileLock  # of the folder
    run: TrackedRun
    headline: tuple[str, ...]  # the results that its table has columns for; empty for those that the cells return


class SweepParent(Callback):
    """A Hydra callback of `conf/config.yaml` and `conf/train.yaml`; it holds no state, because launchers pickle it."""

    def on_multirun_start(self, config: DictConfig, config_name: str | None = None, **_: Any) -> None:
        """Make the store ready and open the parent run; a fault ends the command before any cell starts."""
        global _launched
        try:
            ranks.check_single("a sweep (-m)")
            plain: Any = OmegaConf.to_container(config.tracking, resolve=True)
            tracking = validated(TrackingConfig, plain, where="tracking")
            check_store(tracking, Path.cwd())
            overrides = list(config.hydra.overrides.task)
            device = str(OmegaConf.select(config, "target.device"))
            varied = [*overrides, *(OmegaConf.select(config, "hydra.sweeper.params") or ())]
            # A GPU that is not there is told once, unless the command line names one: that may differ by cell.
            if device.startswith("cuda") and not any(each.lstrip("+~").startswith("target.device") for each in varied):
                from specdec.models.load import resolve_device

                resolve_device(device)
            folder, record, lock = open_sweep(config)
            for path in _outcomes(folder):  # of earlier sittings: failed cells run again
                if (read_json(path) or {}).get("exit_code"):
                    path.unlink()
            tags = {"specdec.role": "sweep", "specdec.overrides": " ".join(overrides)}
            name = f"sweep {' '.join(overrides)}"[:200]
            run = tracked_run(tracking, name=name, params={}, tags=tags, results=folder)
        except (SpecdecError, OSError) as error:  # OSError: a folder that cannot be made
            raise Stopped(error) from None
        prepare_launcher(str(config.hydra.launcher._target_), folder)
        _launched = Sweep(folder, record, lock, run, () if config_name == "train" else HEADLINE)


_launched: Sweep | None = None


def open_sweep(config: DictConfig) -> tuple[Path, SweepRecord, FileLock]:
    """Choose and lock the folder of the sweep that begins or goes on, write its record and what its cells share, and
    make Hydra write there, in this process and in those of its launcher. Raises UsageError: the folder holds a finished
    sweep or another one; there is no sweep to resume; other code.
    """
    overrides = [each for each in config.hydra.overrides.task if not each.lstrip("+").startswith("resume=")]
    now = SweepRecord(overrides, __version__, code_hash(), "running")
    own = Path.cwd() / str(config.hydra.sweep.dir)
    named = any(each.lstrip("+").startswith("hydra.sweep.dir=") for each in config.hydra.overrides.hydra)
    resumed = _resumed(str(config.get("resume", NEVER)), own, named, now)
    folder = resumed or own
    if resumed is not None and (before := SweepRecord.read(resumed)) is not None:
        pairs = (("version", before.version, now.version), ("sha256", before.code[:12], now.code[:12]))
        differ = [f"code: {name} {old} -> {new}" for name, old, new in pairs if old != new]
        if differ:
            raise UsageError(
                f"The sweep in {resumed} was begun by other code, and its cells would not compare: run it with that "
                f"code, or begin a new one with resume=never. What differs: {'; '.join(differ)}."
            )
        if before.overrides != overrides:
            # Hydra numbers the cells of other overrides anew: in the same folder they would overwrite others.
            numbers = (number for number in count(2) if not (resumed / f"again-{number}").exists())
            folder = resumed / f"again-{next(numbers)}"
    lock = held(folder, f"Another process is writing to the sweep in {folder}: wait until it ends.")
    write_json(folder / RECORD, asdict(now))
    parsed: list[Any] = OverridesParser.create().parse_overrides(overrides)
    swept = [each.key_or_group for each in parsed if each.is_sweep_override()]
    write_json(folder / SHARED, {"resumed": resumed, "swept": swept, "verbose": verbose()})
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
        # Every cell composes its configuration again, from the overrides.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
    if resumed is not None:
        said = f"Going on with the sweep in {resumed}: finished cells are kept, the others run again or go on."
        print(said, file=sys.stderr)
    return folder, now, lock


def shared() -> dict[str, Any]:
    """Return what all cells of a sweep know, in whatever process (call inside one): the sweep that is `resumed`, whose
    finished cells are kept, or None; the keys that are `swept`; and if the command is `verbose`.
    """
    values: dict[str, Any] = json.loads((Path(HydraConfig.get().sweep.dir) / SHARED).read_text(encoding="utf-8"))
    return values


def _resumed(resume: str, own: Path, named: bool, now: SweepRecord) -> Path | None:
    """Return the folder of the sweep that goes on, None for a new one; `named` if the command line named `own`."""
    standing = SweepRecord.read(own)
    if resume not in (AUTO, NEVER):
        folder = Path(resume).resolve()
        if SweepRecord.read(folder) is None:
            raise UsageError(f"Bad value resume={resume}: there is no sweep in this folder; give one with a {RECORD}.")
        return folder
    if standing is not None:
        if resume == NEVER or standing.status == "finished" or standing.overrides != now.overrides:
            kind = "a finished" if standing.status == "finished" else "an unfinished"
            raise UsageError(
                f"{own} holds {kind} sweep ({' '.join(standing.overrides)}): choose another hydra.sweep.dir, or keep "
                f"its finished cells with resume={own}."
            )
        return own
    if resume == NEVER or named:
        return None
    for path in sorted(own.parent.parent.glob(f"*/*/{RECORD}"), reverse=True):
        before = SweepRecord.read(path.parent)
        if before is None or before.overrides != now.overrides:
            continue
        if before.status == "finished" or is_locked(path.parent):
            return None  # the newest counts: who repeats a finished sweep wants a new one
        if before.code == now.code:
            return path.parent
        print(f"A new sweep: the unfinished one in {path.parent} was begun by other code.", file=sys.stderr)
        break
    return None


def in_cell() -> bool:
    """Return True if the task now running is a cell of a sweep that has a parent run."""
    if not HydraConfig.initialized():
        return False  # called by other code, not by a command
    hydra = HydraConfig.get()
    return hydra.mode == RunMode.MULTIRUN and (Path(hydra.sweep.dir) / RECORD).is_file()


def run_cell(task: Callable[[], Mapping[str, float] | None]) -> None:
    """Run a cell and write its outcome. Only a signal to the process that launched the sweep ends it, by raising
    Stopped; a worker that gets one ends its cell.
    """
    hydra = HydraConfig.get()
    if _launched is not None:
        _run_cell(hydra, task)
        return
    os.chdir(hydra.runtime.cwd)  # relative paths mean the same everywhere
    if shared()["verbose"]:
        os.environ[VERBOSE] = "1"
    with interruptible(), suppress(Stopped):
        _run_cell(hydra, task)


def _run_cell(hydra: Any, task: Callable[[], Mapping[str, float] | None]) -> None:
    cell, overrides = int(hydra.job.num), [str(override) for override in hydra.overrides.task]
    path = Path(hydra.runtime.output_dir) / OUTCOME
    own = {PARENT_RUN: str(hydra.sweep.dir), SWEEP_CELL: str(cell)}
    os.environ.update(own)

    def write(code: int, sentence: str, results: dict[str, float] | None = None, kept: str = "") -> None:
        write_json(path, asdict(CellOutcome(cell, overrides, code, sentence, results or {}, kept)))

    try:
        write_process(path.parent)
        claim_gpu()
        with unswallowed():
            returned = task() or {}
        results = {name: float(value) for name, value in returned.items() if value is not None}
    except (Interrupted, KeyboardInterrupt) as error:
        sentence, code = ending(error) or ("Interrupted.", 130)
        write(code, sentence)
        raise Stopped(error) from None
    except Exception as error:
        known = ending(error)
        if known is None:
            logger.exception("Cell %d failed by a fault in specdec or in a library.", cell)
        sentence, code = known or (f"{type(error).__name__}: {error}", 1)
        print(f"specdec: cell {cell}: {sentence}", file=sys.stderr)
        write(code, sentence)
        gc.collect()  # the next cell in this process finds the memory of this one
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        write(code, f"The cell ended itself with exit code {code}.")
    else:
        write(0, "", results, str(returned.folder) if isinstance(returned, KeptRun) else "")
    finally:
        for name in own:
            os.environ.pop(name, None)


def conclude(error: BaseException | None) -> int:
    """Write the sweep's table, close its parent run, and return the sweep's exit code; 0 if there was no sweep.

    If every cell failed in its configuration, the parent run is deleted. `error` is what ended the sweep early, if
    anything did. Raises EnvironmentFault: tracking is required and the store fails.
    """
    global _launched
    sweep, _launched = _launched, None
    if sweep is None:
        return 0
    folder, interrupted = sweep.folder, isinstance(error, (Interrupted, KeyboardInterrupt))
    if interrupted:
        stop_cells(folder)
    outcomes = []
    for path in _outcomes(folder):
        if path.is_file():
            outcomes.append(CellOutcome(**json.loads(path.read_text(encoding="utf-8"))))
        else:
            hydra = OmegaConf.load(path.with_name(".hydra") / "hydra.yaml").hydra
            overrides = [str(override) for override in hydra.overrides.task]
            outcomes.append(CellOutcome(int(hydra.job.num), overrides, 1, "The cell's process died."))
    outcomes.sort(key=lambda outcome: outcome.cell)
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    finished = error is None and not failed
    try:
        if all(outcome.exit_code == UsageError.exit_code for outcome in outcomes):
            sweep.run.discard()
            return UsageError.exit_code
        try:
            _summarise(sweep, outcomes)
        finally:
            sweep.run.end("FINISHED" if finished else "KILLED" if interrupted else "FAILED")
    finally:
        write_json(folder / RECORD, {**asdict(sweep.record), "status": "finished" if finished else "unfinished"})
        sweep.lock.release()
    if failed and error is None:
        print(f"specdec: {failed} of {len(outcomes)} cells failed; the table says why.", file=sys.stderr)
    return 0 if finished else FAILED_CELLS


def _outcomes(folder: Path) -> list[Path]:
    """Return where the cells of a sweep that began write their outcome; those of sweeps below it are not its own."""
    return [
        path.parent.parent / OUTCOME
        for path in folder.rglob(".hydra/hydra.yaml")
        if not any((above / RECORD).exists() for above in path.parents[1:] if folder in above.parents)
    ]


def _summarise(sweep: Sweep, outcomes: list[CellOutcome]) -> None:
    """Write `sweep.csv` and `sweep.md` to the sweep's folder and the parent run, and the table to the terminal."""
    from rich import get_console
    from rich.table import Table
    from rich.text import Text

    from specdec.analysis.read.runs import open_folder

    folder = sweep.folder
    names = sweep.headline or tuple(sorted({name for cell in outcomes for name in cell.results}))[:_COLUMNS]
    header = ["cell", "overrides", *names, "exit code", "fault"]
    shared = set.intersection(*(set(cell.overrides) for cell in outcomes)) if len(outcomes) > 1 else set()
    varied = {cell.cell: [each for each in cell.overrides if each not in shared] for cell in outcomes}
    lines = [
        [str(cell.cell), " ".join(varied[cell.cell])]
        + [f"{cell.results[name]:.3f}" if name in cell.results else "" for name in names]
        + [str(cell.exit_code), cell.sentence or ("kept: finished before" if cell.kept else "")]
        for cell in outcomes
    ]
    with (folder / "sweep.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *lines])
    markdown = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in markdown)
    (folder / "sweep.md").write_text(text + "\n", encoding="utf-8")
    sweep.run.artifacts()
    for name in names:
        drawn: dict[str, dict[int, float]] = {}  # a line for each combination of the overrides other than gamma
        for outcome in outcomes:
            own = varied[outcome.cell]
            gammas = [override.removeprefix(_GAMMA) for override in own if override.startswith(_GAMMA)]
            others = [override.removeprefix("+drafter=") for override in own if not override.startswith(_GAMMA)]
            if name in outcome.results:  # where gamma was not swept, the number of the cell takes its place
                step = int(gammas[0]) if gammas and gammas[0].isdigit() else outcome.cell
                drawn.setdefault(" ".join(others) or "all", {})[step] = outcome.results[name]
        # Logged twice: on the parent run, for MLflow's collapsed list, and on a child of each line, for one chart.
        sweep.run.curves({f"sweep/{name}/{label}": points for label, points in drawn.items()})
        sweep.run.curve_children(f"sweep/{name}", drawn)
    begun = (path.parent for path in _outcomes(folder) if path.with_name("config.yaml").is_file())
    simulated = any(open_folder(cell).simulated for cell in begun)
    table = Table(title="Simulated" if simulated else None)  # the times of some cell come from a cost model
    for name in header:
        table.add_column(name.replace("_", " "), overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    get_console().print(table)
    if shown := sweep.run.shown_link:
        print(shown)
    if verbose() and names and (overlay := sweep.run.overlay(f"sweep/{names[0]}")):
        print(f"overlay: {overlay}")
