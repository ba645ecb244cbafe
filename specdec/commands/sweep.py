"""A sweep (`-m`): a parent run in MLflow before the cells start, an outcome file for each cell, a table at the end.

A cell that fails writes that into its folder instead of raising, so that the other cells run under any launcher. Knows
Hydra and files; nothing of decoding. Imports stay light.
"""

import csv
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from specdec.commands.failures import ending
from specdec.config import TrackingConfig, validated
from specdec.errors import Interrupted, SpecdecError, UsageError
from specdec.text.writing import write_atomically
from specdec.tracking.writer import PARENT_RUN, SWEEP_CELL, TrackedRun, check_store, tracked_run

logger = logging.getLogger(__name__)

OUTCOME = "cell.json"
HEADLINE = ("speedup", "tokens_per_round")
FAILED_CELLS = 3
_GAMMA = "structure.gamma="


class Stopped(BaseException):
    """Carries an error past Hydra, which only warns of an Exception in a callback."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class CellOutcome:
    """The end of one cell; `results` are the metrics that the task returned."""

    cell: int
    overrides: list[str]
    exit_code: int
    sentence: str
    results: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process launched."""

    folder: Path
    run: TrackedRun


class SweepParent(Callback):
    """The Hydra callback that `conf/config.yaml` registers. It holds no state, because launchers pickle it."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Make the store ready and open the parent run; a fault ends the command before any cell starts."""
        global _launched
        try:
            plain = OmegaConf.to_container(config.tracking, resolve=True)
            assert isinstance(plain, dict)
            tracking = validated(TrackingConfig, {str(k): v for k, v in plain.items()}, where="tracking")
            here = Path.cwd()
            check_store(tracking, here)
            overrides = " ".join(config.hydra.overrides.task)
            tags = {"specdec.role": "sweep", "specdec.overrides": overrides}
            run = tracked_run(tracking, name=f"sweep {overrides}"[:200], params={}, tags=tags, folder=here)
        except SpecdecError as error:
            raise Stopped(error) from None
        os.environ[PARENT_RUN] = run.run_id
        _launched = Sweep(here / str(config.hydra.sweep.dir), run)


_launched: Sweep | None = None


def in_cell() -> bool:
    """Return whether the task now running is a cell of a sweep that has a parent run."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    return HydraConfig.get().mode == RunMode.MULTIRUN and PARENT_RUN in os.environ


def run_cell(task: Callable[[], Mapping[str, float] | None]) -> None:
    """Run a cell and write its outcome. Only a signal ends the sweep, by raising Stopped."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    cell, overrides = int(hydra.job.num), [str(override) for override in hydra.overrides.task]
    path = Path(hydra.runtime.output_dir) / OUTCOME
    os.environ[SWEEP_CELL] = str(cell)

    def write(code: int, sentence: str, results: dict[str, float] | None = None) -> None:
        outcome = CellOutcome(cell, overrides, code, sentence, results or {})
        write_atomically(path, json.dumps(asdict(outcome), indent=2))

    try:
        results = {name: float(value) for name, value in (task() or {}).items() if value is not None}
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
        _free_memory()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        write(code, f"The cell ended itself with exit code {code}.")
    else:
        write(0, "", results)
    finally:
        os.environ.pop(SWEEP_CELL, None)


