"""Runs a Hydra task as a command: a fault is one sentence without traceback, and sets the exit code. Knows nothing of
decoding. Imports stay light, so `--help` and a bad name answer at once.
"""

import gc
import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from specdec import __version__, ranks
from specdec.commands import sweep
from specdec.commands.failures import ending, not_begun
from specdec.config import RunConfig, config_dir, validated
from specdec.errors import SpecdecError, UsageError
from specdec.folder.earlier_runs import EarlierRuns
from specdec.plan.names import check_files, check_names
from specdec.plugins import conf_folders, extend_search_path
from specdec.progress import DETAILS, VERBOSE
from specdec.signals import interruptible, unswallowed

C = TypeVar("C", bound=RunConfig)

# Hydra's own handler would print its trace helper and always exit with 1; we want its exceptions as they are.
os.environ["HYDRA_FULL_ERROR"] = "1"
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Imports of torch and transformers make a million objects that stay: to look through them for cycles as often as Python
# does takes half a second of every start.
gc.set_threshold(50_000)

SWEEPING = ("-m", "--multirun")
ASKING = {"--help", "-h"}
TELLING_ALL = ("-v", "--verbose")
COLUMNS = "100"  # of what is printed where no terminal says how wide it is
STORE_NAMES = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME")  # variables that conf/tracking reads
LOG = "specdec.log"  # that conf/hydra/job_logging writes
LONGEST_LABEL = 100  # characters of a folder's name
SHARED = ("config", "train")  # roots of the commands that several processes can run together; they say what not
_INTERNAL = "hydra"  # the group and the key of Hydra's own settings, which --hydra-help explains


def options(group: str) -> list[str]:
    """List the YAML files of a config group, search path included (call inside a Hydra task)."""
    return list(GlobalHydra.instance().config_loader().get_group_options(group))


def typed_config(config_type: type[C], values: Mapping[str, Any]) -> C:
    """Return the typed configuration of a command (call inside a Hydra task). UsageError: no drafter was chosen, a part
    or a file is not there, or a value of no part is wrong.
    """
    if "drafter" not in values:
        raise UsageError(f"No drafter: add +drafter=NAME, one of {', '.join(options('drafter'))}.")
    config = validated(config_type, values, source="the configuration")
    check_names(values)
    check_files(values)
    return config


def refuse_targets(values: Any, where: str = "") -> None:
    """Raise UsageError for a key by which a configuration would name code: nothing that it names is imported or run.
    Hydra's own group, with launchers, sweepers and callbacks, is not among `values`.
    """
    items = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        place = f"{where}{key}"
        if key == "_target_":
            raise UsageError(
                f"Key {place} is refused: specdec imports and runs nothing that a configuration names; remove it, and "
                "choose parts by their name."
            )
        refuse_targets(value, f"{place}.")


def main(config_name: str, task: Callable[[Mapping[str, Any]], Mapping[str, float] | None]) -> None:
    """Compose `config_name`, call `task` with plain resolved values, and end the process with the right exit code. With
    `-m` the task runs once for each cell; the metrics that it returns fill the sweep's table.
    """
    begun = False
    for name in STORE_NAMES:
        if not os.environ.get(name, "").strip():  # an empty variable counts as none, as it does for MLflow
            os.environ.pop(name, None)
    os.environ.pop(VERBOSE, None)
    if set(sys.argv[1:]).intersection(TELLING_ALL):  # all processes of the command know it then; Hydra does not
        os.environ[VERBOSE] = "1"
    if not any(map(os.isatty, (0, 1, 2))):
        os.environ.setdefault("COLUMNS", COLUMNS)
    arguments = [argument for argument in sys.argv[1:] if argument not in TELLING_ALL]
    sys.argv[1:] = sorted(arguments, key=lambda each: each not in SWEEPING)  # Hydra takes -m before or after them

    def resolved(cfg: DictConfig) -> None:
        nonlocal begun
        begun = True

        def cell() -> Mapping[str, float] | None:
            values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
            refuse_targets(values)
            return task(values)

        if sweep.in_cell():
            sweep.run_cell(cell)
            return
        try:
            with unswallowed():
                cell()
        except Exception as error:
            if isinstance(error, UsageError):
                _leave_nothing(output_dir())
            raise sweep.Stopped(error) from None

    error: BaseException | None = None
    with interruptible():
        try:
            if config_name not in SHARED:
                ranks.check_single(f"specdec.{config_name}")
            extend_search_path()
            if "--version" in arguments:
                print(f"specdec {__version__}")
            elif not ASKING.isdisjoint(arguments):
                print(help_page(config_name, [each for each in arguments if each not in (*ASKING, *SWEEPING)]))
            else:
                with unswallowed():
                    hydra.main(version_base="1.3", config_path=config_dir(), config_name=config_name)(resolved)()
        except sweep.Stopped as stopped:
            error = stopped.error
        except (Exception, KeyboardInterrupt) as raised:
            error = raised
        try:
            code = sweep.conclude(error)
        except SpecdecError as fault:
            error, code = error or fault, fault.exit_code
    os.environ.pop(VERBOSE, None)
    if error is not None:
        known = ending(error)
        if known is None and code == sweep.FAILED_CELLS:
            first_line = (str(error).splitlines() or [""])[0]
            known = f"The sweep broke off: {type(error).__name__}: {first_line}", code
        elif not begun and (known is None or isinstance(error, OSError) and error.errno):
            known = not_begun(error)
        if known is None:
            raise error
        sentence, code = known
        print(f"specdec: {sentence}", file=sys.stderr)
        sys.stdout.flush()
    if code or error is not None:
        raise SystemExit(code)


