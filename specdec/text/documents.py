"""Any text as training text: a file or a hub data set becomes documents, every n-th of them held out.

Read as a stream, several times over: a text need not fit into memory. Knows neither torch nor tokenizers.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.training.models.recipe import TextCorpusConfig

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Text:
    """An opened text.

    Attributes:
        name: what messages call it: the path, or the hub id.
        provenance: what tells one content from another, without naming a folder of this machine.
    """

    config: TextCorpusConfig
    name: str
    provenance: dict[str, str]

    def documents(self) -> Iterator[str]:
        """All documents, in order, up to `max_bytes` of UTF-8; UsageError with the line for what is not UTF-8."""
        found = _documents_of_file(self.config) if self.config.path is not None else _documents_of_hub(self.config)
        limit, taken = self.config.max_bytes, 0

        def fits(document: str) -> bool:
            nonlocal taken
            taken += len(document.encode())
            return limit is None or taken <= limit

        return takewhile(fits, found)

    def training(self) -> Iterator[str]:
        """The documents that are not held out."""
        every = self.config.heldout_every
        return (document for number, document in enumerate(self.documents(), 1) if number % every)

    def heldout(self) -> Iterator[str]:
        """Every n-th document."""
        every = self.config.heldout_every
        return (document for number, document in enumerate(self.documents(), 1) if number % every == 0)

    def manifest(self, tokens: int, heldout_tokens: int) -> dict[str, Any]:
        """What `corpus.json` says; `sha256` is over the documents, the hold-out and the size of the vocabulary."""
        every = self.config.heldout_every
        digest = hashlib.sha256(f"{every} {self.config.vocabulary}".encode())
        count, size = [0, 0], [0, 0]  # of training and held-out documents
        for number, document in enumerate(self.documents(), 1):
            content = document.encode()
            digest.update(hashlib.sha256(content).digest())
            count[number % every == 0] += 1
            size[number % every == 0] += len(content)
        return {
            "sha256": digest.hexdigest(),
            "sources": {"text": {**self.provenance, "documents": count[0], "bytes": size[0], "tokens": tokens}},
            "held_out": {"every": every, "documents": count[1], "bytes": size[1], "tokens": heldout_tokens},
        }


def open_text(config: TextCorpusConfig) -> Text:
    """The text that the configuration names.

    Raises:
        UsageError: no text or two texts named; missing, unreadable, empty, too few documents to hold any out.
    """
    if (config.path is None) == (config.hub_id is None):
        raise UsageError(
            "A text corpus needs one source: set either recipe.corpus.path (a UTF-8 file) or "
            "recipe.corpus.hub_id (a data set), and leave the other null."
        )
    if config.path is not None:
        name, provenance = config.path, {"file": Path(config.path).name, "file_sha256": _file_hash(config.path)}
    else:
        name, provenance = str(config.hub_id), _hub_records(config).provenance
    text = Text(config, name, provenance)
    if next(text.documents(), None) is None:
        raise UsageError(f"The text {name} is empty (recipe.corpus): no document in it, or none within max_bytes.")
    if next(text.heldout(), None) is None:
        raise UsageError(
            f"The text {name} has fewer than recipe.corpus.heldout_every={config.heldout_every} documents, so none "
            "is held out: lower it, or see recipe.corpus.documents."
        )
    return text


def _file_hash(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with Path(path).expanduser().open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except FileNotFoundError:
        raise UsageError(f"Text file recipe.corpus.path={path} does not exist.") from None
    except OSError as error:
        raise UsageError(f"Text file recipe.corpus.path={path} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()


def _documents_of_file(config: TextCorpusConfig) -> Iterator[str]:
    """Non-blank lines, or runs of them between blank lines; line ends are \\n or \\r\\n."""
    paragraph: list[str] = []
    for line in _lines(str(config.path)):
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


def _lines(path: str) -> Iterator[str]:
    place = Path(path).expanduser()
    with place.open("rb") as file:
        packed = file.read(2) == GZIP
    try:
        with gzip.open(place) if packed else place.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                try:
                    yield line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    raise UsageError(
                        f"{path}:{number}: not UTF-8 text; convert the file that recipe.corpus.path names."
                    ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"Text file recipe.corpus.path={path} is a damaged gzip file: fetch it again.") from None


def _hub_records(config: TextCorpusConfig) -> Any:
    from specdec.text.sources import read_hub

    try:
        return read_hub(str(config.hub_id), config.hub_config, config.split, config.revision)
    except UsageError as error:  # it speaks of the keys of a prompt set
        raise UsageError(str(error).replace("prompts.", "recipe.corpus.")) from None


def _documents_of_hub(config: TextCorpusConfig) -> Iterator[str]:
    for where, _, record in _hub_records(config).rows:
        if not isinstance(record.get(config.field), str):
            raise UsageError(
                f"{where}: no text in the field {config.field!r}; its keys are {', '.join(record)} "
                "(set recipe.corpus.field)."
            )
        if record[config.field].strip():
            yield record[config.field]
