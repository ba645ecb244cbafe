"""The version of the code that decodes: a hash of the package's own files. Light, so that commands can ask at once."""

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


@cache
def code_hash(package: Path = PACKAGE) -> str:
    """Return the sha256 over the names and contents of the package's Python files, in order.

    The analysis, which reads results and makes none, has no part in it, wherever it is installed. Read once for each
    process, so that it is the code that runs, and not what an editor made of it since.
    """
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).as_posix()
        if not inside.startswith("analysis/"):
            digest.update(f"{inside}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
