"""Runs a Hydra task as a well-behaved command: one sentence instead of a traceback, and DESIGN 4's exit codes.

Knows Hydra; knows nothing of decoding. Imports stay light, so `--help` and a bad name answer at once.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from specdec.errors import Interrupted, SpecdecError, UsageError
from specdec.registry import near_misses

# Hydra's own handler would print its trace helper and always exit with 1; we want its exceptions as they are.
os.environ["HYDRA_FULL_ERROR"] = "1"
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def config_dir() -> str:
    """Absolute folder of the YAML files: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return str(folder)
    raise UsageError(f"The configuration folder is missing: looked for conf/config.yaml in and beside {package}.")


def options(group: str) -> list[str]:
    """Names of the YAML files of a config group, search path included (call inside a Hydra task)."""
    from hydra.core.global_hydra import GlobalHydra

    return list(GlobalHydra.instance().config_loader().get_group_options(group))


def main(config_name: str, task: Callable[[Mapping[str, Any]], None]) -> None:
    """Compose `config_name`, call `task` with plain resolved values, and end the process with the right code."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def resolved(cfg: DictConfig) -> None:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        assert isinstance(values, dict)
        task({str(key): value for key, value in values.items()})

    signal.signal(signal.SIGTERM, _raise_interrupted)
    try:
        hydra.main(version_base="1.3", config_path=config_dir(), config_name=config_name)(resolved)()
    except SpecdecError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("Interrupted; what was finished is on disk.", 130)
    except (HydraException, OmegaConfBaseException) as error:
        _end(_composition_sentence(error), 2)


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
        return f"Unknown {group} {name!r}.{near_misses(name, available)} The options are: {', '.join(available)}."
    text = " ".join(str(error.__cause__ or error).split())
    key = getattr(error, "full_key", None)
    if "not in struct" in text and key:
        return f"Unknown key {key}: nothing in the configuration has this name; `--cfg job` lists the keys."
    struct = re.search(r"Could not override '([^']+)'", text)
    if struct and "not in struct" in str(error.__cause__ or ""):
        return f"Unknown key {struct[1]}: nothing in the configuration has this name; `--cfg job` lists the keys."
    return text if text.endswith((".", "?", "!")) else text + "."
