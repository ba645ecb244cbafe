"""Texts in tokens, and on disk: training and held-out documents apart, with a mark on every token to be predicted.
Written once in one pass, read through memory maps, so that neither text nor tokens need fit into memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from specdec.text.sources import PARTS, Part
from specdec.text.writing import read_json, write_json

Item = TypeVar("Item")


def encode_texts(tokenizer: Any, texts: Sequence[str], dtype: type[np.unsignedinteger] = np.uint16) -> list[np.ndarray]:
    """Return the token ids of each text, without special tokens, by a fast transformers tokenizer. All are encoded in
    one call; uint16 holds the ids of the recipes' own vocabularies.
    """
    encoded = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [np.array(e.ids, dtype=dtype) for e in encoded]


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items, the last one shorter (`itertools.batched` needs Python 3.12)."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


MANIFEST = "documents.json"


@dataclass(frozen=True)
class Encoded:
    """One document in tokens."""

    tokens: np.ndarray  # [T] uint32
    scored: np.ndarray  # [T] bool: the tokens to be predicted; in a conversation only those of the assistant

    def __len__(self) -> int:
        return len(self.tokens)


class Documents:
    """The documents of one part, mapped from disk."""

    def __init__(self, folder: Path, part: Part) -> None:
        self.ends = np.load(folder / f"{part}_ends.npy")  # [documents] int64
        size = int(self.ends[-1]) if len(self.ends) else 0
        self.tokens = _mapped(folder / f"{part}_tokens.bin", np.uint32, size)
        self.scored = _mapped(folder / f"{part}_scored.bin", np.bool_, size)
        self.starts = np.concatenate([[0], self.ends])[:-1]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> Encoded:
        start, end = int(self.starts[number]), int(self.ends[number])
        return Encoded(self.tokens[start:end], self.scored[start:end])

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each document, [documents]."""
        return self.ends - self.starts


@dataclass(frozen=True)
class DocumentStore:
    """The documents that `write_documents` wrote."""

    train: Documents
    heldout: Documents
    manifest: dict[str, Any]  # where the documents come from and how many there are; how many were left out, and why


def read_documents(folder: Path) -> DocumentStore | None:
    """Open the documents of a folder; return None if they were not written, or not all of them."""
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        return None
    return DocumentStore(Documents(folder, "train"), Documents(folder, "heldout"), manifest)


def write_documents(folder: Path, documents: Iterable[tuple[Part, Encoded]], manifest: dict[str, Any]) -> DocumentStore:
    """Write documents as they come, then the manifest, whose presence says that all are there. It is read after the
    last document, so that whoever yields the documents may still fill it in.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes: dict[Part, list[int]] = {part: [] for part in PARTS}
    with ExitStack() as files:
        tokens = {part: files.enter_context((folder / f"{part}_tokens.bin").open("wb")) for part in PARTS}
        scored = {part: files.enter_context((folder / f"{part}_scored.bin").open("wb")) for part in PARTS}
        for part, document in documents:
            tokens[part].write(document.tokens.astype(np.uint32).tobytes())
            scored[part].write(document.scored.astype(np.bool_).tobytes())
            sizes[part].append(len(document))
    for part in PARTS:
        np.save(folder / f"{part}_ends.npy", np.cumsum(sizes[part], dtype=np.int64))
    counts = {part: {"documents": len(sizes[part]), "tokens": sum(sizes[part])} for part in PARTS}
    write_json(folder / MANIFEST, {**manifest, **counts})
    written = read_documents(folder)
    assert written is not None
    return written


def _mapped(path: Path, kind: type, size: int) -> np.ndarray:
    """Map a file for reading; an empty file, which cannot be mapped, becomes an empty array."""
    return np.memmap(path, dtype=kind, mode="r", shape=(size,)) if size else np.zeros(0, dtype=kind)
