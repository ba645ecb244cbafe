"""The text of a whole model's recipe: its tokenizer (byte-level BPE, lossless on any text, made for Python code) and
tokens, built once and then taken from disk; and batches of them, in an order that recipe, seed and step alone decide: a
resumed training goes on with the batches that it would have had.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specdec.errors import UsageError
from specdec.text.document_store import batched, encode_texts
from specdec.text.documents import OpenedText, TextCorpusConfig
from specdec.text.python_sources import STDLIB, TOPICS, PythonCorpus, PythonCorpusConfig, build_corpus
from specdec.text.writing import write_json
from specdec.training.data_recipes import fingerprint
from specdec.training.recipes import PythonDataConfig, TextDataConfig

HELDOUT = "heldout_"  # prefix of the held-out parts in tokens.npz
ENCODED_AT_ONCE = 4096  # documents
END_OF_TEXT = "<|endoftext|>"

# A newline takes the indentation after it; a word takes one character before it (" x", ".x", "_x", "(x").
PIECES = r"[\r\n]+[ \t]*|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[^\S\r\n]+(?=\S)|\s+"


def train_tokenizer(texts: Iterable[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of exactly `vocabulary` pieces, which states the length `context`, in tokens, as its model's.
    Raises ValueError: the texts are too small for it.
    """
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} pieces, not {vocabulary}")
    marks = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **marks, clean_up_tokenization_spaces=False, model_max_length=context
    )


