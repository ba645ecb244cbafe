"""From the configuration to token sequences: documents of a source in the target's tokens, or the target's own
continuations of them; tokens are kept on disk.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from specdec.errors import UsageError
from specdec.targets.base import Target
from specdec.text.conversations import Conversations, ConversationsConfig
from specdec.text.document_store import DocumentStore, Encoded, Part, read_documents, write_documents
from specdec.text.documents import TextCorpusConfig, open_text
from specdec.text.encoding import batched, encode_texts
from specdec.text.python_sources import build_corpus
from specdec.training.data.hidden_states import GIB, check_space, states_dtype
from specdec.training.data.self_distillation import SelfDistillation
from specdec.training.data.sequences import Sequences, SpecialTokens
from specdec.training.data_recipes import (
    HeadDataConfig,
    SelfDistillationConfig,
    SequencesConfig,
    SourceConfig,
    fingerprint,
)

logger = logging.getLogger(__name__)

ENCODED_AT_ONCE = 1024  # documents


def open_sequences(config: HeadDataConfig, target: Target, seed: int) -> Sequences:
    """Read and encode the text and, if asked for, let the target write; finished work is taken from `config.folder`.

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
    special = _special_tokens(config, tokenizer, as_they_are=config.generated is None)
    writer = None
    if config.generated is not None:
        writer = SelfDistillation(config.generated, target, seed, config.sequence_length)
    store, content = _source_documents(config.source, tokenizer, folder)
    if writer is not None and config.generated is not None:
        content = fingerprint(config.generated, seed, config.sequence_length, target.hidden.identity, content)
        place = folder / content[:16]
        with FileLock(place.with_suffix(".lock")):
            written = read_documents(place)
            if written is None:
                _check_space(config, config.generated, target)
                written = writer.documents(store, turns, place)
            store = written
    return Sequences(store, config, seed, special, content)


def text_sequences(config: SequencesConfig, tokenizer: Any, seed: int) -> Sequences:
    """Read and encode the text of a source by a fast tokenizer; finished work is taken from `config.folder`.

    Raises:
        UsageError: a source that is missing, empty, malformed or too short; keys are named.
    """
    store, content = _source_documents(config.source, tokenizer, Path(config.folder).expanduser())
    return Sequences(store, config, seed, _special_tokens(config, tokenizer, as_they_are=True), content)


def _special_tokens(config: SequencesConfig, tokenizer: Any, as_they_are: bool) -> SpecialTokens:
    """Return the tokens around a document: none where conversations bring their own, or where what the target
    continues may begin in the middle of a text.
    """
    plain = as_they_are and not isinstance(config.source, ConversationsConfig)
    return SpecialTokens.of(tokenizer) if plain else SpecialTokens.none(tokenizer)


def _check_space(config: HeadDataConfig, generated: SelfDistillationConfig, target: Target) -> None:
    """Refuse, before the target writes for hours, texts whose hidden states would not fit on the disk."""
    sequences = generated.texts if config.sequences is None else min(generated.texts, config.sequences)
    sequences += min(generated.heldout_texts, config.heldout)
    itemsize = states_dtype(config.states, target.hidden.output_layer.dtype).itemsize
    needed = sequences * config.sequence_length * target.hidden.output_layer.shape[-1] * itemsize
    if config.states.cache == "disk" and needed <= config.states.limit_gib * GIB:
        check_space(config.states, needed)


def _source_documents(config: SourceConfig, tokenizer: Any, folder: Path) -> tuple[DocumentStore, str]:
    """Return the documents of a source in a tokenizer's tokens, and the hash that names them on disk."""
    encoder = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    provenance: dict[str, str] = {}
    if isinstance(config, ConversationsConfig):
        conversations = Conversations(config)
        provenance = {**conversations.provenance, "chat_template": str(getattr(tokenizer, "chat_template", None))}
    elif isinstance(config, TextCorpusConfig):
        text = open_text(config, "data.source")
        provenance = text.provenance
    content = fingerprint(config, encoder, provenance)
    place = folder / content[:16]
    # One process builds, while others (of the same training, or of another one) wait and find it built.
    with FileLock(place.with_suffix(".lock")):
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
            parts = {"train": (d.text for d in corpus.training), "heldout": (d.text for d in corpus.heldout)}
        return write_documents(place, _encoded(parts, tokenizer), manifest), content


def _encoded(parts: Mapping[Part, Iterator[str]], tokenizer: Any) -> Iterator[tuple[Part, Encoded]]:
    """Yield plain texts in tokens, all of them scored."""
    for part, texts in parts.items():
        for batch in batched(texts, ENCODED_AT_ONCE):
            for tokens in encode_texts(tokenizer, batch, np.uint32):
                yield part, Encoded(tokens, np.ones(len(tokens), dtype=bool))
