"""A folder of compiled passes, one file each, which can be deleted at any time.

A file is named after everything that its machine code depends on, so that a change of any of it is another file. Files
are written whole or not at all. They hold code that runs when they are read: trust the folder as you trust a program.
"""

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

logger = logging.getLogger(__name__)


class PackageFolder:
    """A folder of packages, made when it is needed; where none is wanted, nothing is kept. Making what one model lacks
    may take `seconds`. The folder at `path` ends with the process where the wanted one cannot be written.
    """

    def __init__(self, wanted: str | Path | None, seconds: float = math.inf) -> None:
        self._wanted, self.seconds = wanted, seconds

    @cached_property
    def path(self) -> Path:
        if self._wanted is not None:
            folder = Path(self._wanted)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    return folder
            except OSError as error:
                why = f"({error.strerror}), so compiled passes are not kept and the next run compiles again."
                logger.warning("target.compile_cache=%s cannot be written %s", folder, why)
        self._temporary = tempfile.TemporaryDirectory(prefix="specdec-compiled-")
        return Path(self._temporary.name)

    def package(self, name: str, depends: Mapping[str, Any], make: Callable[[Path], object]) -> Path:
        """Return the file of a package, whose name begins with `name`; where there is none, `make` now writes it, a
        library, to a path. `depends` is all that the package depends on, as JSON.
        """
        path = self.file(name, depends)
        if _sound(path):
            return path
        lock = path.with_suffix(".lock")
        with FileLock(lock):  # other workers of a run want the same one
            part = path.with_name(f".{path.stem}.{os.getpid()}.so")
            try:
                if not _sound(path):
                    make(part)
                    with part.open("ab") as file:
                        file.write(hashlib.sha256(part.read_bytes()).digest())
                    os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
                lock.unlink(missing_ok=True)  # who waits for it finds the package
        return path

    def remember(self, depends: Mapping[str, Any], fact: Any) -> None:
        """Keep a fact, as JSON, about what depends on these values."""
        part = self.path / f".{_digest(depends)}.{os.getpid()}"
        part.write_text(json.dumps(fact), encoding="utf-8")
        os.replace(part, self.path / f"{_digest(depends)}.json")

    def recall(self, depends: Mapping[str, Any]) -> Any:
        """Return the fact that was kept about what depends on these values; None without one. Makes no folder."""
        if self._wanted is None:
            return None
        try:
            return json.loads((Path(self._wanted) / f"{_digest(depends)}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # none, or a damaged one

    def has(self, file: str | Path) -> bool:
        """Return whether a package of this file name is there, and whole."""
        return _sound(self.path / file)

    def file(self, name: str, depends: Mapping[str, Any]) -> Path:
        """Return the file of a package, whether it is there or not (see `package`)."""
        return self.path / f"{name}-{_digest(depends)}.so"

    @property
    def size(self) -> int:
        """The bytes of all packages."""
        return sum(file.stat().st_size for file in self.path.glob("*.so"))


def _digest(depends: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _sound(path: Path) -> bool:
    """Return whether a file is there, and ends with its own checksum, which loaders of libraries do not read."""
    if not path.is_file():
        return False
    content = memoryview(path.read_bytes())  # whose parts are no copies
    return content[-32:] == hashlib.sha256(content[:-32]).digest()


def machine_identity() -> dict[str, Any]:
    """Return what machine code depends on: versions, the processor's instructions, the number of threads."""
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": dict(torch.cpu.get_capabilities()),
        "threads": torch.get_num_threads(),  # the products are divided among so many when they are compiled
    }
