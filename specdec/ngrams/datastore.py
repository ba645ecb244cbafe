"""Text to retrieve from: documents as tokens, and the order of all their suffixes, in files mapped into memory.

A folder holds `tokens.npy`, `suffixes.npy` and `manifest.json`; REST's `.idx` files are read as well. Knows neither
configuration nor drafting.
"""

import hashlib
import json
import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydivsufsort import divsufsort

_FORMAT = "specdec datastore 1"
_NARROW = 2**16  # vocabularies below it are stored in two bytes a token
_FILES = ("tokens", "suffixes")


@dataclass(frozen=True)
class Manifest:
    """The facts about a datastore that its files do not show."""

    tokenizer: str  # see `tokenizer_digest`
    vocab_size: int  # of the target; this number stands before every document
    tokens: int  # stored numbers, those before the documents included
    documents: int
    source: str  # name of the text
    source_digest: str
    sha256: dict[str, str]  # of each file, by name
    format: str = _FORMAT


class Chunk:
    """Tokens [T] and their suffixes in order [T]: places of the text, sorted by what stands from there on. A suffix
    that is the beginning of another comes before it.
    """

    def __init__(self, tokens: Any, suffixes: Any) -> None:
        self.tokens, self.suffixes = memoryview(tokens), memoryview(suffixes)
        self._begins: dict[int, tuple[int, int]] = {}  # token -> its range of suffixes, as far as asked for

    def __reduce__(self) -> tuple[Any, ...]:
        return Chunk, (np.asarray(self.tokens), np.asarray(self.suffixes))

    def lower(self, pattern: list[int]) -> tuple[int, int]:
        """Return where suffixes with `pattern` in front begin, and a bound of their end, or equal numbers."""
        tokens, size, token = self.tokens, len(pattern), pattern[0]
        if token not in self._begins:
            low = bisect_left(self.suffixes, token, key=tokens.__getitem__)
            self._begins[token] = low, bisect_right(self.suffixes, token, low, key=tokens.__getitem__)
        low, high = self._begins[token]
        low = bisect_left(self.suffixes, pattern, low, high, key=lambda place: tokens[place : place + size].tolist())
        found = low < high and tokens[self.suffixes[low] :][:size].tolist() == pattern
        return low, high if found else low

    def matches(self, pattern: list[int]) -> tuple[int, int]:
        """Return the range of the suffixes that begin with `pattern`."""
        (low, high), tokens, size = self.lower(pattern), self.tokens, len(pattern)
        return low, bisect_right(
            self.suffixes, pattern, low, high, key=lambda place: tokens[place : place + size].tolist()
        )


