"""Planted bugs on disk: a header in plain lines, then a unified diff. Reads, checks and applies them, without git.

Knows nothing of how tests are run.
"""

import ast
import re
from collections.abc import Iterator, Mapping
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
_FIELDS = ("Bug", "Killed by")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PatchError(ValueError):
    """A patch that cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class Hunk:
    """One change of a file: the lines from number `line` on, counted from 1, before and after."""

    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class PlantedBug:
    """A bug, and the tests that must notice it.

    Attributes:
        name: AREA/NAME, the patch's path without its ending.
        bug: one sentence that says what is wrong in the patched code.
        killed_by: pytest ids of tests of which at least one must fail.
        changes: hunks of each file, by its path from the top of the repository.
    """

    name: str
    bug: str
    killed_by: tuple[str, ...]
    changes: Mapping[str, tuple[Hunk, ...]]

    def patched(self, root: Path) -> dict[str, str]:
        """Return the new text of each changed file of the tree at `root`; nothing is written.

        Raises:
            PatchError: the patch does not apply.
        """
        return {name: self._applied(root / name, name, hunks) for name, hunks in self.changes.items()}

    def _applied(self, path: Path, name: str, hunks: tuple[Hunk, ...]) -> str:
        if not path.is_file():
            raise PatchError(
                f"{self.name} no longer applies: {name} does not exist; move the patch along or delete it."
            )
        lines = path.read_text(encoding="utf-8").split("\n")
        moved = 0
        for hunk in hunks:
            size, expected = len(hunk.before), hunk.line - 1 + moved
            places = [place for place in range(len(lines)) if tuple(lines[place : place + size]) == hunk.before]
            if not places:
                raise PatchError(
                    f"{self.name} no longer applies to {name} near line {hunk.line}: plant the bug again in the code "
                    "as it is now."
                )
            place = min(places, key=lambda found: abs(found - expected))
            lines[place : place + size] = hunk.after
            moved += len(hunk.after) - size
        return "\n".join(lines)


def planted_bugs(folder: Path) -> list[PlantedBug]:
    """Return all bugs of AREA folders below `folder`, sorted by name.

    Raises:
        PatchError: a file that cannot be read as one.
    """
    return [read_patch(path) for path in sorted(folder.glob("*/*.patch"))]


def read_patch(path: Path) -> PlantedBug:
    """Read one patch.

    Raises:
        PatchError: an incomplete header, or a diff that is none or does more than change lines of files.
    """
    name = f"{path.parent.name}/{path.stem}"
    lines = path.read_text(encoding="utf-8").split("\n")
    begin = next((i for i, line in enumerate(lines) if line.startswith(("diff --git ", "--- "))), None)
    if begin is None:
        raise PatchError(f"{name}.patch has no diff: add the output of git diff below its header.")
    header = _header(lines[:begin], name)
    tests = tuple(header.get("Killed by", ()))
    bug = " ".join(header.get("Bug", ()))
    if not bug:
        raise PatchError(f'{name}.patch does not say what is wrong: begin with "Bug: " and a sentence.')
    if not tests:
        raise PatchError(f'{name}.patch does not name the tests that notice it: add "Killed by: " and their ids.')
    return PlantedBug(name, bug, tests, _changes(lines[begin:], name))


def missing_tests(bug: PlantedBug, root: Path) -> list[str]:
    """Return the tests named by a bug that the tree at `root` does not have, read from the files without running them.
    Parameters in brackets are not looked at.
    """
    missing = []
    for test in bug.killed_by:
        file, *names = test.split("[")[0].split("::")
        path = root / file
        if not names or not path.is_file() or not _defines(ast.parse(path.read_text(encoding="utf-8")), names):
            missing.append(test)
    return missing


def _defines(scope: ast.AST, names: list[str]) -> bool:
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.iter_child_nodes(scope) if isinstance(node, kinds) and node.name == names[0]]
    return bool(found) and (len(names) == 1 or _defines(found[-1], names[1:]))


def _header(lines: list[str], name: str) -> dict[str, list[str]]:
    """Return the lines of each field; a line that begins no field goes on with the one before it."""
    fields: dict[str, list[str]] = {}
    current = ""
    for line in filter(None, map(str.strip, lines)):
        key, colon, text = line.partition(":")
        if colon and key in _FIELDS:
            current, line = key, text.strip()
        elif not current:
            raise PatchError(f'{name}.patch begins with "{line}": its header has the fields {", ".join(_FIELDS)}.')
        if line:
            fields.setdefault(current, []).append(line)
    return fields


def _changes(lines: list[str], name: str) -> dict[str, tuple[Hunk, ...]]:
    changes: dict[str, tuple[Hunk, ...]] = {}
    file = ""
    rest = iter(lines)
    for line in rest:
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ").split("\t")[0].removeprefix("b/")
        elif line.startswith("@@ "):
            found = _HUNK.match(line)
            if found is None or not file:
                raise PatchError(f"{name}.patch is not a unified diff at {line!r}: make it with git diff.")
            before, after = int(found[2] or 1), int(found[3] or 1)
            hunk = _hunk(rest, int(found[1]), before, after)
            if len(hunk.before) != before or len(hunk.after) != after or not before:
                raise PatchError(f"{name}.patch is cut or edited at {line!r}: make it again with git diff.")
            changes[file] = (*changes.get(file, ()), hunk)
    if not changes or "/dev/null" in changes:
        raise PatchError(f"{name}.patch should change lines of existing files: make it with git diff.")
    return changes


def _hunk(rest: Iterator[str], line: int, before: int, after: int) -> Hunk:
    old: list[str] = []
    new: list[str] = []
    while len(old) < before or len(new) < after:
        text = next(rest, None)
        if text is None or text[:1] not in ("", " ", "-", "+", "\\"):
            break
        if text[:1] in ("", " ", "-"):
            old.append(text[1:])
        if text[:1] in ("", " ", "+"):
            new.append(text[1:])
    return Hunk(line, tuple(old), tuple(new))
