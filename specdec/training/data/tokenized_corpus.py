"""The text of a recipe with its tokenizer, in tokens on disk: built once, then taken from there. Lengths in tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specdec.errors import UsageError
from specdec.text.documents import OpenedText, TextCorpusConfig, open_text
from specdec.text.encoding import batched, encode_texts
from specdec.text.python_sources import STDLIB, TOPICS, Document, PythonCorpusConfig, build_corpus
from specdec.text.writing import write_atomically
from specdec.training.data.tokenizer import train_tokenizer
from specdec.training.data_recipes import fingerprint

HELDOUT = "heldout_"  # prefix of the held-out parts in tokens.npz
ENCODED_AT_ONCE = 4096  # documents


@dataclass(frozen=True)
class TokenizedCorpus:
    """The corpus as tokens. A document is `tokens[start:end]`, without the end-of-text token.

    Attributes:
        tokens: [T] uint16, the training documents one after another.
        ends: [documents] int64, the place after each document's last token.
        in_stdlib: [documents] bool: the documents that a recipe on Python sources reads several times.
        heldout: "code" and "docs", or "text": an end-of-text token before each document and at the end. The first part
            is scored on the way.
    """

    tokenizer: PreTrainedTokenizerFast
    tokens: np.ndarray
    ends: np.ndarray
    in_stdlib: np.ndarray
    heldout: dict[str, np.ndarray]
    manifest: dict[str, Any]
    folder: Path


def load_corpus(config: PythonCorpusConfig | TextCorpusConfig, context: int, folder: Path) -> TokenizedCorpus:
    """Build the corpus below `folder`, or take it from there if the same configuration built it before.

    Raises:
        UsageError: a text that is missing, empty, too small or not UTF-8.
    """
    if isinstance(config, TextCorpusConfig):
        text = open_text(config, "recipe.corpus")
        place = folder / fingerprint(config, context, text.provenance)[:16]
        if not (place / "corpus.json").exists():
            _write_text(text, context, place)
    else:
        place = folder / fingerprint(config, context)[:16]
        if not (place / "corpus.json").exists():
            _write_python_sources(config, context, place)
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


def _write_python_sources(config: PythonCorpusConfig, context: int, place: Path) -> None:
    """Write tokenizer (trained on the training part only), tokens and manifest of Python sources."""
    corpus = build_corpus(config)
    tokenizer = train_tokenizer((d.text for d in corpus.training), config.vocabulary, context)
    encoded = encode(tokenizer, corpus.training)
    heldout = {
        name: encode(tokenizer, [d for d in corpus.heldout if d.source == source])
        for name, source in (("code", STDLIB), ("docs", TOPICS))
    }
    for document, ids in zip(corpus.training, encoded, strict=True):
        about = corpus.manifest["sources"][document.source]
        about["tokens"] = about.get("tokens", 0) + len(ids)
    in_stdlib = [d.source in (STDLIB, TOPICS) for d in corpus.training]
    _write(place, tokenizer, encoded, [len(e) for e in encoded], in_stdlib, heldout, corpus.manifest)


def _write_text(text: OpenedText, context: int, place: Path) -> None:
    """Write the same of any other text, in two passes over it, so that it need not fit into memory as text."""
    try:
        tokenizer = train_tokenizer(text.training(), text.config.vocabulary, context)
    except ValueError as error:
        raise UsageError(
            f"The text {text.name} is too small for recipe.corpus.vocabulary={text.config.vocabulary}: {error}; "
            "lower it, or give more text."
        ) from None
    parts, lengths = [], []
    for batch in batched(text.training(), ENCODED_AT_ONCE):
        ids = encode_texts(tokenizer, batch)
        parts.append(np.concatenate(ids))
        lengths += [len(i) for i in ids]
    heldout = encode_texts(tokenizer, list(text.heldout()))
    manifest = text.manifest(tokens=sum(lengths), heldout_tokens=sum(map(len, heldout)))
    _write(place, tokenizer, parts, lengths, [False] * len(lengths), {"text": heldout}, manifest)


def _write(
    place: Path,
    tokenizer: PreTrainedTokenizerFast,
    parts: list[np.ndarray],
    lengths: list[int],
    in_stdlib: list[bool],
    heldout: dict[str, list[np.ndarray]],
    manifest: dict[str, Any],
) -> None:
    """Write tokenizer and tokens, then the manifest, which says that all is there."""
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(place / "tokenizer")
    arrays: dict[str, Any] = {
        HELDOUT + name: with_end_of_text(encoded, tokenizer.eos_token_id) for name, encoded in heldout.items()
    }
    arrays |= {"tokens": np.concatenate(parts), "ends": np.cumsum(lengths), "in_stdlib": np.array(in_stdlib)}
    np.savez(place / "tokens.npz", **arrays)
    write_atomically(place / "corpus.json", json.dumps(manifest, indent=1) + "\n")


def encode(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document]) -> list[np.ndarray]:
    """Return the token ids of each document, uint16."""
    return [ids for batch in batched(documents, 256) for ids in encode_texts(tokenizer, [d.text for d in batch])]


def with_end_of_text(encoded: list[np.ndarray], end_of_text: int) -> np.ndarray:
    """Join documents, with an end-of-text token before each and at the end."""
    mark = np.array([end_of_text], dtype=np.uint16)
    return np.concatenate([part for ids in encoded for part in (mark, ids)] + [mark])