def bytes_per_token(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the UTF-8 bytes of each piece, by id; 0 for the special token."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [0 if piece == END_OF_TEXT else len(piece) for piece in pieces]


@dataclass(frozen=True)
class TokenizedCorpus:
    """The corpus as tokens. A document is `tokens[start:end]`, without the end-of-text token."""

    tokenizer: PreTrainedTokenizerFast
    tokens: np.ndarray  # [T] uint16, the training documents one after another
    ends: np.ndarray  # [documents] int64, the place after each document's last token
    in_stdlib: np.ndarray  # [documents] bool: the documents that a recipe on Python sources reads several times
    # "code" and "docs", or "text": end-of-text before each document and at the end. The first is scored on the way.
    heldout: dict[str, np.ndarray]
    manifest: dict[str, Any]


def load_corpus(config: PythonCorpusConfig | TextCorpusConfig, context: int, folder: Path) -> TokenizedCorpus:
    """Build the corpus below `folder`, or take it from there if the same configuration built it before.
    Raises UsageError: a text that is missing, empty, too small or not UTF-8.
    """
    if isinstance(config, TextCorpusConfig):
        text = OpenedText(config, "recipe.corpus")
        place = folder / fingerprint(config, context, text.provenance)[:16]
    else:
        place = folder / fingerprint(config, context)[:16]
    with FileLock(place.with_suffix(".lock")):  # others wait and find it built
        if not (place / "corpus.json").exists():
            corpus = text if isinstance(config, TextCorpusConfig) else build_corpus(config)
            _write(corpus, config.vocabulary, context, place)
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
    try:
        tokenizer = train_tokenizer(corpus.texts("train"), vocabulary, context)
    except ValueError as error:
        name = corpus.name if isinstance(corpus, OpenedText) else "of Python sources"
        raise UsageError(
            f"The text {name} is too small for recipe.corpus.vocabulary={vocabulary}: {error}; lower it, or give more "
            "text."
        ) from None
    parts, lengths = [], []
    for batch in batched(corpus.texts("train"), ENCODED_AT_ONCE):
        ids = encode_texts(tokenizer, batch)
        parts.append(np.concatenate(ids))
        lengths += [len(i) for i in ids]
    in_stdlib = np.zeros(len(lengths), dtype=bool)
    if isinstance(corpus, OpenedText):
        heldout = {"text": encode_texts(tokenizer, list(corpus.texts("heldout")))}
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
    end = tokenizer.eos_token_id
    arrays: dict[str, Any] = {HELDOUT + part: with_end_of_text(encoded, end) for part, encoded in heldout.items()}
    arrays |= {"tokens": np.concatenate(parts), "ends": np.cumsum(lengths), "in_stdlib": in_stdlib}
    np.savez(place / "tokens.npz", **arrays)
    write_json(place / "corpus.json", manifest)


def with_end_of_text(encoded: list[np.ndarray], end_of_text: int) -> np.ndarray:
    """Join documents, with an end-of-text token before each and at the end."""
    mark = np.array([end_of_text], dtype=np.uint16)
    return np.concatenate([part for ids in encoded for part in (mark, ids)] + [mark])


def document_order(corpus: TokenizedCorpus, data: PythonDataConfig, seed: int) -> np.ndarray:
    """Order the documents of Python sources: the standard library `stdlib_passes` times, packages once. Each occurrence
    has a place in [0, 1]; packages are thinned to what the token budget leaves. Raises UsageError: it exceeds the text.
    """
    rng = np.random.default_rng([seed, 1])
    sizes = np.diff(corpus.ends, prepend=0) + 1
    own, other = np.flatnonzero(corpus.in_stdlib), np.flatnonzero(~corpus.in_stdlib)
    documents, places = [], []
    for turn in range(int(np.ceil(data.stdlib_passes))):
        u = (turn + rng.random(len(own))) / data.stdlib_passes
        chosen = u < 1.0
        documents.append(own[chosen])
        places.append(u[chosen] ** data.stdlib_lateness)
    used = int(sum(sizes[d].sum() for d in documents))
    rng.shuffle(other)
    budget = data.tokens + 4 * data.batch_tokens - used
    count = int(np.searchsorted(np.cumsum(sizes[other]), budget)) + 1
    if budget > int(sizes[other].sum()):
        raise UsageError(
            f"recipe.data.tokens={data.tokens} exceeds the corpus: {used} tokens from the standard library "
            f"in {data.stdlib_passes} passes and {int(sizes[other].sum())} from packages; lower it, or install more of "
            "recipe.corpus.packages."
        )
    documents.append(other[: max(count, 0)])
    places.append(rng.random(len(documents[-1])))
    return np.concatenate(documents)[np.argsort(np.concatenate(places), kind="stable")]


def text_order(corpus: TokenizedCorpus, data: TextDataConfig, seed: int) -> np.ndarray:
    """Order the documents of any other text: every pass reads all of them in a new order, the last pass a part.
    Raises UsageError: the budget asks for more than `data.max_passes`.
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
    """The batches of all steps, cut from the stream of ordered documents, stage by stage."""

    def __init__(self, corpus: TokenizedCorpus, data: PythonDataConfig | TextDataConfig, seed: int) -> None:
        if isinstance(data, TextDataConfig):
            order = text_order(corpus, data, seed)
        else:
            order = document_order(corpus, data, seed)
        starts = np.concatenate([[0], corpus.ends[:-1]])
        parts = [corpus.tokens[starts[d] : corpus.ends[d]] for d in order]
        self.stream = with_end_of_text(parts, corpus.tokenizer.eos_token_id)
        self.steps = data.tokens // data.batch_tokens
        if self.steps * data.batch_tokens + 1 > len(self.stream):
            raise UsageError(
                f"The text has {len(self.stream)} tokens for recipe.data.tokens={data.tokens}: lower it, or give more "
                "text."
            )
        bounds = [0, *(round(s * self.steps) for s in np.cumsum([stage.share for stage in data.stages]))]
        self._starts: list[tuple[np.ndarray, int]] = []  # places of each step's sequences in the stream; their length
        for first, last, stage in zip(bounds, bounds[1:], data.stages, strict=False):
            offsets = np.arange(first * data.batch_tokens, last * data.batch_tokens, stage.sequence_length)
            # Each moves by at most about `shuffle_window`.
            jitter = np.random.default_rng([seed, 2, first]).random(len(offsets)) * data.shuffle_window
            moved = offsets[np.argsort(np.arange(len(offsets)) + jitter, kind="stable")]
            steps = moved.reshape(last - first, data.batch_tokens // stage.sequence_length)
            self._starts += [(starts, stage.sequence_length) for starts in steps]

    def __call__(self, step: int) -> np.ndarray:
        """Return a step's sequences, each with the token after it, [B, S + 1] int64."""
        starts, length = self._starts[step]
        return np.stack([self.stream[start : start + length + 1] for start in starts]).astype(np.int64)
