"""From the configuration to token sequences: documents of a source in the target's tokens, or what the target writes
when it goes on with them or answers; tokens are kept on disk.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from filelock import FileLock

from specdec.errors import UsageError
from specdec.ngrams.corpus import tokenizer_digest
from specdec.progress import stage, tell
from specdec.prompts import prompts as prompt_sets
from specdec.prompts.base.contract import SetConfig
from specdec.targets.base import Target
from specdec.text.conversations import Conversations, ConversationsConfig
from specdec.text.document_store import DocumentStore, Encoded, batched, encode_texts, read_documents, write_documents
from specdec.text.documents import OpenedText, TextCorpusConfig
from specdec.text.python_sources import PythonCorpus, PythonCorpusConfig, build_corpus
from specdec.text.sources import PARTS, Part
from specdec.training.data.hidden_states import GIB, check_space, states_dtype
from specdec.training.data.self_distillation import Prompts, SelfDistillation, SelfSynthesis, scored_behind
from specdec.training.data.sequences import Sequences, SpecialTokens
from specdec.training.data_recipes import (
    HeadDataConfig,
    SelfSynthesisConfig,
    SequencesConfig,
    SourceConfig,
    as_data_source,
    fingerprint,
)

ENCODED_AT_ONCE = 1024  # documents
_BYTES_PER_S = 4e6  # of a text, about


def open_sequences(
    config: HeadDataConfig, target: Target, seed: int, foretell: Callable[[Sequences], Any] | None = None
) -> Sequences:
    """Read and encode the text and, if asked for, let the target write; finished work is taken from `config.folder`.
    `foretell` is called before the target writes, with sequences like those to come: as many at most, as long. Raises
    UsageError: a target without tokenizer or with a short context; a source that is missing, malformed or too short.
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
    generated = config.generated
    chat = getattr(tokenizer, "chat_template", None) is not None
    if generated is None or generated.when == "chat_model" and not chat:
        return text_sequences(config, tokenizer, seed)
    writer = SelfDistillation(generated, target, seed, config.sequence_length)
    if generated.when == "chat_model":
        tell(
            "The tokenizer has a chat template, so what is trained learns from the target's own answers to pieces of "
            "data.source (data.generated=null: from data.source as it is)."
        )
    folder, source, more = Path(config.folder).expanduser(), config.source, generated.new_tokens
    special = SpecialTokens.none(tokenizer)  # what the target continues may begin in the middle of a text
    synthesis: SelfSynthesis | None = None
    content = ""
    if isinstance(source, SelfSynthesisConfig):
        synthesis, source = SelfSynthesis(source, writer), replace(source, keep_out=[])
        about: Mapping[str, Any] = synthesis.provenance
        question = (0,) * (config.sequence_length - more)  # the longest that is kept
        stand_ins: Prompts = {part: [question] * count for part, count in generated.counts.items()}
        questions: Callable[[], Prompts] = partial(dict, stand_ins)
    elif isinstance(source, SetConfig) or chat and not isinstance(source, ConversationsConfig):
        about, questions = _questions(source, writer)
    else:
        store, content = _source_documents(source, tokenizer, folder)
        turns, about = isinstance(source, ConversationsConfig), store.manifest
        questions = partial(writer.beginnings, store, turns)
    content = content or fingerprint(source, tokenizer_digest(tokenizer), about, str(tokenizer.chat_template))
    values = {key: value for key, value in asdict(generated).items() if key != "when"}  # that decides, and then is done
    content = fingerprint(values, seed, config.sequence_length, target.hidden.identity, content)
    place = folder / content[:16]
    with FileLock(place.with_suffix(".lock")):
        written = read_documents(place)
        if written is None:
            _check_disk(config, writer)  # before the target writes for hours
            prompts = questions()
            if foretell is not None:
                # Each answer is as long as it may be.
                likely = (
                    (part, scored_behind(each, np.resize(each, more))) for part in prompts for each in prompts[part]
                )
                with TemporaryDirectory() as unread:
                    foretell(Sequences(write_documents(Path(unread), likely, {}), config, seed, special, ""))
            written = synthesis.documents(place) if synthesis else writer.documents(prompts, {"of": dict(about)}, place)
    return Sequences(written, config, seed, special, content)


def _check_disk(config: HeadDataConfig, writer: SelfDistillation) -> None:
    """Refuse texts whose states will not fit on the disk; raises UsageError, see `check_space`."""
    output, texts = writer.target.hidden.output_layer, writer.config.texts
    sequences = min(texts, config.sequences or texts) + min(writer.config.heldout_texts, config.heldout)
    itemsize = states_dtype(config.states, output.dtype).itemsize
    needed = sequences * config.sequence_length * output.shape[-1] * itemsize
    if config.states.cache == "disk" and needed <= config.states.limit_gib * GIB:
        check_space(config.states, needed)


