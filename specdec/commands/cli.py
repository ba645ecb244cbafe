"""Runs a Hydra task as a well-behaved command: one sentence, no traceback, and DESIGN 4's exit codes.

Knows Hydra; knows nothing of decoding. Imports stay light, so `--help` and a bad name answer at once.
"""

import errno
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from specdec.config import config_dir
from specdec.errors import EnvironmentFault, Interrupted, SpecdecError, UsageError, is_out_of_memory
from specdec.registry import near_misses

# Hydra's own handler would print its trace helper and always exit with 1; we want its exceptions as they are.
os.environ["HYDRA_FULL_ERROR"] = "1"
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
MEMORY_REMEDY = (
    "Try target.dtype=bfloat16, fewer measurement.max_new_tokens or a smaller model (in training: a smaller "
    "recipe.data.micro_batch_tokens)."
)


def options(group: str) -> list[str]:
    """Names of the YAML files of a config group, search path included (call inside a Hydra task)."""
    from hydra.core.global_hydra import GlobalHydra

    return list(GlobalHydra.instance().config_loader().get_group_options(group))


def main(config_name: str, task: Callable[[Mapping[str, Any]], Mapping[str, float] | None]) -> None:
    """Compose `config_name`, call `task` with plain resolved values, end the process with the right code.

    With `-m` the task runs once per cell; what it returns (`speedup`, `tokens_per_round`) fills the table.
    """
    import hydra
    from omegaconf import DictConfig, OmegaConf

    from specdec.commands import sweep

    def resolved(cfg: DictConfig) -> None:
        def cell() -> Mapping[str, float] | None:
            values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
            assert isinstance(values, dict)
            return task({str(key): value for key, value in values.items()})

        if sweep.in_cell():
            sweep.run_cell(cell, ending)
            return
        try:
            cell()
        except Exception as error:
            raise sweep.Stopped(error) from None

    signal.signal(signal.SIGTERM, _raise_interrupted)
    error: BaseException | None = None
    try:
        hydra.main(version_base="1.3", config_path=config_dir(), config_name=config_name)(resolved)()
    except sweep.Stopped as stopped:
        error = stopped.error
    except (Exception, KeyboardInterrupt) as raised:
        error = raised
    try:
        code = sweep.conclude(error)
    except SpecdecError as fault:
        error, code = error or fault, fault.exit_code
    if error is not None:
        known = ending(error)
        if known is None and code == sweep.FAILED_CELLS:
            first_line = (str(error).splitlines() or [""])[0]
            known = f"The sweep broke off: {type(error).__name__}: {first_line}", code
        if known is None:
            raise error
        _end(*known)
    if code:
        raise SystemExit(code)


def output_dir() -> Path:
    """Absolute folder that this run, or this cell of a sweep, writes to (call inside a Hydra task)."""
    from hydra.core.hydra_config import HydraConfig

    return Path(HydraConfig.get().runtime.output_dir)


def ending(error: BaseException) -> tuple[str, int] | None:
    """Sentence and exit code for whatever can end a command; None for a bug, which deserves a traceback."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if isinstance(error, SpecdecError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted; what was finished is on disk.", 130
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return _composition_sentence(error), UsageError.exit_code
    if isinstance(error, YAMLError):
        return f"A YAML file cannot be read: {_one_line(error)}", UsageError.exit_code
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"The disk is full: {_one_line(error)}", EnvironmentFault.exit_code
    if is_out_of_memory(error):
        return f"Memory ran out: {_one_line(error)} {MEMORY_REMEDY}", EnvironmentFault.exit_code
    return None


class ConsoleHandler(logging.StreamHandler):
    """Log lines on today's stderr: a rich progress bar replaces it, and prints them above the bar."""

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        pass


def _raise_interrupted(signum: int, frame: FrameType | None) -> None:
    raise Interrupted("Stopped by SIGTERM; what was finished is on disk.", 143)


def _end(sentence: str, code: int) -> None:
    print(f"specdec: {sentence}", file=sys.stderr)
    sys.stdout.flush()
    raise SystemExit(code)


def _composition_sentence(error: Exception) -> str:
    """One sentence for what Hydra or OmegaConf found wrong in the command line or a YAML file."""
    missing = getattr(error, "missing_cfg_file", None)
    available = getattr(error, "options", None)
    if missing and available:
        group, _, name = str(missing).rpartition("/")
        names = ", ".join(available)
        return f"Unknown {group} {name!r}.{near_misses(name, available)} The options are: {names}."
    override = getattr(error, "override", None)
    if override is not None:  # does not parse
        why = _one_line(error).removeprefix(f"Error parsing override '{override}' ")
        return f"The argument {override!r} is not of the form KEY=VALUE: {why}"
    cause = error if hasattr(error, "full_key") else error.__cause__
    if "not in struct" in str(cause):
        return _unknown_key(cause)
    text = _one_line(cause or error)
    several = re.match(r"Ambiguous value for argument '([^=']+)=([^']*)'", text)
    if several:
        key, values = several.groups()
        return f"{key} has several values: add -m to sweep over them, or write [{values}] for a list."
    twice = re.match(r"Multiple values for ([^\s.]+)\.", text)
    if twice:
        return f"{twice[1]} is chosen twice: if it has a default, write {twice[1]}=NAME without the plus."
    return text


def _unknown_key(cause: Any) -> str:
    """Answers `structure.k=4` with the keys of the structure that was chosen."""
    key, node = str(cause.full_key), getattr(cause, "parent_node", None)
    names = [str(name) for name in node or () if name not in ("name", "hydra")]
    group, _, leaf = key.rpartition(".")
    if not group:
        return f"Unknown key {key}: the configuration has no such key.{near_misses(leaf, names)}"
    choice = node.get("name") if node is not None else None
    owner = f"{group} {choice!r}" if choice else group
    return f"Unknown key {key}: {owner} has the keys {', '.join(names) or '(none)'}."


def _one_line(error: BaseException) -> str:
    text = re.sub(r"See https://\S+ for details\.?", "", str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if text.endswith((".", "?", "!")) else text + "."
