"""The text that an n-gram model is fitted on, read part by part and turned into the target's tokens."""

import hashlib
import json
import sysconfig
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specdec.errors import UsageError
from specdec.progress import stage
from specdec.text import python_sources
from specdec.text.lines import decoded, file_digest, unpacked

BOUNDARY = -1  # stands between documents in a stream of tokens: no n-gram spans it
_PART = 2**16  # bytes of a file that are encoded at once; a token never spans two parts
_BATCH = 2**21  # characters that the tokenizer gets in one call, which spreads parts over its threads
_SHOWN = 2**22  # a corpus of at least so many bytes is read in a stage of its own
# Tests, vendored packages, topics of which some are held out, and distutils, which repeats the held-out shutil.
_SKIPPED = ("test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "distutils", "__pycache__")


@dataclass(frozen=True)
class CorpusPart:
    content: str | Sequence[int]  # text, or token ids
    first: bool  # of its document
    where: str  # file, or file:line, for messages
    read: int  # bytes of the source that have been read so far


@dataclass(frozen=True)
class NgramCorpus:
    name: str  # for messages
    size: int  # in bytes
    digest: Callable[[], str]  # returns a hash of all that `parts` yields
    # Yields the documents in order, part by part; UsageError where a file is damaged or not UTF-8, or a line is wrong.
    parts: Callable[[], Iterator[CorpusPart]]


def open_corpus(path: str | None, field: str | None) -> NgramCorpus:
    """Open the corpus that `drafter.corpus` and `drafter.field` describe: a local file, gzip or not, of plain text (one
    document), or of JSON lines whose `field` is a text, a list of texts (a document each) or a list of token ids.
    Without a file it is the running interpreter's standard library. Raises UsageError: the file is missing or
    unreadable, or there is a field without a file.
    """
    if path is None:
        if field is not None:
            raise UsageError(f"Bad value drafter.field={field}: it needs drafter.corpus, a JSON-lines file.")
        return _standard_library()
    noun, file = f"Corpus file drafter.corpus={path}", Path(path).expanduser()
    with unpacked(file, noun):
        size = file.stat().st_size

    def digest() -> str:
        return file_digest(file, noun) + (f"/{field}" if field else "")

    def parts() -> Iterator[CorpusPart]:
        with unpacked(file, noun) as (stream, raw):
            if field is None:
                yield from _text_parts(path, noun, stream, raw.tell)
            else:
                yield from _line_parts(path, field, stream, raw.tell)

    return NgramCorpus(f"drafter.corpus={path}", size, digest, parts)


def _standard_library() -> NgramCorpus:
    """Return the interpreter's sources, without held-out modules, tests and generated tables: offline text that every
    installation has, and none of it in the prompts `stdlib_code`.
    """
    modules, folder = python_sources.held_out_modules(), Path(sysconfig.get_path("stdlib"))
    documents = [
        item
        for item in python_sources.read_python_files(folder, python_sources.STDLIB, _SKIPPED)
        if not python_sources.is_held_out(item, modules) and not python_sources.GENERATED.search(item.text[:2000])
    ]

    def parts() -> Iterator[CorpusPart]:
        read = 0
        for item in documents:
            read += len(item.text)
            yield CorpusPart(item.text, True, item.name, read)

    size = sum(len(item.text) for item in documents)
    return NgramCorpus("the standard library", size, lambda: python_sources.content_hash(documents), parts)


def _text_parts(path: str, noun: str, stream: BinaryIO, position: Callable[[], int]) -> Iterator[CorpusPart]:
    """Cut the text at the first newline after `_PART` bytes; a longer line is cut after `_PART` bytes more."""
    decoder = getincrementaldecoder("utf-8")()
    before = 0
    while True:
        content = stream.read(_PART)
        content += stream.readline(_PART)
        kept = decoder.getstate()[0]  # the beginning of a character cut in two
        try:
            text = decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{noun} is not UTF-8 text at byte {before - len(kept) + error.start}: convert it."
            ) from None
        if not content:
            return
        yield CorpusPart(text, before == 0, path, position())
        before += len(content)


def _line_parts(path: str, field: str, stream: BinaryIO, position: Callable[[], int]) -> Iterator[CorpusPart]:
    for number, raw in enumerate(stream, start=1):
        if not raw.strip():
            continue
        where = f"{path}:{number}"
        text = decoded(where, raw, "convert the file, or see drafter.corpus")
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise UsageError(
                f"{where}: not JSON; drafter.field is for JSON lines, a plain text needs drafter.field=null."
            ) from None
        if not isinstance(record, dict) or field not in record:
            raise UsageError(f"{where}: no key {field!r}; drafter.field should name one that every line has.")
        value = record[field]
        kinds = {type(item) for item in value} if isinstance(value, list) else None
        if not isinstance(value, str) and kinds not in (set(), {str}, {int}):
            raise UsageError(f"{where}: {field!r} should be a text, a list of texts or a list of token ids.")
        for content in value if kinds == {str} else [value]:
            yield CorpusPart(content, True, where, position())


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a hash of everything that determines how text becomes tokens; "" for a target without a tokenizer."""
    if tokenizer is None:
        return ""
    text = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(sorted(tokenizer.get_vocab()))
    return hashlib.sha256(text.encode()).hexdigest()


def tokenize(corpus: NgramCorpus, tokenizer: Any, vocab_size: int) -> np.ndarray:
    """Return the corpus in the target's tokens [T] int32, with a `BOUNDARY` before every document. Raises UsageError:
    an empty corpus; see `encoded`.
    """
    boundary = np.array([BOUNDARY], dtype=np.int32)
    parts: list[np.ndarray] = []
    for part, ids in encoded(corpus, tokenizer, vocab_size):
        parts += [boundary, ids] if part.first else [ids]
    stream = np.concatenate(parts) if parts else boundary
    if not (stream >= 0).any():
        raise UsageError(f"Corpus {corpus.name} is empty: give a file with text.")
    return stream


def encoded(corpus: NgramCorpus, tokenizer: Any, vocab_size: int) -> Iterator[tuple[CorpusPart, np.ndarray]]:
    """Yield each part of a corpus with the target's tokens [T] int32 of it; without a tokenizer it has to hold token
    ids. Raises UsageError: text without a tokenizer, tokens outside the vocabulary; see `NgramCorpus.parts`.
    """
    encode = None
    reading = stage("reading the n-gram corpus, kB", total=corpus.size >> 10, told=False)
    with reading if corpus.size >= _SHOWN else nullcontext() as under_way:
        for batch in _batches(corpus.parts()):
            texts = [part.content for part in batch if isinstance(part.content, str)]
            if texts and tokenizer is None:
                raise UsageError(
                    f"Corpus {corpus.name} is text, and the target has no tokenizer: give JSON lines with lists of "
                    "token ids, and name their key with drafter.field."
                )
            if texts and encode is None:
                encode = _encoder(tokenizer)  # not for token ids: to copy a tokenizer takes time
            tokens = iter(encode(texts) if encode else ())
            for part in batch:
                ids = np.asarray(next(tokens) if isinstance(part.content, str) else part.content)
                if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                    raise UsageError(
                        f"{part.where}: token {ids.max() if ids.min() >= 0 else ids.min()} is not among the target's "
                        f"{vocab_size} tokens; the corpus of a drafter has to be tokenised as the target's text is."
                    )
                yield part, ids.astype(np.int32)
            if under_way is not None:
                under_way.advance((batch[-1].read >> 10) - under_way.done)


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