def _leave_nothing(folder: Path) -> None:
    """Remove what Hydra wrote to the folder of a command that was refused, and the folder where Hydra named it."""
    if not {path.name for path in folder.iterdir()} <= {".hydra", LOG}:
        return  # a run has begun there, or an earlier one stands there
    for handler in logging.getLogger().handlers[:]:
        if isinstance(handler, logging.FileHandler) and Path(handler.baseFilename) == folder / LOG:
            logging.getLogger().removeHandler(handler)  # nothing is to be written there again
            handler.close()
    shutil.rmtree(folder / ".hydra", ignore_errors=True)
    (folder / LOG).unlink(missing_ok=True)
    if not _names_folder():
        with suppress(OSError):  # until a folder is not empty
            for empty in (folder, folder.parent, folder.parent.parent):
                empty.rmdir()


def _names_folder() -> bool:
    """Return True if the command line named the folder of the run."""
    return any(str(each).lstrip("+").startswith("hydra.run.dir=") for each in HydraConfig.get().overrides.hydra)


def output_dir() -> Path:
    """Return the absolute folder that this run, or this cell of a sweep, writes to (call inside a Hydra task)."""
    return Path(HydraConfig.get().runtime.output_dir)


def earlier_runs() -> EarlierRuns | None:
    """Return where runs may stand that this one goes on with (call inside a Hydra task): beside its own folder, unless
    the command line names the folder; for a cell, in the sweep that is resumed.
    """
    if sweep.in_cell():
        resumed = sweep.shared()["resumed"]
        return EarlierRuns(Path(resumed), sweep=True) if resumed else None
    return None if _names_folder() else EarlierRuns(output_dir().parent.parent)


def cell_label(without: Sequence[str] = ()) -> str:
    """Return a folder's name for this cell of a sweep, of the overrides that the sweep varies, `without` some keys; ""
    outside of sweeps (call inside a Hydra task).
    """
    if not sweep.in_cell():
        return ""
    swept = set(sweep.shared()["swept"]) - set(without)
    given = [str(each).lstrip("+") for each in HydraConfig.get().overrides.task]
    label = ",".join(each for each in given if each.partition("=")[0] in swept)
    safe = re.sub(r"[^\w.=,-]+", "_", label)
    if safe == label and len(safe) <= LONGEST_LABEL:
        return safe
    # Other overrides may read the same without their punctuation.
    return f"{safe[:LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def help_page(config_name: str, overrides: Sequence[str]) -> str:
    """Return the page behind `--help` for the configuration that `overrides` choose: the groups, and every key with its
    value and its comment, as the YAML files have them. Hydra's own page takes seconds to list the groups, and knows no
    comments. Raises Exception: a composition error, which Hydra and OmegaConf raise as some ten types.
    """
    with hydra.initialize_config_dir(version_base="1.3", config_dir=config_dir()):
        composed = hydra.compose(config_name, overrides=list(overrides), return_hydra_config=True)
    folders = [Path(config_dir()), *conf_folders().values()]
    keys = [_file_text(folders, f"{config_name}.yaml", "")]  # then each chosen file, under the key of its values
    for group, chosen in composed.hydra.runtime.choices.items():
        if not chosen or str(group).partition("/")[0] == _INTERNAL:
            continue
        folder, _, package = str(group).partition("@")
        key = (package or folder).removeprefix("_global_.").replace("/", ".")
        if text := _file_text(folders, f"{folder}/{chosen}.yaml", "  "):
            keys.append(f"{key}:  ({folder}={chosen})\n{text}")
    names: dict[str, list[str]] = {}  # of the files of each group, those of plugins too
    for above in folders:
        for path in sorted(above.rglob("*.yaml")):
            inside = path.parent.relative_to(above).as_posix()
            if inside != "." and inside.partition("/")[0] != _INTERNAL:
                names.setdefault(inside, []).append(path.stem)
    groups = "\n".join(f"{name}: {', '.join(stems)}" for name, stems in sorted(names.items()))
    page = Template(composed.hydra.help.template)
    return page.safe_substitute(APP_CONFIG_GROUPS=groups + "\n", CONFIG="\n\n".join(keys))


def _file_text(folders: Sequence[Path], name: str, indent: str) -> str:
    """Return a file's keys and comments with those of the files that it extends, without its list of defaults."""
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        return ""
    text = path.read_text(encoding="utf-8")
    extended = [
        _file_text(folders, f"{Path(name).parent.as_posix()}/{each}.yaml", indent)
        for each in (yaml.safe_load(text) or {}).get("defaults", ())
        if isinstance(each, str) and each != "_self_"
    ]
    lines, left_out = [], False
    for line in text.splitlines():
        if line[:1] not in ("", " ", "-", "#"):
            left_out = line.startswith(("defaults:", f"{_INTERNAL}:"))
        if not left_out and line.strip() and line != "# @package _global_":
            lines.append(indent + line)
    return "\n".join([*filter(None, extended), *lines])


class ConsoleHandler(logging.StreamHandler):
    """Writes log lines to the present `sys.stderr`, which a rich progress bar replaces, to print them above the bar;
    without details: who asks for them has them printed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name != DETAILS and bool(super().filter(record))

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        pass