def _free_memory() -> None:
    """Give the memory of a failed cell back, so that the next one in this process finds it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def conclude(error: BaseException | None) -> int:
    """Write the sweep's table, close its parent run, and return the sweep's exit code; 0 if there was no sweep.

    If every cell failed in its configuration, the parent run is deleted.

    Args:
        error: the error that ended the sweep early, if any.
    Raises:
        EnvironmentFault: tracking is required and the store fails.
    """
    global _launched
    sweep, _launched = _launched, None
    if sweep is None:
        return 0
    os.environ.pop(PARENT_RUN, None)
    outcomes = read_outcomes(sweep.folder)
    if all(outcome.exit_code == UsageError.exit_code for outcome in outcomes):
        sweep.run.discard()
        return UsageError.exit_code
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    status = "FINISHED" if error is None and not failed else "FAILED"
    if isinstance(error, (Interrupted, KeyboardInterrupt)):
        status = "KILLED"
    try:
        _summarise(sweep, outcomes)
    finally:
        sweep.run.end(status)
    if failed and error is None:
        print(f"specdec: {failed} of {len(outcomes)} cells failed; the table says why.", file=sys.stderr)
    return 0 if status == "FINISHED" else FAILED_CELLS


def read_outcomes(folder: Path) -> list[CellOutcome]:
    """Read the outcomes of the cells that began, in order; a cell without an outcome file died."""
    outcomes = []
    for settings in folder.rglob(".hydra/hydra.yaml"):
        path = settings.parent.parent / OUTCOME
        if path.is_file():
            outcomes.append(CellOutcome(**json.loads(path.read_text(encoding="utf-8"))))
        else:
            hydra = OmegaConf.load(settings).hydra
            overrides = [str(override) for override in hydra.overrides.task]
            outcomes.append(CellOutcome(int(hydra.job.num), overrides, 1, "The cell's process died."))
    return sorted(outcomes, key=lambda outcome: outcome.cell)


def _summarise(sweep: Sweep, outcomes: list[CellOutcome]) -> None:
    """Write `sweep.csv` and `sweep.md` to the sweep's folder and the parent run, and the table to the terminal."""
    header = ["cell", "overrides", *HEADLINE, "exit code", "fault"]
    lines = [
        [str(cell.cell), " ".join(_varied(cell, outcomes)), *(_figure(cell, name) for name in HEADLINE)]
        + [str(cell.exit_code), cell.sentence]
        for cell in outcomes
    ]
    with (sweep.folder / "sweep.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *lines])
    markdown = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in markdown)
    (sweep.folder / "sweep.md").write_text(text + "\n", encoding="utf-8")
    sweep.run.artifacts(sweep.folder)
    for name in HEADLINE:
        drawn = _lines(outcomes, name)
        # Logged twice: on the parent run, for MLflow's collapsed list, and on a child of each line, for one chart.
        sweep.run.curves({f"sweep.{name}.{label}": points for label, points in drawn.items()})
        sweep.run.curve_children(f"sweep.{name}", drawn)
    _print(header, lines)
    if sweep.run.link:
        print(sweep.run.link)
    if overlay := sweep.run.overlay(f"sweep.{HEADLINE[0]}"):
        print(f"overlay: {overlay}")


def _lines(outcomes: list[CellOutcome], name: str) -> dict[str, dict[int, float]]:
    """Return one line for each combination of the overrides other than gamma: {line: {gamma: result}}. Where gamma was
    not swept, the number of the cell takes its place.
    """
    lines: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        varied = _varied(outcome, outcomes)
        gammas = [override.removeprefix(_GAMMA) for override in varied if override.startswith(_GAMMA)]
        others = [override.removeprefix("+drafter=") for override in varied if not override.startswith(_GAMMA)]
        if name in outcome.results:
            step = int(gammas[0]) if gammas and gammas[0].isdigit() else outcome.cell
            lines.setdefault(" ".join(others) or "all", {})[step] = outcome.results[name]
    return lines


def _varied(outcome: CellOutcome, outcomes: list[CellOutcome]) -> list[str]:
    """Return the overrides that not all cells share."""
    shared = set.intersection(*(set(o.overrides) for o in outcomes)) if len(outcomes) > 1 else set()
    return [override for override in outcome.overrides if override not in shared]


def _figure(outcome: CellOutcome, name: str) -> str:
    value = outcome.results.get(name)
    return "" if value is None else f"{value:.3f}"


def _print(header: list[str], lines: list[list[str]]) -> None:
    from rich import get_console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in header:
        table.add_column(name.replace("_", " "), overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    get_console().print(table)
