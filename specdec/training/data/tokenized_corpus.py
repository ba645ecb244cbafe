"""The text of a recipe with its tokenizer, in tokens on disk: built once, then taken from there. Lengths in tokens."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specdec.errors import UsageError
from specdec.text.documents import OpenedText, TextCorpusConfig, open_text
from specdec.text.encoding import batched, encode_texts
from specdec.text.python_sources import STDLIB, TOPICS, PythonCorpus, PythonCorpusConfig, build_corpus
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


def load_corpus(config: PythonCorpusConfig | TextCorpusConfig, context: int, folder: Path) -> TokenizedCorpus:
    """Build the corpus below `folder`, or take it from there if the same configuration built it before.

    Raises:
        UsageError: a text that is missing, empty, too small or not UTF-8.
    """
    if isinstance(config, TextCorpusConfig):
        text = open_text(config, "recipe.corpus")
        place = folder / fingerprint(config, context, text.provenance)[:16]
    else:
        place = folder / fingerprint(config, context)[:16]
    if not (place / "corpus.json").exists():
        _write(
            text if isinstance(config, TextCorpusConfig) else build_corpus(config), config.vocabulary, context, place
        )
    arrays = np.load(place / "tokens.npz")
    return TokenizedCorpus(
        tokenizer=AutoTokenizer.from_pretrained(place / "tokenizer"),
        tokens=arrays["tokens"],
        ends=arrays["ends"],
        in_stdlib=arrays["in_stdlib"],
        heldout={name.removeprefix(HELDOUT): arrays[name] for name in arrays.files if name.startswith(HELDOUT)},
        manifest=json.loads((place / "corpus.json").read_text(encoding="utf-8")),
    )


def _write(corpus: PythonCorpus | OpenedText, vocabulary: int, context: int, place: Path) -> None:
    """Write tokenizer (trained on the training part only) and tokens, then the manifest, which says that all is there.

    A plain text is read several times, so that it need not fit into memory.
    """

    def training() -> Iterator[str]:
        return corpus.training() if isinstance(corpus, OpenedText) else (d.text for d in corpus.training)

    try:
        tokenizer = train_tokenizer(training(), vocabulary, context)
    except ValueError as error:
        name = corpus.name if isinstance(corpus, OpenedText) else "of Python sources"
        raise UsageError(
            f"The text {name} is too small for recipe.corpus.vocabulary={vocabulary}: {error}; lower it, or give more "
            "text."
        ) from None
    parts, lengths = [], []
    for batch in batched(training(), ENCODED_AT_ONCE):
        ids = encode_texts(tokenizer, batch)
        parts.append(np.concatenate(ids))
        lengths += [len(i) for i in ids]
    in_stdlib = np.zeros(len(lengths), dtype=bool)
    if isinstance(corpus, OpenedText):
        heldout = {"text": encode_texts(tokenizer, list(corpus.heldout()))}
        manifest = corpus.manifest(tokens=sum(lengths), heldout_tokens=sum(map(len, heldout["text"])))
    else:
        heldout, manifest = {}, corpus.manifest
        for part, source in (("code", STDLIB), ("docs", TOPICS)):
            heldout[part] = encode_texts(tokenizer, [d.text for d in corpus.heldout if d.source == source])
        for number, (document, length) in enumerate(zip(corpus.training, lengths, strict=True)):
            in_stdlib[number] = document.source in (STDLIB, TOPICS)
            about = manifest["sources"][document.source]
            about["tokens"] = about.get("tokens", 0) + length
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(place / "tokenizer")
    arrays: dict[str, Any] = {
        HELDOUT + part: with_end_of_text(encoded, tokenizer.eos_token_id) for part, encoded in heldout.items()
    }
    arrays |= {"tokens": np.concatenate(parts), "ends": np.cumsum(lengths), "in_stdlib": in_stdlib}
    np.savez(place / "tokens.npz", **arrays)
    write_atomically(place / "corpus.json", json.dumps(manifest, indent=1) + "\n")


def with_end_of_text(encoded: list[np.ndarray], end_of_text: int) -> np.ndarray:
    """Join documents, with an end-of-text token before each and at the end."""
    mark = np.array([end_of_text], dtype=np.uint16)
    return np.concatenate([part for ids in encoded for part in (mark, ids)] + [mark])
