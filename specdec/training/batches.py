"""From documents to batches: tokens on disk once, then an order that depends on the recipe and seed alone.

Lengths and offsets are in tokens. The order is a function of the step, so that a resumed run goes on with
the very batches that it would have had.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from specdec.errors import UsageError
from specdec.text.documents import Text, open_text
from specdec.text.python_sources import STDLIB, TOPICS, Document, build_corpus
from specdec.training.models.recipe import (
    CorpusConfig,
    DataConfig,
    StreamConfig,
    TextCorpusConfig,
    TextDataConfig,
    fingerprint,
)
from specdec.training.models.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


Item = TypeVar("Item")
HELDOUT = "heldout_"  # prefix of the held-out parts in tokens.npz
BATCH = 4096  # documents that are encoded at once


@dataclass(frozen=True)
class TokenizedCorpus:
    """The corpus as tokens; a document is `tokens[start:end]` without the end-of-text token."""

    tokenizer: PreTrainedTokenizerFast
    tokens: np.ndarray  # [T] uint16, training documents one after another
    ends: np.ndarray  # [documents] int64
    in_stdlib: np.ndarray  # [documents] bool; of a text corpus none is
    # "code" and "docs", or "text"; end-of-text before each document and at the end. The first is scored on the way.
    heldout: dict[str, np.ndarray]
    manifest: dict[str, Any]
    folder: Path


def load_corpus(config: CorpusConfig | TextCorpusConfig, context: int, folder: Path) -> TokenizedCorpus:
    """Build the corpus below `folder`, or take it from there when the same configuration built it before.

    Raises UsageError for a text that is missing, empty, too small or not UTF-8.
    """
    from transformers import AutoTokenizer

    if isinstance(config, TextCorpusConfig):
        text = open_text(config)
        place = folder / fingerprint(config, context, text.provenance)[:16]
        if not (place / "corpus.json").exists():
            write_text(text, context, place)
    else:
        place = folder / fingerprint(config, context)[:16]
        if not (place / "corpus.json").exists():
            write_corpus(config, context, place)
    arrays = np.load(place / "tokens.npz")
    return TokenizedCorpus(
        tokenizer=AutoTokenizer.from_pretrained(place / "tokenizer"),
        tokens=arrays["tokens"],
        ends=arrays["ends"],
        in_stdlib=arrays["in_stdlib"],
        heldout={name.removeprefix(HELDOUT): arrays[name] for name in arrays.files if name.startswith(HELDOUT)},
        manifest=json.loads((place / "corpus.json").read_text(encoding="utf-8")),
        folder=place,
    )


def write_corpus(config: CorpusConfig, context: int, place: Path) -> None:
    """Tokenizer (trained on the training part only), tokens, then the manifest: its presence says done."""
    corpus = build_corpus(config)
    tokenizer = train_tokenizer((d.text for d in corpus.training), config.vocabulary, context)
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(place / "tokenizer")
    encoded = encode(tokenizer, corpus.training)
    heldout = {
        name: with_end_of_text(encode(tokenizer, documents), tokenizer.eos_token_id)
        for name, documents in {
            "code": [d for d in corpus.heldout if d.source == STDLIB],
            "docs": [d for d in corpus.heldout if d.source == TOPICS],
        }.items()
    }
    np.savez(
        place / "tokens.npz",
        tokens=np.concatenate(encoded),
        ends=np.cumsum([len(e) for e in encoded]),
        in_stdlib=np.array([d.source in (STDLIB, TOPICS) for d in corpus.training]),
        heldout_code=heldout["code"],
        heldout_docs=heldout["docs"],
    )
    tokens: dict[str, int] = {}
    for document, ids in zip(corpus.training, encoded, strict=True):
        tokens[document.source] = tokens.get(document.source, 0) + len(ids)
    for source, count in tokens.items():
        corpus.manifest["sources"][source]["tokens"] = count
    write_atomically(place / "corpus.json", json.dumps(corpus.manifest, indent=1) + "\n")


def write_text(text: Text, context: int, place: Path) -> None:
    """`write_corpus` for any text, in two passes over it, so that it need not fit into memory as text."""
    try:
        tokenizer = train_tokenizer(text.training(), text.config.vocabulary, context)
    except ValueError as error:
        raise UsageError(
            f"The text {text.name} is too small for corpus.vocabulary={text.config.vocabulary}: {error}; "
            "lower it, or give more text."
        ) from None
    parts, lengths = [], []
    for batch in batched(text.training(), BATCH):
        ids = encode_texts(tokenizer, batch)
        parts.append(np.concatenate(ids))
        lengths += [len(i) for i in ids]
    heldout = encode_texts(tokenizer, list(text.heldout()))
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(place / "tokenizer")
    np.savez(
        place / "tokens.npz",
        tokens=np.concatenate(parts),
        ends=np.cumsum(lengths),
        in_stdlib=np.zeros(len(lengths), dtype=bool),
        heldout_text=with_end_of_text(heldout, tokenizer.eos_token_id),
    )
    manifest = text.manifest(tokens=sum(lengths), heldout_tokens=sum(map(len, heldout)))
    write_atomically(place / "corpus.json", json.dumps(manifest, indent=1) + "\n")


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[np.ndarray]:
    """Token ids per document, uint16."""
    return [ids for batch in batched(documents, 256) for ids in encode_texts(tokenizer, [d.text for d in batch])]


def encode_texts(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], dtype: type[np.unsignedinteger] = np.uint16
) -> list[np.ndarray]:
    """Token ids of texts that are held in memory together; uint16 holds those of the recipes' vocabularies."""
    encoded = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [np.array(e.ids, dtype=dtype) for e in encoded]


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one shorter (`itertools.batched` needs Python 3.12)."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def with_end_of_text(encoded: list[np.ndarray], end_of_text: int) -> np.ndarray:
    """Every document after an end-of-text token, and one more at the end."""
    mark = np.array([end_of_text], dtype=np.uint16)
    return np.concatenate([part for ids in encoded for part in (mark, ids)] + [mark])


