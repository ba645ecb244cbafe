"""Planted bugs on disk: a header in plain lines, then the output of `git diff`, which git applies.

Knows nothing of how tests are run.
"""

import ast
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

AREAS = (
    "verifiers",
    "structures",
    "decoding",
    "drafters",
    "models",
    "theory",
    "acceptance",
    "account",
    "measurement",
    "replay",
)
_HEADER = re.compile(r"Bug: (?P<bug>.+?)\nKilled by: (?P<tests>.+?)\n\s*\n(diff --git |--- )", re.DOTALL)


class PatchError(ValueError):
    """A patch that cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class PlantedBug:
    """A bug, and the tests that must notice it.

    Attributes:
        path: of the patch.
        name: AREA/NAME, its path without the ending.
        bug: one sentence that says what is wrong in the patched code.
        killed_by: pytest ids of tests of which at least one must fail.
    """

    path: Path
    name: str
    bug: str
    killed_by: tuple[str, ...]

    def files(self) -> list[str]:
        """Return the files that it changes, by their paths from the top of the repository."""
        return [line.split("\t")[2] for line in self._git(self.path.parent, "--numstat").splitlines()]

    def plant(self, tree: Path) -> None:
        """Change the files of a source tree; a file that has several names keeps its text under the others.

        Raises:
            PatchError: the patch does not apply.
        """
        self._git(tree)

    def check(self, tree: Path) -> None:
        """Do what `plant` does and write nothing."""
        self._git(tree, "--check")

    def _git(self, tree: Path, *options: str) -> str:
        alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}  # of no repository around the tree
        command = ["git", "apply", *options, str(self.path.resolve())]
        ended = subprocess.run(command, cwd=tree, env=alone, capture_output=True, text=True)
        if ended.returncode:
            why = " ".join(ended.stderr.split())
            raise PatchError(f"{self.name} no longer applies: plant the bug again in the code as it is now ({why}).")
        return ended.stdout


def planted_bugs(folder: Path) -> list[PlantedBug]:
    """Return all bugs of AREA folders below `folder`, sorted by name.

    Raises:
        PatchError: a file that cannot be read as one.
    """
    return [read_patch(path) for path in sorted(folder.glob("*/*.patch"))]


def read_patch(path: Path) -> PlantedBug:
    """Read the header of one patch.

    Raises:
        PatchError: it is not complete, or no diff stands below it.
    """
    header = _HEADER.match(path.read_text(encoding="utf-8"))
    if header is None:
        raise PatchError(
            f'{path.parent.name}/{path.name} should begin with "Bug: " and a sentence, then "Killed by: " and ids of '
            "tests, one a line, then an empty line and the output of git diff."
        )
    bug, tests = " ".join(header["bug"].split()), tuple(line.strip() for line in header["tests"].splitlines())
    return PlantedBug(path, f"{path.parent.name}/{path.stem}", bug, tests)


def missing_tests(bug: PlantedBug, root: Path) -> list[str]:
    """Return the tests named by a bug that the tree at `root` does not have, read from the files without running them.

    Parameters in brackets are not looked at.
    """
    missing = []
    for test in bug.killed_by:
        file, name = test.split("[")[0].split("::")
        body = ast.parse((root / file).read_text(encoding="utf-8")).body if (root / file).is_file() else []
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in body):
            missing.append(test)
    return missing
