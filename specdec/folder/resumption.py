"""Chooses the folder that a run writes to: a new one, or that of a run of the same identity that was killed.

A folder is used by one run: a finished run in it is refused, and so is one of another identity, with what differs. As
long as a run is alive it holds the lock of its folder, so that two runs at the same time never go on with the same one.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.analysis.read.facts import STATUS_FILE, RunStatus
from specdec.analysis.read.runs import open_folder
from specdec.analysis.sections import counted
from specdec.errors import Interrupted, UsageError
from specdec.folder.earlier_runs import AUTO, NEVER, EarlierRuns, KeptRun
from specdec.folder.identity import RunIdentity, differences, recorded_identity, write_config
from specdec.folder.results import GENERATIONS, PARTS, ROUNDS, Kept, ResultsFolder, drop_unreadable, finished_prompts
from specdec.plan.time_budget import TimeBudget
from specdec.progress import tell
from specdec.text.writing import held, is_locked, read_json

_STATUS_SECONDS = 1.0  # between two writings of a status
_LEFT_BY_RUNS = (STATUS_FILE, "config.yaml", "environment.json", GENERATIONS, ROUNDS, PARTS)
_OTHER_FOLDER = "choose another hydra.run.dir"


@dataclass(frozen=True)
class Beginning:
    """The folder of a run that begins or goes on."""

    results: ResultsFolder
    kept: Kept
    sittings: tuple[dict[str, Any], ...]  # the record of each one, this one included (`environment.json`)


@contextmanager
def standing(
    results: ResultsFolder, prompts: int, kept: int, budget: TimeBudget | None = None
) -> Iterator[Callable[[], None]]:
    """Keep `status.json` while a run decodes its prompts, of which `kept` were done before; what is yielded counts one
    more. At the end it says how the run ended; one with a budget may leave prompts out, and is finished without them.
    """
    done, written = kept, time.monotonic()
    results.write_status("running", "", done, prompts)

    def advance() -> None:
        nonlocal done, written
        done += 1
        if time.monotonic() - written > _STATUS_SECONDS:
            written = time.monotonic()
            results.write_status("running", "", done, prompts)

    try:
        yield advance
    except BaseException as error:
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        sentence = str(error) or type(error).__name__
        results.write_status("killed" if stopped else "failed", sentence, done, prompts)
        raise
    cut, left_out = ("", 0) if budget is None else (budget.cut(prompts), len(budget.left_out))
    results.write_status("finished", cut, done, prompts, left_out)
    results.finish()


def write_sittings(identity: RunIdentity, beginning: Beginning, tracked: str = "") -> None:
    """Write `config.yaml`, and `environment.json` with the run's sittings; `tracked` is this one's MLflow run."""
    *before, now = beginning.sittings
    sittings = [*before, now | ({"mlflow_run": tracked} if tracked else {})]
    beginning.results.write_json("environment.json", {**identity.environment, "sittings": sittings})
    write_config(beginning.results.folder, identity.config)


@contextmanager
def begun(
    resume: str, folder: Path, identity: RunIdentity, earlier: EarlierRuns | None = None, *, by_prompt: bool = True
) -> Iterator[Beginning | KeptRun]:
    """Give the folder to write to, locked, with the run's identity written down, or a finished run that is kept, and
    say so where it is no new one. The run's own is `folder`; `resume` is `auto`, `never`, or the folder of the run that
    goes on. A study keeps no finished prompts (`by_prompt`) and begins again in its folder. Raises UsageError: the
    folder holds a finished run, or one that differs; another process writes to it.
    """
    in_sweep = earlier is not None and earlier.sweep
    if resume not in (AUTO, NEVER) and not in_sweep:
        folder = Path(resume)
        if not folder.is_dir():
            raise UsageError(f"Bad value resume={resume}: there is no such folder; give that of a run, or resume=auto.")
        if not _holds(folder, *_LEFT_BY_RUNS):
            raise UsageError(
                f"Bad value resume={resume}: there is no run in this folder; give the one with the run's config.yaml, "
                "and for a sweep add -m."
            )
    chosen = _standing(folder, identity, resume, keep_finished=in_sweep)
    if chosen is None and earlier is not None and resume != NEVER:
        chosen = _among_earlier(earlier, identity)
    if isinstance(chosen, KeptRun):
        tell(f"Kept: {chosen.folder} holds this {'measurement' if by_prompt else 'study'}, finished.")
        yield chosen
        return
    folder = chosen or folder
    lock = held(folder, f"Another process is writing to {folder}: {_OTHER_FOLDER}, or wait until it ends.")
    try:
        made = identity.environment.get("model", {}).get("compilation")
        sitting = {"began": identity.environment["captured"], "prompts_kept": 0, "compilation": made}
        beginning = Beginning(ResultsFolder(folder), {}, (sitting,))
        if chosen and by_prompt:
            damaged = drop_unreadable(folder)
            for name in (GENERATIONS, ROUNDS):  # joined when the run was interrupted; they will be made again
                (folder / name).unlink(missing_ok=True)
            kept = finished_prompts(folder)
            before = open_folder(folder).environment().get("sittings", ()) if kept else ()
            status = RunStatus.read(folder)
            of = "" if status is None or not status.prompts else f" of {status.prompts}"
            dropped = f"; dropped: {', '.join(damaged)}, which cannot be read" if damaged else ""
            tell(f"Going on with the run in {folder}: {counted(len(kept), 'prompt')}{of} kept{dropped}.")
            # As calls were made first: programs may have come, or gone, since then, and one run has one pace.
            first = before[0].get("compilation", made) if before else made
            sittings = (*before, {**sitting, "compilation": first, "prompts_kept": len(kept)})
            beginning = Beginning(beginning.results, kept, sittings)
        elif chosen:
            tell(f"The unfinished run in {folder} begins again: it keeps nothing on the way.")
        write_sittings(identity, beginning)
        yield beginning
    finally:
        lock.release()


def _holds(folder: Path, *names: str) -> bool:
    return any((folder / name).exists() for name in names)


def _finished(folder: Path) -> bool:
    status = RunStatus.read(folder)
    if status is None:  # an earlier version's
        return (folder / "summary.json").is_file() or (folder / "study.json").is_file()
    return status.status == "finished"


def _standing(folder: Path, identity: RunIdentity, resume: str, keep_finished: bool) -> Path | KeptRun | None:
    """Return the run's own folder if its run goes on, or a run that is kept; None if there is none (see `begun`)."""
    if not _holds(folder, *_LEFT_BY_RUNS):
        return None
    recorded, finished = recorded_identity(folder), _finished(folder)
    if recorded is None:
        if _holds(folder, GENERATIONS, ROUNDS):
            raise UsageError(f"{folder} holds a run that does not say what it measured: {_OTHER_FOLDER}.")
        return None  # killed before it began
    differ = differences(recorded, identity.environment["identity"])
    if differ:
        raise UsageError(
            f"{folder} holds {'a finished' if finished else 'an unfinished'} run of another kind: {_OTHER_FOLDER}, or "
            f"run what it measured. {_listed(differ)}"
        )
    if finished and keep_finished:
        return _kept(folder)
    if finished:
        raise UsageError(
            f"{folder} holds a finished run of the same measurement, and two runs are never mixed: {_OTHER_FOLDER}; "
            f"`python -m specdec.report {folder}` shows the one that is there."
        )
    if resume == NEVER:
        raise UsageError(
            f"{folder} holds an unfinished run, and resume=never does not go on with it: {_OTHER_FOLDER}, or "
            "resume=auto."
        )
    _refuse_other_machine(folder, recorded, identity)
    return folder