def document_order(corpus: TokenizedCorpus, data: DataConfig, seed: int) -> np.ndarray:
    """Which document comes when: the standard library `stdlib_passes` times, packages once.

    Each occurrence gets a place in [0, 1]; packages are thinned to what the token budget leaves for them.
    Raises ValueError when the budget exceeds the text.
    """
    rng = np.random.default_rng([seed, 1])
    sizes = np.diff(corpus.ends, prepend=0) + 1
    own, other = np.flatnonzero(corpus.in_stdlib), np.flatnonzero(~corpus.in_stdlib)
    passes = int(np.ceil(data.stdlib_passes))
    documents, places = [], []
    for turn in range(passes):
        u = (turn + rng.random(len(own))) / data.stdlib_passes
        chosen = u < 1.0
        documents.append(own[chosen])
        places.append(u[chosen] ** data.stdlib_lateness)
    used = int(sum(sizes[d].sum() for d in documents))
    rng.shuffle(other)
    budget = data.tokens + 4 * data.batch_tokens - used
    count = int(np.searchsorted(np.cumsum(sizes[other]), budget)) + 1
    if budget > int(sizes[other].sum()):
        raise ValueError(
            f"data.tokens={data.tokens} exceeds the corpus: {used} from the standard library "
            f"in {data.stdlib_passes} passes and {int(sizes[other].sum())} from packages"
        )
    documents.append(other[: max(count, 0)])
    places.append(rng.random(len(documents[-1])))
    return np.concatenate(documents)[np.argsort(np.concatenate(places), kind="stable")]


def text_order(corpus: TokenizedCorpus, data: TextDataConfig, seed: int) -> np.ndarray:
    """Which document of a text comes when: every pass reads all of it in a new order, the last one a part.

    Raises UsageError when the budget asks for more than `data.max_passes`.
    """
    rng = np.random.default_rng([seed, 1])
    sizes = np.diff(corpus.ends, prepend=0) + 1
    whole, budget = int(sizes.sum()), data.tokens + 1
    passes = -(-budget // whole)
    if passes > data.max_passes:
        raise UsageError(
            f"recipe.data.tokens={data.tokens} would read the text of {whole} tokens {passes} times and "
            f"recipe.data.max_passes={data.max_passes}: lower the one, raise the other, or give more text."
        )
    order = np.concatenate([rng.permutation(len(sizes)) for _ in range(passes)])
    return order[: int(np.searchsorted(np.cumsum(sizes[order]), budget)) + 1]


class Batches:
    """Batch of step s from the stream of ordered documents, stage by stage."""

    def __init__(self, corpus: TokenizedCorpus, data: StreamConfig, seed: int) -> None:
        self.data = data
        if isinstance(data, TextDataConfig):
            order = text_order(corpus, data, seed)
        else:
            assert isinstance(data, DataConfig)
            order = document_order(corpus, data, seed)
        starts = np.concatenate([[0], corpus.ends[:-1]])
        parts = [corpus.tokens[starts[d] : corpus.ends[d]] for d in order]
        self.stream = with_end_of_text(parts, corpus.tokenizer.eos_token_id)
        self.steps = data.tokens // data.batch_tokens
        if self.steps * data.batch_tokens + 1 > len(self.stream):
            raise ValueError(f"the stream has {len(self.stream)} tokens for {data.tokens}")
        bounds = [0, *(round(s * self.steps) for s in np.cumsum([stage.share for stage in data.stages]))]
        self.first_steps = bounds[:-1]
        self.offsets = [
            self._shuffled(bounds[i], bounds[i + 1], stage.sequence_length, seed) for i, stage in enumerate(data.stages)
        ]

    def _shuffled(self, first: int, last: int, length: int, seed: int) -> np.ndarray:
        """Offsets of the sequences of steps first..last-1, each moved at most about `shuffle_window`."""
        size = self.data.batch_tokens
        offsets = np.arange(first * size, last * size, length)
        jitter = np.random.default_rng([seed, 2, first]).random(len(offsets)) * self.data.shuffle_window
        return offsets[np.argsort(np.arange(len(offsets)) + jitter, kind="stable")]

    def __call__(self, step: int) -> np.ndarray:
        """Sequences with the token after each, `[B, S + 1]` int64."""
        stage = max(i for i, first in enumerate(self.first_steps) if first <= step)
        length = self.data.stages[stage].sequence_length
        count = self.data.batch_tokens // length
        start = (step - self.first_steps[stage]) * count
        chosen = self.offsets[stage][start : start + count]
        return np.stack([self.stream[o : o + length + 1] for o in chosen]).astype(np.int64)


def write_atomically(path: Path, text: str) -> None:
    """Write beside, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
