"""Token sequences to train heads on: documents from a source, or the target's own continuations of them, in its tokens
and cut to one length. Order is a function of seed and step alone. Knows neither heads nor how they are trained.
"""

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from specdec.errors import UsageError
from specdec.text.conversations import Conversations
from specdec.text.documents import open_text
from specdec.text.python_sources import build_corpus
from specdec.training.batches import batched, encode_texts
from specdec.training.heads.document_store import (
    Documents,
    DocumentStore,
    Encoded,
    Part,
    read_documents,
    write_documents,
)
from specdec.training.heads.head_data_config import (
    ConversationsConfig,
    HeadDataConfig,
    SelfDistillationConfig,
    SourceConfig,
)
from specdec.training.heads.hidden_states import GIB, check_space, states_dtype
from specdec.training.heads.self_distillation import SelfDistillation, generated_hash
from specdec.training.models.recipe import TextCorpusConfig, fingerprint

if TYPE_CHECKING:
    from specdec.targets.base import Target

logger = logging.getLogger(__name__)

ENCODED_AT_ONCE = 1024
_OTHER_KEYS = re.compile(r"\brecipe\.corpus\b|\bprompts(?=\.(?:path|hub_id|split)\b)")


@dataclass(frozen=True)
class Batch:
    """Sequences, and which they are.

    Attributes:
        tokens: [B, S] int64.
        scored: [B, S] bool: whether the token is one to be predicted. Padding is not.
        part, rows: the numbers [B] of the sequences among all of "train" or "heldout".
    """

    tokens: Tensor
    scored: Tensor
    part: Part
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, size: int) -> "Iterator[Batch]":
        """Micro-batches of at most `size` sequences."""
        for i in range(0, len(self), size):
            end = i + size
            yield Batch(self.tokens[i:end], self.scored[i:end], self.part, self.rows[i:end])


class Sequences:
    """Training and held-out sequences of one length.

    Attributes:
        length: S.
        batch_size: sequences of a step.
        steps: optimizer steps of the whole training.
        fingerprint: what is in the sequences, and so what may be kept about them under that name.
        manifest: where the text comes from.
    """

    def __init__(self, store: DocumentStore, config: HeadDataConfig, seed: int, marks: "Marks", content: str) -> None:
        """
        Args:
            content: hash of what is in the store.
        Raises:
            UsageError: too little text for one step, or none held out.
        """
        length = config.sequence_length
        self.length, self.batch_size, self.seed, self.manifest = length, config.batch, seed, store.manifest
        kind = PackedRows if config.packed else DocumentRows
        self._rows = {
            "train": kind(store.train, length, marks, np.random.default_rng([seed, 1])),
            "heldout": kind(store.heldout, length, marks, np.random.default_rng([seed, 2])),
        }
        found = len(self._rows["train"])
        self._trained = found if config.sequences is None else min(found, config.sequences)
        other_length = "lower" if config.packed else "raise"
        if self._trained < config.batch:
            left_out = "".join(f"; left out: {n} {why}" for why, n in store.manifest.get("left_out", {}).items())
            raise UsageError(
                f"The text of data.source makes {found} sequences of data.sequence_length={length} tokens, of which "
                f"{self._trained} are read (data.sequences), and a step takes data.batch={config.batch}{left_out}: "
                f"lower the batch, {other_length} the length, or give more text."
            )
        if not len(self._rows["heldout"]):
            raise UsageError(
                f"The held-out text of data.source makes no sequence of data.sequence_length={length} tokens: "
                f"{other_length} that, hold more out (data.source.heldout_every), or give more text."
            )
        wanted = int(self._trained * config.passes) // config.batch if config.passes is not None else config.steps
        self.steps = max(int(wanted or 0), 1)
        self.counts: dict[Part, int] = {
            "train": min(self._trained, self.steps * config.batch),
            "heldout": min(config.heldout, len(self._rows["heldout"])),
        }
        self.fingerprint = fingerprint(content, seed, length, config.packed)

    def train(self, step: int) -> Batch:
        """The batch of a step, from 0 on; any step, in any order."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        passes, within = np.divmod(places, self._trained)
        rows = np.concatenate([self._order(int(turn))[within[passes == turn]] for turn in np.unique(passes)])
        return self.batch("train", rows)

    def heldout(self) -> Iterator[Batch]:
        """The held-out sequences, always the same."""
        for first in range(0, self.counts["heldout"], self.batch_size):
            yield self.batch("heldout", np.arange(first, min(first + self.batch_size, self.counts["heldout"])))

    def batch(self, part: Part, rows: np.ndarray) -> Batch:
        """Sequences by their numbers, which are below `counts[part]`."""
        found = [self._rows[part][int(row)] for row in rows]
        tokens = torch.from_numpy(np.stack([encoded.tokens for encoded in found]).astype(np.int64))
        return Batch(tokens, torch.from_numpy(np.stack([encoded.scored for encoded in found])), part, rows)

    def _order(self, turn: int) -> np.ndarray:
        """Of the sequences in one pass. The documents were shuffled before: the first pass takes them as they come."""
        rows = np.arange(self._trained)
        return rows if turn == 0 else np.random.default_rng([self.seed, 3, turn]).permutation(rows)


# ------------------------------------------------------------------------------------------------------------
# Documents to rows of one length.


@dataclass(frozen=True)
class Marks:
    """Special tokens around a document, and what fills a row up.

    Attributes:
        before, after: as the tokenizer has them; where one token is both, it stands before only, as in the text that
            the pocket models were trained on.
        padding: never scored.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int

    @classmethod
    def of(cls, tokenizer: Any) -> "Marks":
        """Those of a plain text."""
        begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        before = end if begin is None else begin
        return cls(
            before=() if before is None else (before,),
            after=() if end in (None, before) else (end,),
            padding=next((token for token in (tokenizer.pad_token_id, end) if token is not None), 0),
        )

    @classmethod
    def none(cls, tokenizer: Any) -> "Marks":
        """Of documents that have their special tokens already."""
        return cls((), (), cls.of(tokenizer).padding)

    def around(self, document: Encoded) -> Encoded:
        """A mark is predicted where it ends a text: behind it, or before the next where it is both."""
        tokens = np.concatenate([self.before, document.tokens, self.after]).astype(np.uint32)
        both = bool(self.before) and not self.after
        scored = np.concatenate(
            [np.full(len(self.before), both), document.scored, np.full(len(self.after), True)]
        ).astype(bool)
        return Encoded(tokens, scored)

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


