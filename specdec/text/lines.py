"""Lines of files that other programs wrote: packed with gzip or not, with a byte order mark or without, one JSON value
each. They are read one by one, so that a file may be larger than memory. Lines that cannot be used are collected, so
that one message names all of them, or they are left out on request. Replay, import and prompts read with this.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unicodedata import category

from specdec.errors import UsageError

GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SHOWN = 10  # lines that a message lists; of the others it gives the number


class BadLine(UsageError):
    """A line that cannot be used; the others may be. The sentence begins with file and line."""


class LineFaults:
    """The lines of one file that cannot be used, `number` of them: they are left out, or `settle` refuses the file."""

    def __init__(self, skip: bool) -> None:
        self.skip, self.number = skip, 0
        self._shown: list[str] = []

    @contextmanager
    def line(self) -> Iterator[None]:
        """Keep the BadLine that the block raises; the rest of the block is left out."""
        try:
            yield
        except BadLine as fault:
            self.number += 1
            if len(self._shown) < SHOWN:
                self._shown.append(str(fault).removesuffix("."))

    def listed(self) -> str:
        """Return the first sentences and the number of the rest, without a full stop."""
        rest = self.number - len(self._shown)
        return "; ".join([*self._shown, *([f"and {rest:,} more lines"] if rest else [])])

    def settle(self, option: str | None) -> None:
        """Refuse the file, in one UsageError that names them, if there are any and they are not to be left out. The
        `option` is what leaves them out, such as `--skip-bad`; None where nothing does.
        """
        if self.number and not self.skip:
            these = "it" if self.number == 1 else f"these {self.number:,} lines"
            remedy = f"; put {these} right, or leave {these} out with {option}" if option else ""
            raise UsageError(f"{self.listed()}{remedy}.")

    def notes(self) -> list[str]:
        """Return the sentence that says what was left out; none if nothing was."""
        if not self.number:
            return []
        lines = "1 line that cannot be used is" if self.number == 1 else f"{self.number:,} bad lines are"
        return [f"{lines} left out: {self.listed()}."]


class Line(NamedTuple):
    """One line of JSON: "file:line", its number from 1, and its value."""

    where: str
    number: int
    value: Any


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn whatever goes wrong with a file, gzip or not, into a UsageError that calls the file `what`."""
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"{what} does not exist.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"{what} is a damaged gzip file: fetch it again.") from None
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}.") from None


@contextmanager
def unpacked(path: Path, what: str) -> Iterator[tuple[Any, BinaryIO]]:
    """Give the content of a file, gzip or not, as a stream, and the file as it is. UsageError: see `readable`."""
    if "\0" in str(path):  # the operating system cannot even be asked
        raise UsageError(f"{what} cannot be read: its name has a null character.")
    with readable(what), path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        yield gzip.GzipFile(fileobj=file) if packed else file, file


def file_digest(path: Path, what: str) -> str:
    """Return the sha256 of a file as it lies on disk. UsageError as `readable`."""
    with readable(what), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_lines(path: Path, what: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of every line, without a byte order mark, of a file as `unpacked` opens it."""
    with unpacked(path, what) as (content, _):
        for number, raw in enumerate(content, 1):
            yield number, raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw


def filled_lines(path: Path, what: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file as `file_lines` does, and refuse one with none that is not blank."""
    empty = True
    for number, raw in file_lines(path, what):
        empty = empty and not raw.strip()
        yield number, raw
    if empty:
        raise UsageError(f"{what} is empty: give one with a record in it.")


def decoded(where: str, raw: bytes, remedy: str) -> str:
    """Return the text of a line, without its end. BadLine if it is not UTF-8."""
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadLine(f"{where}: not UTF-8 text; {remedy}.") from None


def json_value(file: str | Path, number: int, text: str, remedy: str) -> Any:
    """Return the value of a JSON text that begins in line `number` of a file. BadLine if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = number + getattr(error, "lineno", 1) - 1
        raise BadLine(f"{file}:{line}: not JSON ({getattr(error, 'msg', error)}); {remedy}.") from None


def json_file(path: Path, what: str, faults: LineFaults, remedy: str) -> Iterator[Line]:
    """Yield the value of every filled line of a file, which messages call `what`; those that are not JSON, which every
    line should be as `remedy` says, go to `faults`. Raises UsageError: see `readable`; no line at all.
    """
    for number, raw in filled_lines(path, what):
        where = f"{path}:{number}"
        with faults.line():
            text = decoded(where, raw, "convert the file")
            if text.strip():
                yield Line(where, number, json_value(path, number, text, remedy))


def printable(text: str) -> str:
    """Return a name fit for UTF-8 and any screen: JSON can spell halves of characters and control characters."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    if whole.isprintable():
        return whole
    return "".join("\ufffd" if category(letter) in ("Cc", "Cf") else letter for letter in whole)


class Names:
    """Names that are told apart: a, a#2, a#3; no two are equal, whatever they were."""

    def __init__(self) -> None:
        self.repeated = 0  # names that had occurred before
        self._last: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        """Return the name; the second and later ones of a name get their number."""
        unique, number = name, self._last.get(name, 0)
        self.repeated += number > 0
        while unique in self._last:
            number += 1
            unique = f"{name}#{number}"
        self._last |= {unique: 1, name: max(number, 1)}
        return unique
