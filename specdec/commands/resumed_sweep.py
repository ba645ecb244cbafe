"""Finds the sweep that a sweep goes on with: a file in each sweep's folder says what it sweeps and how it ended.

Knows folders and overrides; nothing of cells. Imports stay light.
"""

import os
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig, open_dict, read_write

from specdec import __version__
from specdec.errors import UsageError
from specdec.folder.earlier_runs import AUTO, NEVER
from specdec.plugins import code_hash
from specdec.progress import VERBOSE
from specdec.text.writing import held, is_locked, read_json, write_json

RECORD = "sweep.json"
CELL_ENVIRONMENT = ".cells.json"
RESUMED_SWEEP = "SPECDEC_RESUMED_SWEEP"  # environment variable: the folder whose finished cells are kept
SWEPT_KEYS = "SPECDEC_SWEPT_KEYS"  # environment variable: the keys that the sweep varies, separated by commas


@dataclass(frozen=True)
class SweepRecord:
    """The content of `sweep.json`: the overrides without `resume`, the hash of the code that runs the cells, and a
    status, "running" until the sweep ends and after a kill, "finished" if every cell is, else "unfinished".
    """

    overrides: list[str]
    version: str
    code: str
    status: str

    def write(self, folder: Path) -> None:
        write_json(folder / RECORD, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "SweepRecord | None":
        try:
            return cls(**(read_json(folder / RECORD) or {}))
        except TypeError:
            return None


@dataclass
class OpenSweep:
    """The folder of the sweep that begins or goes on, locked, and what a person has to know of it."""

    folder: Path
    record: SweepRecord
    lock: FileLock
    sentence: str = ""

    def close(self, finished: bool) -> None:
        """Say how the sweep ended, and let others have its folder."""
        replace(self.record, status="finished" if finished else "unfinished").write(self.folder)
        self.lock.release()


def open_sweep(config: DictConfig, here: Path) -> OpenSweep:
    """Choose and lock the sweep's folder; the caller lets Hydra write to it (`redirect`).

    Sets the environment variables by which cells, in whatever process, know what may be kept and what is varied.

    Raises:
        UsageError: the folder holds a finished sweep or another one; there is no sweep to resume; other code.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = [each for each in config.hydra.overrides.task if not each.lstrip("+").startswith("resume=")]
    now = SweepRecord(overrides, __version__, code_hash(), "running")
    own = here / str(config.hydra.sweep.dir)
    named = any(each.lstrip("+").startswith("hydra.sweep.dir=") for each in config.hydra.overrides.hydra)
    resumed, sentence = _resumed(str(config.get("resume", NEVER)), own, named, now)
    folder = own if resumed is None else resumed
    if resumed is not None:
        before = SweepRecord.read(resumed)
        if before is not None and before.overrides != overrides:
            # Hydra numbers the cells of other overrides anew: in the same folder they would overwrite others.
            numbers = (number for number in count(2) if not (resumed / f"again-{number}").exists())
            folder = resumed / f"again-{next(numbers)}"
        os.environ[RESUMED_SWEEP] = str(resumed)
    lock = held(folder, f"Another process is writing to the sweep in {folder}: wait until it ends.")
    now.write(folder)
    parsed: list[Any] = OverridesParser.create().parse_overrides(overrides)
    os.environ[SWEPT_KEYS] = ",".join(each.key_or_group for each in parsed if each.is_sweep_override())
    # Workers of a cluster have another environment.
    own_values = {name: os.environ[name] for name in (RESUMED_SWEEP, SWEPT_KEYS, VERBOSE) if name in os.environ}
    write_json(folder / CELL_ENVIRONMENT, own_values)
    return OpenSweep(folder, now, lock, sentence)


def forget_environment() -> None:
    """Take back the environment variables of `open_sweep`."""
    for name in (RESUMED_SWEEP, SWEPT_KEYS):
        os.environ.pop(name, None)


def _resumed(resume: str, own: Path, named: bool, now: SweepRecord) -> tuple[Path | None, str]:
    """Return the folder of the sweep that goes on, None for a new one, and a sentence about it; `named` if the command
    line named the sweep's `own` folder.
    """
    standing = SweepRecord.read(own)
    if resume not in (AUTO, NEVER):
        folder = Path(resume).resolve()
        before = SweepRecord.read(folder)
        if before is None:
            raise UsageError(f"Bad value resume={resume}: there is no sweep in this folder; give one with a {RECORD}.")
        _refuse_other_code(folder, before, now)
        return folder, _going_on(folder)
    if standing is not None:
        if resume == NEVER or standing.status == "finished" or standing.overrides != now.overrides:
            kind = "a finished" if standing.status == "finished" else "an unfinished"
            raise UsageError(
                f"{own} holds {kind} sweep ({' '.join(standing.overrides)}): choose another hydra.sweep.dir, or keep "
                f"its finished cells with resume={own}."
            )
        _refuse_other_code(own, standing, now)
        return own, _going_on(own)
    if resume == NEVER or named:
        return None, ""
    for path in sorted(own.parent.parent.glob(f"*/*/{RECORD}"), reverse=True):
        before = SweepRecord.read(path.parent)
        if before is None or before.overrides != now.overrides:
            continue
        if before.status == "finished" or is_locked(path.parent):
            return None, ""  # the newest counts: who repeats a finished sweep wants a new one
        if before.code != now.code:
            return None, f"A new sweep: the unfinished one in {path.parent} was begun by other code."
        return path.parent, _going_on(path.parent)
    return None, ""


def _going_on(folder: Path) -> str:
    return f"Going on with the sweep in {folder}: finished cells are kept, the others run again or go on."


def _refuse_other_code(folder: Path, before: SweepRecord, now: SweepRecord) -> None:
    pairs = (("version", before.version, now.version), ("sha256", before.code[:12], now.code[:12]))
    differ = [f"code: {name} {old} -> {new}" for name, old, new in pairs if old != new]
    if differ:
        raise UsageError(
            f"The sweep in {folder} was begun by other code, and its cells would not compare: run it with that code, "
            f"or begin a new one with resume=never. What differs: {'; '.join(differ)}."
        )


def redirect(config: DictConfig, folder: Path) -> None:
    """Make Hydra write the sweep to `folder`, in this process and in those of its launcher, wherever they start."""
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
        # Every cell composes its configuration again, from the overrides.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