class PackedRows:
    """Shuffled documents, one after another, in pieces of one length; what is left at the end is dropped."""

    def __init__(self, documents: Documents, length: int, marks: Marks, rng: np.random.Generator) -> None:
        self.documents, self.length, self.marks = documents, length, marks
        self.order = rng.permutation(len(documents))
        self.ends = np.cumsum(documents.lengths[self.order] + marks.size)

    def __len__(self) -> int:
        return int(self.ends[-1]) // self.length if len(self.ends) else 0

    def __getitem__(self, row: int) -> Encoded:
        first, last = row * self.length, (row + 1) * self.length
        place = int(np.searchsorted(self.ends, first, side="right"))
        begin = int(self.ends[place - 1]) if place else 0
        parts: list[Encoded] = []
        while begin < last:
            parts.append(self.marks.around(self.documents[int(self.order[place])]))
            begin, place = int(self.ends[place]), place + 1
        skipped = first - (begin - sum(map(len, parts)))
        tokens, scored = (np.concatenate([getattr(part, of) for part in parts]) for of in ("tokens", "scored"))
        return Encoded(tokens[skipped:][: self.length], scored[skipped:][: self.length])


class DocumentRows:
    """A document a row, shuffled, its end cut off or padded; those with nothing scored in their row are left out."""

    def __init__(self, documents: Documents, length: int, marks: Marks, rng: np.random.Generator) -> None:
        self.documents, self.length, self.marks = documents, length, marks
        # Scored at all: by the sums up to each document's beginning and to its last token in a row.
        sums = np.concatenate([[0], np.cumsum(documents.scored, dtype=np.int64)])
        last = np.minimum(documents.ends, documents.starts + max(length - marks.size, 0))
        self.order = rng.permutation(np.flatnonzero(sums[last] > sums[documents.starts]))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, row: int) -> Encoded:
        document = self.marks.around(self.documents[int(self.order[row])])
        rest = max(self.length - len(document), 0)
        tokens = np.concatenate([document.tokens, np.full(rest, self.marks.padding, dtype=np.uint32)])
        scored = np.concatenate([document.scored, np.zeros(rest, dtype=bool)])
        return Encoded(tokens[: self.length], scored[: self.length])


# ------------------------------------------------------------------------------------------------------------
# From the configuration to sequences.


