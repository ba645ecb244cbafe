"""The text that an n-gram model is fitted on, read part by part and turned into the target's tokens.

Knows files and tokenizers, and nothing of counting.
"""

import hashlib
import json
import sys
import sysconfig
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich import get_console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specdec.errors import UsageError
from specdec.text.lines import unpacked
from specdec.text.python_sources import (
    GENERATED,
    STDLIB,
    Document,
    content_hash,
    held_out_modules,
    is_held_out,
    read_python_files,
)

BOUNDARY = -1  # stands between documents in a stream of tokens: no n-gram spans it
_PART = 2**16  # bytes of a file that are encoded at once; a token never spans two parts
_BATCH = 2**21  # characters that the tokenizer gets in one call, which spreads parts over its threads
_SHOWN = 2**22  # a corpus of at least so many bytes gets a progress bar
# Tests, vendored packages, topics of which some are held out, and distutils, which repeats the held-out shutil.
_SKIPPED = ("test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "distutils", "__pycache__")


@dataclass(frozen=True)
class CorpusPart:
    """A part of a document.

    Attributes:
        content: text, or token ids.
        first: True for the first part of a document.
        where: file, or file:line, for messages.
        read: bytes of the source that have been read so far.
    """

    content: str | Sequence[int]
    first: bool
    where: str
    read: int


class NgramCorpus(ABC):
    """A source of text. `name` is for messages, `size` in bytes."""

    name: str
    size: int

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of all that `parts` yields."""

    @abstractmethod
    def parts(self) -> Iterator[CorpusPart]:
        """Yield the documents in order, part by part.

        Raises:
            UsageError: a file is damaged or not UTF-8, or a line does not fit.
        """


class StandardLibraryCorpus(NgramCorpus):
    """The running interpreter's sources, without held-out modules, tests and generated tables: offline text that every
    installation has, and none of it in the prompts `stdlib_code`.
    """

    name = "the standard library"

    def __init__(self) -> None:
        modules = held_out_modules()
        found = read_python_files(Path(sysconfig.get_path("stdlib")), STDLIB, _SKIPPED)
        self._documents: list[Document] = [
            item for item in found if not is_held_out(item, modules) and not GENERATED.search(item.text[:2000])
        ]
        self.size = sum(len(item.text) for item in self._documents)

    def digest(self) -> str:
        return content_hash(self._documents)

    def parts(self) -> Iterator[CorpusPart]:
        read = 0
        for item in self._documents:
            read += len(item.text)
            yield CorpusPart(item.text, True, item.name, read)


class FileCorpus(NgramCorpus):
    """A local file, gzip or not: plain text (one document), or JSON lines whose `field` is a text, a list of texts (a
    document each) or a list of token ids.

    Raises:
        UsageError: no such file.
    """

    def __init__(self, name: str, field: str | None) -> None:
        self.name = f"drafter.corpus={name}"
        self._file, self._path, self._field = name, Path(name).expanduser(), field
        self._noun = f"Corpus file {self.name}"
        with unpacked(self._path, self._noun):
            self.size = self._path.stat().st_size

    def digest(self) -> str:
        with self._path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() + (f"/{self._field}" if self._field else "")

    def parts(self) -> Iterator[CorpusPart]:
        with unpacked(self._path, self._noun) as (stream, raw):
            yield from (self._text if self._field is None else self._records)(stream, raw.tell)

    def _text(self, stream: BinaryIO, position: Callable[[], int]) -> Iterator[CorpusPart]:
        """Cut the text at the first newline after `_PART` bytes; a longer line is cut after `_PART` bytes more."""
        decoder = getincrementaldecoder("utf-8")()
        before, first = 0, True
        while True:
            content = stream.read(_PART)
            content += stream.readline(_PART)
            kept = decoder.getstate()[0]  # the beginning of a character cut in two
            try:
                text = decoder.decode(content, final=not content)
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{self._noun} is not UTF-8 text at byte {before - len(kept) + error.start}: convert it."
                ) from None
            if not content:
                return
            before += len(content)
            yield CorpusPart(text, first, self._file, position())
            first = False

    def _records(self, stream: BinaryIO, position: Callable[[], int]) -> Iterator[CorpusPart]:
        for number, raw in enumerate(stream, start=1):
            if raw.strip():
                where = f"{self._file}:{number}"
                value = self._value(raw, where)
                texts = value if isinstance(value, list) and isinstance(next(iter(value), None), str) else [value]
                for content in texts:
                    yield CorpusPart(content, True, where, position())

    def _value(self, raw: bytes, where: str) -> Any:
        try:
            record = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError:
            raise UsageError(f"{where}: not UTF-8 text; convert the file, or see drafter.corpus.") from None
        except (ValueError, RecursionError):
            raise UsageError(
                f"{where}: not JSON; drafter.field is for JSON lines, a plain text needs drafter.field=null."
            ) from None
        if not isinstance(record, dict) or self._field not in record:
            raise UsageError(f"{where}: no key {self._field!r}; drafter.field should name one that every line has.")
        value = record[self._field]
        if isinstance(value, str) or (isinstance(value, list) and {type(item) for item in value} in _LISTS):
            return value
        raise UsageError(f"{where}: {self._field!r} should be a text, a list of texts or a list of token ids.")


_LISTS: list[set[type]] = [set(), {str}, {int}]


def open_corpus(path: str | None, field: str | None) -> NgramCorpus:
    """Open the corpus that `drafter.corpus` and `drafter.field` describe.

    Raises:
        UsageError: the file is missing or unreadable, or there is a field without a file.
    """
    if path is not None:
        return FileCorpus(path, field)
    if field is not None:
        raise UsageError(f"Bad value drafter.field={field}: it needs drafter.corpus, a JSON-lines file.")
    return StandardLibraryCorpus()


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a hash of everything that determines how text becomes tokens; "" for a target without a tokenizer."""
    if tokenizer is None:
        return ""
    text = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(sorted(tokenizer.get_vocab()))
    return hashlib.sha256(text.encode()).hexdigest()


def tokenize(corpus: NgramCorpus, tokenizer: Any, vocab_size: int) -> np.ndarray:
    """Return the corpus in the target's tokens [T] int32, with a `BOUNDARY` before every document.

    Args:
        tokenizer: the target's; None where it has none, then the corpus has to hold token ids.
    Raises:
        UsageError: an empty corpus, text without a tokenizer, tokens outside the vocabulary; see `NgramCorpus.parts`.
    """
    boundary = np.array([BOUNDARY], dtype=np.int32)
    parts: list[np.ndarray] = []
    for part, tokens in _encoded(corpus, tokenizer):
        ids = np.asarray(tokens, dtype=np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise UsageError(
                f"{part.where}: token {ids.max() if ids.min() >= 0 else ids.min()} is not among the target's "
                f"{vocab_size} tokens; the corpus of a drafter has to be tokenised as the target's text is."
            )
        parts += [boundary, ids.astype(np.int32)] if part.first else [ids.astype(np.int32)]
    stream = np.concatenate(parts) if parts else boundary
    if not (stream >= 0).any():
        raise UsageError(f"Corpus {corpus.name} is empty: give a file with text.")
    return stream


def _encoded(corpus: NgramCorpus, tokenizer: Any) -> Iterator[tuple[CorpusPart, Sequence[int]]]:
    encode = None
    terminal = sys.stderr.isatty() or sys.stdout.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    hidden = not terminal or corpus.size < _SHOWN
    with Progress(*columns, TimeRemainingColumn(), console=get_console(), transient=True, disable=hidden) as progress:
        bar = progress.add_task("reading the n-gram corpus", total=corpus.size)
        for batch in _batches(corpus.parts()):
            texts = [part.content for part in batch if isinstance(part.content, str)]
            if texts and tokenizer is None:
                raise UsageError(
                    f"Corpus {corpus.name} is text, and the target has no tokenizer: give JSON lines with lists of "
                    "token ids, and name their key with drafter.field."
                )
            if texts and encode is None:
                encode = _encoder(tokenizer)
            encoded = iter(encode(texts) if encode else ())
            for part in batch:
                yield part, next(encoded) if isinstance(part.content, str) else part.content
            progress.update(bar, completed=batch[-1].read)


def _batches(parts: Iterable[CorpusPart]) -> Iterator[list[CorpusPart]]:
    batch: list[CorpusPart] = []
    length = 0
    for part in parts:
        batch.append(part)
        length += len(part.content)
        if length >= _BATCH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _encoder(tokenizer: Any) -> Callable[[list[str]], Iterable[Sequence[int]]]:
    if not tokenizer.is_fast:
        return lambda texts: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    from tokenizers import Tokenizer

    # A copy: a tokenizer's file may ask for truncation, and the target's own stays as it is.
    fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    fast.no_truncation()
    fast.no_padding()
    return lambda texts: (item.ids for item in fast.encode_batch_fast(texts, add_special_tokens=False))
