"""From the configuration to token sequences: documents of a source in the target's tokens, or the target's own
continuations of them; tokens are kept on disk.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from specdec.errors import UsageError
from specdec.progress import stage
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
    SequencesConfig,
    SourceConfig,
    fingerprint,
)

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
    if config.generated is None:
        return text_sequences(config, tokenizer, seed)
    writer = SelfDistillation(config.generated, target, seed, config.sequence_length)
    folder = Path(config.folder).expanduser()
    store, content = _source_documents(config.source, tokenizer, folder)
    content = fingerprint(config.generated, seed, config.sequence_length, target.hidden.identity, content)
    place = folder / content[:16]
    with FileLock(place.with_suffix(".lock")):
        written = read_documents(place)
        if written is None:
            # Before the target writes for hours: the states of its texts have to fit on the disk.
            generated, output = config.generated, target.hidden.output_layer
            sequences = min(generated.texts, config.sequences or generated.texts)
            sequences += min(generated.heldout_texts, config.heldout)
            itemsize = states_dtype(config.states, output.dtype).itemsize
            needed = sequences * config.sequence_length * output.shape[-1] * itemsize
            if config.states.cache == "disk" and needed <= config.states.limit_gib * GIB:
                check_space(config.states, needed)
            written = writer.documents(store, isinstance(config.source, ConversationsConfig), place)
    # What the target continues may begin in the middle of a text.
    return Sequences(written, config, seed, SpecialTokens.none(tokenizer), content)


def text_sequences(config: SequencesConfig, tokenizer: Any, seed: int) -> Sequences:
    """Read and encode the text of a source by a fast tokenizer; finished work is taken from `config.folder`.

    Raises:
        UsageError: a source that is missing, empty, malformed or too short; keys are named.
    """
    store, content = _source_documents(config.source, tokenizer, Path(config.folder).expanduser())
    own = isinstance(config.source, ConversationsConfig)  # conversations bring their special tokens
    special = SpecialTokens.none(tokenizer) if own else SpecialTokens.of(tokenizer)
    return Sequences(store, config, seed, special, content)


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
        manifest: dict[str, Any] = {"source": provenance, "tokenizer_sha256": encoder}
        with stage("Read the text", "of data.source, in the target's tokens") as under_way:
            if isinstance(config, ConversationsConfig):
                manifest["left_out"] = conversations.left_out
                return write_documents(place, conversations.encoded(tokenizer), manifest), content
            if isinstance(config, TextCorpusConfig):
                parts: dict[Part, Iterator[str]] = {"train": text.training(), "heldout": text.heldout()}
            else:
                corpus = build_corpus(config)
                manifest |= {"corpus_sha256": corpus.manifest["sha256"], "sources": corpus.manifest["sources"]}
                parts = {"train": (d.text for d in corpus.training), "heldout": (d.text for d in corpus.heldout)}
                under_way.total = len(corpus.training) + len(corpus.heldout)

            def encoded() -> Iterator[tuple[Part, Encoded]]:
                for part, texts in parts.items():
                    for batch in batched(texts, ENCODED_AT_ONCE):
                        for tokens in encode_texts(tokenizer, batch, np.uint32):
                            yield part, Encoded(tokens, np.ones(len(tokens), dtype=bool))  # all of a text is scored
                        under_way.advance(len(batch))

            return write_documents(place, encoded(), manifest), content