def open_sequences(config: HeadDataConfig, target: "Target", seed: int) -> Sequences:
    """Read, encode and, where asked for, let the target write; what was done before is taken from `folder`.

    Raises:
        UsageError: a target without a tokenizer or with too short a context; a source that is missing, empty, malformed
            or too short; keys are named.
    """
    tokenizer = target.tokenizer
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            f"Target {type(target).__name__} has no fast tokenizer, and heads are trained on text: use target=causal "
            "with a model whose folder has a tokenizer.json."
        )
    if config.sequence_length > target.context_length:
        raise UsageError(
            f"Bad value data.sequence_length={config.sequence_length}: the target's context has "
            f"{target.context_length} tokens."
        )
    folder = Path(config.folder).expanduser()
    turns = isinstance(config.source, ConversationsConfig)
    # What the target goes on with has its special tokens already, or begins in the middle of a text.
    marks = Marks.none(tokenizer) if turns or config.generated is not None else Marks.of(tokenizer)
    with _keys_of_this_recipe():
        writer = None
        if config.generated is not None:
            writer = SelfDistillation(config.generated, target, seed, config.sequence_length)
        store, content = _source_documents(config.source, tokenizer, folder)
        if writer is not None and config.generated is not None:
            content = generated_hash(config.generated, seed, config.sequence_length, target.hidden.identity, content)
            place = folder / content[:16]
            with _locked(place):
                written = read_documents(place)
                if written is None:
                    _check_space(config, config.generated, target)
                    written = writer.documents(store, turns, place)
                store = written
    return Sequences(store, config, seed, marks, content)


def _check_space(config: HeadDataConfig, generated: SelfDistillationConfig, target: "Target") -> None:
    """Before the target writes for hours: whether the states of what it may write could be kept."""
    rows = generated.texts if config.sequences is None else min(generated.texts, config.sequences)
    rows += min(generated.heldout_texts, config.heldout)
    itemsize = states_dtype(config.states, target.hidden.output_layer.dtype).itemsize
    needed = rows * config.sequence_length * target.hidden.output_layer.shape[-1] * itemsize
    if config.states.cache == "disk" and needed <= config.states.limit_gib * GIB:
        check_space(config.states, needed)


def _source_documents(config: SourceConfig, tokenizer: Any, folder: Path) -> tuple[DocumentStore, str]:
    """The documents of a source in a tokenizer's tokens, and the hash that they are kept under."""
    encoder = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    provenance: dict[str, str] = {}
    if isinstance(config, ConversationsConfig):
        conversations = Conversations(config)
        provenance = {**conversations.provenance, "chat_template": str(getattr(tokenizer, "chat_template", None))}
    elif isinstance(config, TextCorpusConfig):
        text = open_text(config)
        provenance = text.provenance
    content = fingerprint(config, encoder, provenance)
    place = folder / content[:16]
    with _locked(place):
        found = read_documents(place)
        if found is not None:
            return found, content
        logger.info("Reading and encoding the text of data.source")
        manifest: dict[str, Any] = {"source": provenance, "tokenizer_sha256": encoder}
        if isinstance(config, ConversationsConfig):
            manifest["left_out"] = conversations.left_out
            return write_documents(place, conversations.encoded(tokenizer), manifest), content
        if isinstance(config, TextCorpusConfig):
            parts: dict[Part, Iterator[str]] = {"train": text.training(), "heldout": text.heldout()}
        else:
            corpus = build_corpus(config)
            manifest |= {"corpus_sha256": corpus.manifest["sha256"], "sources": corpus.manifest["sources"]}
            parts = {
                "train": (document.text for document in corpus.training),
                "heldout": (document.text for document in corpus.heldout),
            }
        return write_documents(place, _encoded(parts, tokenizer), manifest), content


def _encoded(parts: Mapping[Part, Iterator[str]], tokenizer: Any) -> Iterator[tuple[Part, Encoded]]:
    """Plain texts; all of their tokens are scored."""
    for part, texts in parts.items():
        for batch in batched(texts, ENCODED_AT_ONCE):
            for tokens in encode_texts(tokenizer, batch, np.uint32):
                yield part, Encoded(tokens, np.ones(len(tokens), dtype=bool))


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """One process builds, others (of the same training, or of another one) wait and find it built."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_suffix(".lock")):
        yield


@contextmanager
def _keys_of_this_recipe() -> Iterator[None]:
    """Readers of text are shared with prompt sets and model recipes, and speak of their keys."""
    try:
        yield
    except UsageError as error:
        raise UsageError(_OTHER_KEYS.sub("data.source", str(error))) from None
