"""Any text as a corpus: what is held out, what is cached, and what is said of a bad one."""

import gzip
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fixtures.refusals import refused

from specdec.errors import UsageError
from specdec.text import documents
from specdec.text import sources as records
from specdec.text.documents import TextCorpusConfig
from specdec.training.data import tokenized_corpus
from specdec.training.data.tokenized_corpus import Batches, load_corpus, text_order
from specdec.training.recipes import StageConfig, TextDataConfig

open_text = partial(documents.OpenedText, group="recipe.corpus")
TEXT = [f"sentence {i} about the number {i * i} and the word {'abcdefghij'[i % 10] * 3}" for i in range(60)]


def config(file: Path | None, **changes) -> TextCorpusConfig:
    values = dict(
        name="text", path=None if file is None else str(file), hub_id=None, hub_config=None, split="train",
        revision=None, field="text", documents="lines", max_bytes=None, heldout_every=10, vocabulary=270,
    )  # fmt: skip
    return TextCorpusConfig(**{**values, **changes})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    return path


def test_paragraphs_gzip_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfone\r\nmore\r\n\r\n \r\ntwo\n\n\nthree", mtime=0))
    text = open_text(config(path, documents="paragraphs", heldout_every=2))
    assert list(text.documents()) == ["one\nmore", "two", "three"]
    assert list(open_text(config(path, heldout_every=2)).documents()) == ["one", "more", "two", "three"]


def test_max_bytes_takes_whole_documents_from_the_beginning(file):
    size = len("".join(TEXT[:30]).encode())
    assert list(open_text(config(file, max_bytes=size)).documents()) == TEXT[:30]
    assert list(open_text(config(file, max_bytes=size + 5)).documents()) == TEXT[:30]


def test_tokens_come_back_as_the_text_and_are_cached(file, tmp_path, monkeypatch):
    corpus = load_corpus(config(file), 32, tmp_path / "corpus")
    starts = [0, *corpus.ends[:-1]]
    texts = [corpus.tokenizer.decode(corpus.tokens[a:b]) for a, b in zip(starts, corpus.ends, strict=True)]
    assert texts == [line for i, line in enumerate(TEXT, 1) if i % 10]
    (heldout,) = corpus.heldout.values()
    assert corpus.tokenizer.decode(heldout) == "".join(f"<|endoftext|>{line}" for line in [*TEXT[9::10], ""])
    assert len(corpus.tokenizer) == 270 and not corpus.in_stdlib.any()
    source, held = corpus.manifest["sources"]["text"], corpus.manifest["held_out"]
    assert (source["documents"], source["tokens"]) == (54, len(corpus.tokens))
    assert (held["documents"], held["bytes"]) == (6, len("".join(TEXT[9::10]).encode()))
    assert str(tmp_path) not in str(corpus.manifest)

    # A second recipe finds it built: one tokenizer for both.
    monkeypatch.setattr(tokenized_corpus, "train_tokenizer", None)
    assert np.array_equal(load_corpus(config(file), 32, tmp_path / "corpus").tokens, corpus.tokens)
    monkeypatch.undo()
    file.write_text("\n".join([*TEXT, "one line more"]), encoding="utf-8")  # another text under the same name
    again = load_corpus(config(file), 32, tmp_path / "corpus")
    built = list((tmp_path / "corpus").glob("*/corpus.json"))
    assert len(built) == 2 and again.manifest["sha256"] != corpus.manifest["sha256"]


def test_a_corpus_that_another_training_builds_meanwhile_is_found(file, tmp_path, monkeypatch):
    lock, built = tokenized_corpus.FileLock, []

    @contextmanager
    def behind_another(path):
        monkeypatch.setattr(tokenized_corpus, "FileLock", lock)
        built.append(load_corpus(config(file), 32, tmp_path / "corpus"))
        monkeypatch.setattr(tokenized_corpus, "train_tokenizer", None)
        with lock(path):
            yield

    monkeypatch.setattr(tokenized_corpus, "FileLock", behind_another)
    found = load_corpus(config(file), 32, tmp_path / "corpus")
    assert [len(each.tokens) for each in built] == [len(found.tokens)]


def test_passes_over_the_text_as_the_budget_asks(file, tmp_path):
    corpus = load_corpus(config(file), 32, tmp_path / "corpus")
    whole = len(corpus.tokens) + len(corpus.ends)
    data = TextDataConfig(
        tokens=whole * 5 // 2 // 32 * 32, batch_tokens=32, micro_batch_tokens=32,
        stages=[StageConfig(share=1.0, sequence_length=8)], shuffle_window=8, max_passes=3,
    )  # fmt: skip
    order = text_order(corpus, data, seed=1)
    counts = np.bincount(order, minlength=len(corpus.ends))
    assert set(counts) == {2, 3}  # two and a half passes, every document in each whole one
    assert sorted(order[: len(counts)]) == list(range(len(counts)))
    assert not np.array_equal(order[: len(counts)], order[len(counts) : 2 * len(counts)])
    batches = Batches(corpus, data, seed=1)
    assert batches(batches.steps - 1).shape == (4, 9)
    with pytest.raises(UsageError, match="would read the text of .* 3 times and recipe.data.max_passes=2"):
        Batches(corpus, replace(data, max_passes=2), seed=1)


def test_a_bad_text_is_refused_in_one_sentence(tmp_path):
    for content, changes, says in (
        (None, {}, "recipe.corpus.path=.*does not exist"),
        (b"", {}, "is empty"),
        (b"one\ntwo\nth\xffree\nfour\n", {"heldout_every": 2}, r"text\.txt:3: not UTF-8"),
        (b"one\ntwo\n", {}, "heldout_every=10"),
        (b"one\ntwo\n", {"max_bytes": 2}, "is empty"),
        (b"one\ntwo\n", {"heldout_every": 2, "vocabulary": 8000}, "too small for recipe.corpus.vocabulary=8000"),
        (b"one\ntwo\n", {"hub_id": "a/b"}, "one source"),
        (b"one\ntwo\n", {"path": None}, "set either recipe.corpus.path"),
    ):
        path = tmp_path / "text.txt"
        if content is not None:
            path.write_bytes(content)
        with refused(says):
            load_corpus(config(path, **changes), 32, tmp_path / "corpus")
        assert not list((tmp_path / "corpus").rglob("corpus.json"))


def test_records_of_the_hub(monkeypatch):
    rows = [{"text": line, "id": i} for i, line in enumerate(TEXT)]

    def hub(keys, group) -> records.Records:
        assert (keys.hub_id, keys.split, group) == ("a/b", "train", "recipe.corpus")
        return records.Records(((f"a/b:{i}", i, row) for i, row in enumerate(rows)), {"hub_id": "a/b"})

    monkeypatch.setattr(documents, "read_hub", hub)
    text = open_text(config(None, hub_id="a/b"))
    assert list(text.texts("heldout")) == TEXT[9::10]
    with pytest.raises(UsageError, match="a/b:0: no text in the field 'id'.*recipe.corpus.field"):
        open_text(config(None, hub_id="a/b", field="id"))