def _refuse_other_machine(folder: Path, recorded: Mapping[str, Any], identity: RunIdentity) -> None:
    differ = differences(recorded, identity.environment["identity"], ("machine",))
    if differ:
        raise UsageError(
            f"The run in {folder} was begun under other conditions, and its times would not compare: {_OTHER_FOLDER}, "
            f"resume=never, or go on there as it was begun. {_listed(differ)}"
        )


def _listed(differ: list[str]) -> str:
    more = f"; and {len(differ) - 8} more" if len(differ) > 8 else ""
    return f"What differs: {'; '.join(differ[:8])}{more}."


def _kept(folder: Path) -> KeptRun:
    study = read_json(folder / "study.json")
    logged = open_folder(folder).metrics if study is None else study["metrics"]
    metrics = {name: value for name, value in logged.items() if value is not None and value == value}
    return KeptRun(metrics, folder)


def _among_earlier(earlier: EarlierRuns, identity: RunIdentity) -> Path | KeptRun | None:
    """Return a run below a folder that goes on, or is kept; None where there is none. UsageError where a cell of the
    resumed sweep has the same configuration, and differs in code or data.
    """
    mine = identity.environment["identity"]
    unfinished: list[Path] = []
    for path in sorted(earlier.below.rglob("environment.json"), reverse=True):
        folder = path.parent
        finished = _finished(folder)
        if finished and not earlier.sweep:
            continue
        recorded = recorded_identity(folder)
        if recorded is None or differences(recorded, mine, ("config",)):
            continue
        differ = differences(recorded, mine)
        if differ and earlier.sweep:
            raise UsageError(
                f"The sweep in {earlier.below} cannot be resumed: {folder} has the same configuration and other code "
                f"or data; use resume=never for a new sweep. {_listed(differ)}"
            )
        if differ:
            continue
        if finished:
            return _kept(folder)
        if earlier.sweep:
            _refuse_other_machine(folder, recorded, identity)
        elif differences(recorded, mine, ("machine",)):
            continue
        if not is_locked(folder):
            unfinished.append(folder)
    return unfinished[0] if unfinished else None