def _questions(source: SourceConfig, writer: SelfDistillation) -> tuple[Mapping[str, str], Callable[[], Prompts]]:
    """Return what identifies a source, and a function that makes its questions: a set's prompts or a text's pieces."""
    if isinstance(source, SetConfig):
        with as_data_source():
            content = prompt_sets.construct(source).read()
        texts = [entry.turns[0] for entry in content.entries if entry.turns][: source.limit]
        rendered = writer.chat and source.chat == "auto"
        return content.provenance, lambda: writer.split(writer.asked(texts, rendered))

    text = OpenedText(source, "data.source") if isinstance(source, TextCorpusConfig) else None

    def of_text() -> Prompts:
        with stage("Read the text", "of data.source", expected=_reading_seconds(source)):
            corpus = build_corpus(source) if isinstance(source, PythonCorpusConfig) else text
            assert corpus is not None
            chosen = writer.pieces({part: corpus.texts(part) for part in PARTS})
        return {part: writer.asked(several, writer.chat) for part, several in chosen.items()}

    return {} if text is None else text.provenance, of_text


def text_sequences(config: SequencesConfig, tokenizer: Any, seed: int) -> Sequences:
    """Read and encode the text of a source by a fast tokenizer; finished work is taken from `config.folder`. Raises
    UsageError: a source that is missing, empty, malformed or too short; keys are named.
    """
    if isinstance(config.source, SetConfig | SelfSynthesisConfig):
        which = "self_synthesis" if isinstance(config.source, SelfSynthesisConfig) else "prompts"
        raise UsageError(
            f"Source data.source.name={config.source.name} has prompts alone, and no text to learn from: "
            f"head_data@data={which} has the target answer them."
        )
    store, content = _source_documents(config.source, tokenizer, Path(config.folder).expanduser())
    own = isinstance(config.source, ConversationsConfig)  # conversations bring their special tokens
    special = SpecialTokens.none(tokenizer) if own else SpecialTokens.of(tokenizer)
    return Sequences(store, config, seed, special, content)


def _reading_seconds(source: SourceConfig) -> float | None:
    """Return about how long a file takes to be read; None for another source."""
    path = Path(getattr(source, "path", None) or "").expanduser()  # "" is a folder
    return path.stat().st_size / _BYTES_PER_S if path.is_file() else None


def _source_documents(config: SourceConfig, tokenizer: Any, folder: Path) -> tuple[DocumentStore, str]:
    """Return the documents of a source in a tokenizer's tokens, and the hash that names them on disk."""
    encoder = tokenizer_digest(tokenizer)
    provenance: dict[str, str] = {}
    text: OpenedText | PythonCorpus | None = None
    if isinstance(config, ConversationsConfig):
        conversations = Conversations(config)
        provenance = {**conversations.provenance, "chat_template": str(getattr(tokenizer, "chat_template", None))}
    elif isinstance(config, TextCorpusConfig):
        text = OpenedText(config, "data.source")
        provenance = text.provenance
    content = fingerprint(config, encoder, provenance)
    place = folder / content[:16]
    # One process builds, while others (of the same training, or of another one) wait and find it built.
    with FileLock(place.with_suffix(".lock")):
        found = read_documents(place)
        if found is not None:
            return found, content
        manifest: dict[str, Any] = {"source": provenance, "tokenizer_sha256": encoder}
        about, total = "of data.source, in the target's tokens", None
        if isinstance(config, PythonCorpusConfig):
            text = corpus = build_corpus(config)
            manifest |= {"corpus_sha256": corpus.manifest["sha256"], "sources": corpus.manifest["sources"]}
            total = len(corpus.training) + len(corpus.heldout)
        with stage("Read the text", about, total, expected=_reading_seconds(config)) as under_way:
            if isinstance(config, ConversationsConfig):
                manifest["left_out"] = conversations.left_out
                return write_documents(place, conversations.encoded(tokenizer), manifest), content
            assert text is not None

            def encoded() -> Iterator[tuple[Part, Encoded]]:
                for part in PARTS:
                    for batch in batched(text.texts(part), ENCODED_AT_ONCE):
                        for tokens in encode_texts(tokenizer, batch, np.uint32):
                            yield part, Encoded(tokens, np.ones(len(tokens), dtype=bool))  # all of a text is scored
                        under_way.advance(len(batch))

            return write_documents(place, encoded(), manifest), content