class Datastore:
    """A text, cut in chunks or whole. A look-up takes some binary searches, whatever the number of hits."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        boundary: int | None,
        about: Mapping[str, Any],
        opened_by: "Callable[[], Datastore] | None" = None,
    ) -> None:
        # The number between documents, which no continuation passes, and what opens the files in another process.
        self.chunks, self.boundary, self._opened_by = tuple(chunks), boundary, opened_by
        self.about = {"tokens": sum(len(chunk.tokens) for chunk in chunks), **about}  # the facts that a run records

    def __reduce__(self) -> tuple[Any, ...]:
        """Send files to another process by their names, and what is in memory as arrays."""
        if self._opened_by is not None:
            return self._opened_by, ()
        return Datastore, (self.chunks, self.boundary, self.about)

    @property
    def bytes(self) -> int:
        """The size of tokens and suffixes, in memory or mapped into it."""
        return sum(chunk.tokens.nbytes + chunk.suffixes.nbytes for chunk in self.chunks)

    def continuations(self, context: Sequence[int], least: int, width: int, limit: int) -> list[list[int]]:
        """Return at most `width` tokens after each hit of the longest suffix of `context`, of at least `least` tokens,
        that occurs. Of more than `limit` hits, as many are taken at equal distances in the order of the suffixes. Hits
        that go on alike stand together there, so that a continuation is taken as often as its share of the hits says.
        """
        if least > len(context) or not self._occurs(context[-least:]):
            return []
        longer = range(least + 1, len(context) + 1)  # by halves: where a suffix does not occur, no longer one does
        length = least + bisect_left(longer, True, key=lambda size: not self._occurs(context[-size:]))
        pattern = list(context[-length:])
        ranges = [(chunk, *chunk.matches(pattern)) for chunk in self.chunks]
        ends = list(accumulate(stop - start for _, start, stop in ranges))
        total = ends[-1]
        wanted = [(2 * number + 1) * total // (2 * limit) for number in range(limit)] if total > limit else range(total)
        rows: list[list[int]] = []
        for number in wanted:
            index = bisect_right(ends, number)
            chunk, _, stop = ranges[index]
            place = chunk.suffixes[stop - ends[index] + number] + length
            row = chunk.tokens[place : place + width].tolist()
            if self.boundary in row:
                del row[row.index(self.boundary) :]
            if row:
                rows.append(row)
        return rows

    def _occurs(self, pattern: Sequence[int]) -> bool:
        ranges = (chunk.lower(list(pattern)) for chunk in self.chunks)
        return any(low < bound for low, bound in ranges)


def suffix_order(tokens: np.ndarray) -> np.ndarray:
    """Return the places of `tokens` [T], unsigned, sorted by what stands from there on. libdivsufsort sorts bytes: with
    the most significant byte of each token first, suffixes of bytes that begin with a token are in the order of the
    tokens. Memory: five bytes for each byte of the text, and nine above 2 GiB.
    """
    size = tokens.itemsize
    if len(tokens) == 0:
        return np.empty(0, dtype=np.int32)
    places = divsufsort(tokens.astype(tokens.dtype.newbyteorder(">")).view(np.uint8))
    places = places[places % size == 0]
    places //= size
    return places.astype(np.int32) if len(tokens) < 2**31 else places


def in_memory(stream: np.ndarray, vocab_size: int, source: str) -> Datastore:
    """Return a datastore of the text of this name, a stream [T] int32 with a negative number before every document."""
    tokens = np.where(stream < 0, vocab_size, stream).astype(np.uint16 if vocab_size < _NARROW else np.uint32)
    return Datastore([Chunk(tokens, suffix_order(tokens))], vocab_size, {"source": source})


def write_datastore(folder: Path, store: Datastore, tokenizer: str, digest: str) -> None:
    """Replace `folder` by a datastore of `in_memory`, with its text's hash; no reader sees half one. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        (chunk,), vocab_size = store.chunks, store.boundary
        assert vocab_size is not None
        tokens = np.asarray(chunk.tokens)
        np.save(part / "tokens.npy", tokens)
        np.save(part / "suffixes.npy", np.asarray(chunk.suffixes))
        manifest = Manifest(
            tokenizer,
            vocab_size,
            tokens=len(tokens),
            documents=int((tokens == vocab_size).sum()),
            source=store.about["source"],
            source_digest=digest,
            sha256={name: _sha256(part / f"{name}.npy") for name in _FILES},
        )
        (part / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_manifest(folder: Path) -> Manifest:
    """Read what is said about a datastore. Raises ValueError, which says why: no manifest, or one of another format."""
    try:
        values = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except OSError:
        raise ValueError("it has no manifest.json") from None
    except ValueError:
        raise ValueError("its manifest.json is not JSON") from None
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise ValueError(f"the format of its manifest.json is not {_FORMAT!r}")
    try:
        return TypeAdapter(Manifest).validate_python(values)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise ValueError(f"its manifest.json says nothing that fits about {key!r}") from None


def open_datastore(folder: Path, manifest: Manifest) -> Datastore:
    """Compare the hashes of a datastore's files and map them into memory; ValueError names one missing or damaged."""
    for name in _FILES:
        path = folder / f"{name}.npy"
        if not path.is_file():
            raise ValueError(f"it has no {path.name}")
        if _sha256(path) != manifest.sha256.get(name):
            raise ValueError(f"the content of {path.name} is not what its manifest.json says")
    about = {"source": manifest.source, "sha256": manifest.sha256["tokens"]}
    if manifest.tokens == 0:  # there is nothing to map
        return Datastore([], manifest.vocab_size, about)
    tokens, suffixes = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _FILES)
    if not len(tokens) == len(suffixes) == manifest.tokens:
        raise ValueError(f"its files do not hold the {manifest.tokens} tokens of its manifest.json")
    again = partial(open_datastore, folder, manifest)
    return Datastore([Chunk(tokens, suffixes)], manifest.vocab_size, about, again)


def open_rest_index(path: Path, vocab_size: int) -> Datastore:
    """Map an index that REST's DraftRetriever wrote: for each chunk of the text a number of bytes, the tokens in two
    bytes each, a number of bytes, and the order of the suffixes in four bytes each, all with the low byte first. It
    knows no tokenizer and no boundaries between documents. Raises OSError, or ValueError: the file is damaged, or holds
    tokens outside the vocabulary; the message says which.
    """
    chunks, about = list[Chunk](), {"source": path.name}
    if path.stat().st_size == 0:  # there is nothing to map
        return Datastore([], None, about)
    content, offset = np.memmap(path, dtype=np.uint8, mode="r").data, 0
    while offset < len(content):
        tokens, offset = _block(content, offset, "H")
        suffixes, offset = _block(content, offset, "i")
        if len(tokens) != len(suffixes):
            raise ValueError(f"it has {len(tokens)} tokens and {len(suffixes)} suffixes")
        if len(tokens) and not 0 <= (places := np.asarray(suffixes)).min() <= places.max() < len(tokens):
            raise ValueError("its suffixes are not places of its tokens")
        if len(tokens) and (largest := int(np.asarray(tokens).max())) >= vocab_size:
            raise ValueError(f"its token {largest} is not among the target's {vocab_size}")
        chunks.append(Chunk(tokens, suffixes))
    return Datastore(chunks, None, about, partial(open_rest_index, path, vocab_size))


def _block(content: memoryview, offset: int, kind: Literal["H", "i"]) -> tuple[memoryview, int]:
    """Return the numbers behind a number of bytes, and the offset behind them."""
    start = offset + 4
    stop = start + int.from_bytes(content[offset:start], "little")
    if len(content) < stop or (stop - start) % (2 if kind == "H" else 4):
        raise ValueError("it ends in the middle of a block")
    return content[start:stop].cast(kind), stop


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
