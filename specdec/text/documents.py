"""Plain text as training text: a file or a hub data set becomes documents, and every n-th document is held out.

Read as a stream, several times over: a text need not fit into memory. Knows neither torch nor tokenizers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.errors import UsageError
from specdec.text.lines import BYTE_ORDER_MARK, readable, unpacked
from specdec.text.sources import Records, read_hub


@typed
class TextCorpusConfig:
    """The keys of a plain text: a local file, or a data set on the hub in parquet or JSON (no script is ever run)."""

    name: Literal["text"]
    path: Annotated[str, Field(min_length=1)] | None  # a UTF-8 file, gzip or not; or else:
    hub_id: Annotated[str, Field(min_length=1)] | None
    hub_config: str | None
    split: str
    revision: str | None
    field: Annotated[str, Field(min_length=1)]  # the field of a hub record that holds its text, one document
    documents: Literal["lines", "paragraphs"]  # of a file: a document per line, or blank lines between documents
    max_bytes: AtLeastOne | None  # read no more bytes of text than this; null: all of it
    heldout_every: Annotated[int, Field(ge=2)]  # the n-th, 2n-th, ... document is held out
    vocabulary: Annotated[int, Field(ge=258, le=65536)]  # pieces of the BPE, special token included


@dataclass(frozen=True)
class OpenedText:
    """A text whose source was found and has documents for both parts.

    Attributes:
        name: how messages call it: the path, or the hub id.
        provenance: identifies the content without naming a folder of this machine.
        group: the config group of its keys, named in messages.
    """

    config: TextCorpusConfig
    name: str
    provenance: dict[str, str]
    group: str

    def documents(self) -> Iterator[str]:
        """Yield all documents in order, up to `max_bytes` of UTF-8.

        Raises:
            UsageError: a line that is not UTF-8, named by its number.
        """
        read = _documents_of_file if self.config.path is not None else _documents_of_hub
        limit, taken = self.config.max_bytes, 0

        def fits(document: str) -> bool:
            nonlocal taken
            taken += len(document.encode())
            return limit is None or taken <= limit

        return takewhile(fits, read(self.config, self.group))

    def training(self) -> Iterator[str]:
        """Yield the documents that are not held out."""
        return (document for document, held_out in self._divided() if not held_out)

    def heldout(self) -> Iterator[str]:
        """Yield every n-th document."""
        return (document for document, held_out in self._divided() if held_out)

    def _divided(self) -> Iterator[tuple[str, bool]]:
        every = self.config.heldout_every
        return ((document, number % every == 0) for number, document in enumerate(self.documents(), 1))

    def manifest(self, tokens: int, heldout_tokens: int) -> dict[str, Any]:
        """Return the content of `corpus.json`; its `sha256` covers documents, hold-out and the vocabulary's size."""
        every = self.config.heldout_every
        digest = hashlib.sha256(f"{every} {self.config.vocabulary}".encode())
        count, size = [0, 0], [0, 0]  # of training and held-out documents
        for document, held_out in self._divided():
            content = document.encode()
            digest.update(hashlib.sha256(content).digest())
            count[held_out] += 1
            size[held_out] += len(content)
        return {
            "sha256": digest.hexdigest(),
            "sources": {"text": {**self.provenance, "documents": count[0], "bytes": size[0], "tokens": tokens}},
            "held_out": {"every": every, "documents": count[1], "bytes": size[1], "tokens": heldout_tokens},
        }


def open_text(config: TextCorpusConfig, group: str) -> OpenedText:
    """Find the text that the configuration names, and look at its first documents.

    Args:
        group: the config group of these keys, named in messages, such as `recipe.corpus`.
    Raises:
        UsageError: no text or two texts named; missing, unreadable, empty, too few documents to hold any out.
    """
    if (config.path is None) == (config.hub_id is None):
        raise UsageError(
            f"A text corpus needs one source: set either {group}.path (a UTF-8 file) or {group}.hub_id (a data set), "
            "and leave the other null."
        )
    if config.path is not None:
        path = Path(config.path)
        with readable(f"Text file {group}.path={config.path}"), path.expanduser().open("rb") as file:
            hashed = hashlib.file_digest(file, "sha256").hexdigest()
        name, provenance = config.path, {"file": path.name, "file_sha256": hashed}
    else:
        name, provenance = str(config.hub_id), _hub_records(config, group).provenance
    text = OpenedText(config, name, provenance, group)
    if next(text.documents(), None) is None:
        raise UsageError(f"The text {name} is empty ({group}): no document in it, or none within max_bytes.")
    if next(text.heldout(), None) is None:
        raise UsageError(
            f"The text {name} has fewer than {group}.heldout_every={config.heldout_every} documents, so none "
            f"is held out: lower it, or see {group}.documents."
        )
    return text


def _documents_of_file(config: TextCorpusConfig, group: str) -> Iterator[str]:
    """Yield the lines that are not blank, or the paragraphs between blank lines; a line ends with \\n or \\r\\n."""
    paragraph: list[str] = []
    for line in _lines(str(config.path), group):
        if config.documents == "lines":
            if line.strip():
                yield line
        elif line.strip():
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield "\n".join(paragraph)


def _lines(path: str, group: str) -> Iterator[str]:
    with unpacked(Path(path).expanduser(), f"Text file {group}.path={path}") as (content, _):
        for number, raw in enumerate(content, start=1):
            line = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UsageError(
                    f"{path}:{number}: not UTF-8 text; convert the file that {group}.path names."
                ) from None


def _hub_records(config: TextCorpusConfig, group: str) -> Records:
    return read_hub(str(config.hub_id), config.hub_config, config.split, config.revision, group)


def _documents_of_hub(config: TextCorpusConfig, group: str) -> Iterator[str]:
    for where, _, record in _hub_records(config, group).numbered:
        if not isinstance(record.get(config.field), str):
            raise UsageError(
                f"{where}: no text in the field {config.field!r}; its keys are {', '.join(record)} (set {group}.field)."
            )
        if record[config.field].strip():
            yield record[config.field]
