"""The files of a published checkpoint: a folder or a hub id, its config and its tensors, read one at a time. Pickles
are never opened: `python -m specdec.convert` is the explicit step that reads one.
"""

import copy
import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdec import hub
from specdec.errors import ModelLoadError, in_one_line

T = TypeVar("T")
logger = logging.getLogger(__name__)

KEY = "drafter.model"
CONVERT = "python -m specdec.convert"  # rewrites a pickle
SPECULATORS = "speculators_model_type"  # the key of a config that the library `speculators` wrote
LARGEST = 2**31  # of a number in a config: no tensor is larger along one axis
PICKLES = (".pt", ".bin", ".pth", ".ckpt")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_WANTED = ["config.json", "*.safetensors", "*.safetensors.index.json"]  # of a repository on the hub


class CheckpointFiles:
    """The config and the tensors of a checkpoint; the headers are read at once, a tensor when it is asked for."""

    def __init__(self, name: str, folder: Path, pickles: Iterable[str] = ()) -> None:
        """Raises ModelLoadError: a damaged file, a missing shard, a tensor that two files hold."""
        self.name, self.folder = name, folder  # for a hub id a folder of the local cache
        own_pickles = (path.name for path in folder.glob("*") if path.suffix in PICKLES)
        self.pickles = tuple(sorted({*pickles, *own_pickles}))  # files that may hold weights and were not read
        self.config = self._read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        self.tensors: dict[str, tuple[int, ...]] = {}  # name -> shape, over all safetensors files
        self._places: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    for own in file.keys():
                        first = self._places.setdefault(own, path)
                        twice = f"has the tensor {own} in {first.name} and in {path.name}: keep one."
                        self.refuse_if(first != path, twice)
                        self.tensors[own] = tuple(file.get_slice(own).get_shape())
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(
                    f"{self} has a damaged file {path.name}: {in_one_line(error)}; fetch it again."
                ) from None
        there = {place.name for place in folder.glob("*.safetensors")}  # a place is a name, never a path
        for path in sorted(folder.glob("*.safetensors.index.json")):
            places: Any = self._read_json(path).get("weight_map")
            self.refuse_if(not isinstance(places, dict), f"has a {path.name} without a weight_map.")
            absent = [f"{each:.80}" for each in sorted({str(place) for place in places.values()} - there)]
            self.refuse_if(absent, f"lacks {listed(absent)}, which {path.name} names: get the whole checkpoint.")
            missing = sorted(own for own in places if own not in self.tensors)
            self.refuse_if(missing, f"lacks the tensors {listed(missing)}, which {path.name} names.")

    def __str__(self) -> str:
        return f"Checkpoint {KEY}={self.name}"

    def refuse_if(self, fault: object, sentence: str) -> None:
        """Raise ModelLoadError where there is a fault; its `sentence` has these files as its subject."""
        if fault:
            raise ModelLoadError(f"{self} {sentence}")

    def tensor(self, name: str) -> Tensor:
        """Read one tensor, on the CPU and in its own dtype; KeyError if there is none of this name."""
        return self.read([name])[name]

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Read several tensors, each file opened once; KeyError if one is not there."""
        places = {name: self._places[name] for name in names}
        with ExitStack() as stack:
            files = {place: stack.enter_context(safe_open(place, framework="pt")) for place in set(places.values())}
            return {name: files[place].get_tensor(name) for name, place in places.items()}

    def below(self, begins: str | tuple[str, ...]) -> "CheckpointFiles":
        """Return the same files without the tensors whose names begin otherwise: those of a whole target, for one."""
        part = copy.copy(self)
        part.tensors = {name: shape for name, shape in self.tensors.items() if name.startswith(begins)}
        return part

    def setting(self, key: str, kind: type[T], default: T | None = None, config: Mapping[str, Any] | None = None) -> T:
        """Return a value of the config, or of the part `config` of it; `default` where it is missing or null. Raises
        ModelLoadError: the key is missing and has no default, or its value is not of this kind.
        """
        value = (self.config if config is None else config).get(key)
        value = default if value is None else value
        if value is None:
            raise ModelLoadError(f"{self} has no {key} in its config.json, which this format needs: add it.")
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise ModelLoadError(f"{self} has {key}={value!r} in its config.json: it should be a {kind.__name__}.")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ModelLoadError(f"{self} has a {key} in its config.json that is larger than any size: correct it.")
        return value

    def rows(self, name: str) -> int | None:
        """Return the first size of a tensor; None where there is none of this name."""
        return self.tensors[name][0] if name in self.tensors else None

    def numbered(self, pattern: re.Pattern[str], prefix: str = "") -> list[tuple[int, ...]]:
        """Return the numbers in the names of the tensors that match a pattern whole, behind a beginning of all; names
        with numbers beyond any that so few tensors reach are left out.
        """
        names = (name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix))
        numbers = (tuple(map(int, match.groups())) for match in map(pattern.fullmatch, names) if match)
        return [places for places in numbers if max(places) < len(self.tensors)]

    def check_parts(self, key: str, number: int) -> None:
        """Raise ModelLoadError for more layers or stages than tensors, before anything of that size is made."""
        said = f"has {key}={number:,} in its config.json and {len(self.tensors)} tensors: get the whole checkpoint."
        self.refuse_if(number > len(self.tensors), said)

    @property
    def commit(self) -> str | None:
        """The commit of a hub id; None for a folder."""
        return self.folder.name if self.folder.parent.name == "snapshots" else None

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelLoadError(f"{self} has a {path.name} that cannot be read: {in_one_line(error)}.") from None
        self.refuse_if(not isinstance(values, dict), f"has a {path.name} that is not a JSON object.")
        return values


def open_checkpoint(name: str, revision: str | None = None) -> CheckpointFiles:
    """Open a published checkpoint: a folder, or a hub id (at a branch, tag or commit), of which only config and
    safetensors are fetched. Raises ModelLoadError: nothing there, a file, damaged files, or a hub id out of reach.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return CheckpointFiles(name, path)
    if path.is_file():
        if path.suffix in PICKLES:
            raise ModelLoadError(
                f"Checkpoint {KEY}={name} is a pickle, which is never opened here: convert it with "
                f"`{CONVERT} {path}` and give its folder."
            )
        raise ModelLoadError(f"Checkpoint {KEY}={name} is a file: give the folder that holds it and its config.json.")
    if not _HUB_ID.fullmatch(name) or name.endswith((".safetensors", *PICKLES)):
        raise ModelLoadError(f"Checkpoint {KEY}={name} does not exist: give a folder or a hub id.")
    offline = hub.settle() or "it does not answer"

    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_WANTED))
    except LocalEntryNotFoundError:
        raise ModelLoadError(f"Checkpoint {KEY}={name} cannot be loaded {hub.not_cached(name, offline)}") from None
    except Exception as error:  # the hub's client and its transport raise some ten unrelated types here
        raise ModelLoadError(f"Checkpoint {KEY}={name} cannot be fetched: {in_one_line(error)}.") from None
    pickles: list[str] = []
    if not any(folder.glob("*.safetensors")):
        try:
            pickles = [file for file in HfApi().list_repo_files(name) if file.endswith(PICKLES)]
        except Exception as error:  # likewise; the sentence about what was found will do
            logger.debug("the files of %s cannot be listed: %s", name, error)
    return CheckpointFiles(name, folder, pickles)


def pickles_sentence(files: CheckpointFiles) -> str:
    """Return what to do with the pickles of a checkpoint, one command that can be copied."""
    if (files.folder / files.pickles[0]).is_file():
        return f"convert it with `{CONVERT} {files.folder / files.pickles[0]}`"
    folder = files.name.rpartition("/")[2]
    fetch = f"hf download {files.name} config.json {files.pickles[0]} --local-dir {folder}"
    return f"convert it with `{fetch} && {CONVERT} {Path(folder) / files.pickles[0]}` and give {KEY}={folder}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first few of some names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
