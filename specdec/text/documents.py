"""Plain text as training text: a file or a hub data set becomes documents, of which every n-th is held out. Read as a
stream, several times over: a text need not fit into memory. Knows neither torch nor tokenizers.
"""

import hashlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from specdec.config import AtLeastOne, NonEmpty, typed
from specdec.errors import UsageError
from specdec.text.lines import decoded, file_digest, file_lines
from specdec.text.sources import Part, SourceKeys, read_hub


@typed
class TextCorpusConfig(SourceKeys):
    """The keys of a plain text: a local file, or a data set on the hub."""

    name: Literal["text"]
    path: NonEmpty | None  # a UTF-8 file, gzip or not; null: a data set on the hub
    field: NonEmpty  # the field of a hub record that holds its text, one document
    documents: Literal["lines", "paragraphs"]  # of a file: a document per line, or blank lines between documents
    max_bytes: AtLeastOne | None  # read no more bytes of text than this; null: all of it
    heldout_every: Annotated[int, Field(ge=2)]  # the n-th, 2n-th, ... document is held out
    vocabulary: Annotated[int, Field(ge=258, le=65536)]  # pieces of the BPE, special token included


class OpenedText:
    """A text whose source was found and has documents for both parts."""

    def __init__(self, config: TextCorpusConfig, group: str) -> None:
        """Find the text of a config group, such as `recipe.corpus`, and look at its first documents. Raises UsageError:
        no text or two texts named; missing, unreadable, empty, too few documents to hold any out.
        """
        if (config.path is None) == (config.hub_id is None):
            raise UsageError(
                f"A text corpus needs one source: set either {group}.path (a UTF-8 file) or {group}.hub_id (a data "
                "set), and leave the other null."
            )
        self.config, self.group = config, group
        self.name: str  # how messages call it: the path, or the hub id
        self.provenance: dict[str, str]  # identifies the content without naming a folder of this machine
        if config.path is not None:
            path = Path(config.path)
            digest = file_digest(path.expanduser(), f"Text file {group}.path={config.path}")
            self.name, self.provenance = config.path, {"file": path.name, "file_sha256": digest}
        else:
            self.name, self.provenance = str(config.hub_id), read_hub(config, group).provenance
        if next(self.documents(), None) is None:
            raise UsageError(f"The text {self.name} is empty ({group}): no document in it, or none within max_bytes.")
        if next(self.texts("heldout"), None) is None:
            raise UsageError(
                f"The text {self.name} has fewer than {group}.heldout_every={config.heldout_every} documents, so none "
                f"is held out: lower it, or see {group}.documents."
            )

    def documents(self) -> Iterator[str]:
        """Yield all documents up to `max_bytes`. UsageError: a line that is not UTF-8, or a record without a text."""
        limit, taken = self.config.max_bytes, 0
        for document in self._in_file() if self.config.path is not None else self._on_hub():
            taken += len(document.encode())
            if limit is not None and taken > limit:
                return
            yield document

    def _in_file(self) -> Iterator[str]:
        """Yield the lines that are not blank, or the paragraphs between blank lines; a line ends with \\n or \\r\\n."""
        path, key = str(self.config.path), f"{self.group}.path"
        numbered = file_lines(Path(path).expanduser(), f"Text file {key}={path}")
        lines = (decoded(f"{path}:{number}", raw, f"convert the file that {key} names") for number, raw in numbered)
        if self.config.documents == "lines":
            yield from (line for line in lines if line.strip())
            return
        for filled, paragraph in groupby(lines, key=lambda line: bool(line.strip())):
            if filled:
                yield "\n".join(paragraph)

    def _on_hub(self) -> Iterator[str]:
        field = self.config.field
        for where, _, record in read_hub(self.config, self.group).numbered:
            if not isinstance(record.get(field), str):
                raise UsageError(
                    f"{where}: no text in the field {field!r}; its keys are {', '.join(record)} (set "
                    f"{self.group}.field)."
                )
            if record[field].strip():
                yield record[field]

    def texts(self, part: Part) -> Iterator[str]:
        """Yield the documents of a part; every n-th is held out."""
        every = self.config.heldout_every
        numbered = enumerate(self.documents(), 1)
        return (document for number, document in numbered if (number % every == 0) == (part == "heldout"))

    def manifest(self, tokens: int, heldout_tokens: int) -> dict[str, Any]:
        """Return the content of `corpus.json`; its `sha256` covers documents, hold-out and the vocabulary's size."""
        every = self.config.heldout_every
        digest = hashlib.sha256(f"{every} {self.config.vocabulary}".encode())
        count, size = [0, 0], [0, 0]  # of training and held-out documents
        for number, document in enumerate(self.documents(), 1):
            content, held_out = document.encode(), number % every == 0
            digest.update(hashlib.sha256(content).digest())
            count[held_out] += 1
            size[held_out] += len(content)
        return {
            "sha256": digest.hexdigest(),
            "sources": {"text": {**self.provenance, "documents": count[0], "bytes": size[0], "tokens": tokens}},
            "held_out": {"every": every, "documents": count[1], "bytes": size[1], "tokens": heldout_tokens},
        }
