"""From documents to batches: tokens on disk once, then an order that depends on the recipe and seed alone.

Lengths and offsets are in tokens. The order is a function of the step, so that a resumed run goes on with
the very batches that it would have had.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec.training.corpus import STDLIB, TOPICS, Document, build_corpus
from specdec.training.recipe import CorpusConfig, DataConfig, fingerprint
from specdec.training.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class TokenizedCorpus:
    """The corpus as tokens; a document is `tokens[start:end]` without the end-of-text token."""

    tokenizer: PreTrainedTokenizerFast
    tokens: np.ndarray  # [T] uint16, training documents one after another
    ends: np.ndarray  # [documents] int64
    in_stdlib: np.ndarray  # [documents] bool
    heldout: dict[str, np.ndarray]  # "code", "docs": end-of-text before each document and at the end
    manifest: dict[str, Any]
    folder: Path


def load_corpus(config: CorpusConfig, context: int, folder: Path) -> TokenizedCorpus:
    """Build the corpus below `folder`, or take it from there when the same configuration built it before."""
    from transformers import AutoTokenizer

    place = folder / fingerprint(config, context)[:16]
    if not (place / "corpus.json").exists():
        write_corpus(config, context, place)
    arrays = np.load(place / "tokens.npz")
    return TokenizedCorpus(
        tokenizer=AutoTokenizer.from_pretrained(place / "tokenizer"),
        tokens=arrays["tokens"],
        ends=arrays["ends"],
        in_stdlib=arrays["in_stdlib"],
        heldout={"code": arrays["heldout_code"], "docs": arrays["heldout_docs"]},
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


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[np.ndarray]:
    """Token ids per document, uint16."""
    fast = tokenizer.backend_tokenizer
    ids: list[np.ndarray] = []
    for start in range(0, len(documents), 256):
        texts = [d.text for d in documents[start : start + 256]]
        ids += [np.array(e.ids, dtype=np.uint16) for e in fast.encode_batch(texts, add_special_tokens=False)]
    return ids


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


class Batches:
    """Batch of step s from the stream of ordered documents, stage by stage."""

    def __init__(self, corpus: TokenizedCorpus, data: DataConfig, seed: int) -> None:
        self.data = data
        starts = np.concatenate([[0], corpus.ends[:-1]])
        order = document_order(corpus, data, seed)
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
