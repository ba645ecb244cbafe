"""What heads are trained on: which tokens, in which order, which of them scored."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.refusals import refused
from fixtures.small_parts import composed_values

from specdec.config import config_dir, validated
from specdec.errors import UsageError
from specdec.text.document_store import Encoded, read_documents, write_documents
from specdec.text.python_sources import Document, PythonCorpus
from specdec.training.data import head_data as module
from specdec.training.data.head_data import open_sequences
from specdec.training.data.sequences import PackedSequences, SpecialTokens
from specdec.training.data_recipes import HeadDataConfig


def texts(sequences, tokenizer, part: str) -> list[str]:
    """Documents between the end-of-text tokens of the packed sequences."""
    rows = np.arange(len(sequences._parts[part]))
    return tokenizer.decode(sequences.batch(part, rows).tokens.flatten()).split("<|endoftext|>")


def test_packed_sequences_are_the_text_in_the_targets_tokens(head_data, text_target, text_file):
    lines = text_file.read_text().splitlines()
    sequences = open_sequences(head_data(passes=1), text_target, seed=3)
    for part, expected in (("train", [x for i, x in enumerate(lines, 1) if i % 10]), ("heldout", lines[9::10])):
        found = texts(sequences, text_target.tokenizer, part)
        assert found[0] == "" and len(found) - 1 >= len(expected) - 2  # of the end less than a sequence is left out
        whole, cut = found[1:-1], found[-1]
        assert set(whole) <= set(expected) and len(set(whole)) == len(whole) and whole != sorted(whole, key=lines.index)
        assert any(line.startswith(cut) for line in expected)
    batch = sequences.train(0)
    assert batch.tokens.shape == batch.scored.shape == (4, 16) and batch.tokens.dtype == torch.int64
    assert batch.scored.all()  # the mark between two texts too: it is what ends the one


def test_every_pass_reads_every_sequence_once_in_its_own_order(head_data, text_target):
    sequences = open_sequences(head_data(passes=None, steps=90), text_target, seed=3)
    count = len(sequences._parts["train"])
    rows = np.concatenate([sequences.train(step).numbers for step in range(sequences.steps)])
    assert len(rows) == 360 > 3 * count
    passes = rows[: 3 * count].reshape(3, count)
    assert all(sorted(each) == list(range(count)) for each in passes) and len(set(map(tuple, passes))) == 3
    again = open_sequences(head_data(passes=None, steps=90), text_target, seed=3)
    assert torch.equal(again.train(41).tokens, sequences.train(41).tokens)  # without the steps before it
    other = open_sequences(head_data(passes=None, steps=90), text_target, seed=4)
    assert not torch.equal(other.train(0).tokens, sequences.train(0).tokens)
    assert other.fingerprint != sequences.fingerprint == again.fingerprint


def test_passes_and_sequences_make_the_steps(head_data, text_target):
    sequences = open_sequences(head_data(passes=2.5, sequences=10), text_target, seed=3)
    assert sequences.steps == 25 // 4 and sequences.counts["train"] == 10
    rows = np.concatenate([sequences.train(step).numbers for step in range(sequences.steps)])
    assert set(rows) == set(range(10))
    short = open_sequences(head_data(passes=0.5, sequences=10), text_target, seed=3)
    assert (short.steps, short.counts["train"]) == (1, 4)  # states of the other six are never asked for


def test_held_out_sequences_come_in_batches_and_stay_the_same(head_data, text_target):
    sequences = open_sequences(head_data(), text_target, seed=3)
    batches = list(sequences.heldout())
    assert [len(batch) for batch in batches] == [4, 1] and all(batch.part == "heldout" for batch in batches)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(batches, sequences.heldout(), strict=True))
    parts = list(batches[0].split(3))
    assert [len(part) for part in parts] == [3, 1]
    assert torch.equal(torch.cat([part.tokens for part in parts]), batches[0].tokens)


def test_a_document_a_row_is_cut_or_padded(head_data, text_target, text_file):
    text_file.write_text("\n".join(["if", "while True and not False " * 9] * 20))
    sequences = open_sequences(head_data(packed=False), text_target, seed=3)
    batch = sequences.batch("train", np.arange(len(sequences._parts["train"])))
    lengths = batch.scored.sum(1)
    assert set(lengths.tolist()) == {len(text_target.tokenizer("if")["input_ids"]) + 1, 16}
    end = text_target.tokenizer.eos_token_id
    for tokens, scored in zip(batch.tokens, batch.scored, strict=True):
        assert tokens[0] == end and (tokens[~scored] == end).all()
        assert scored.sum() == 16 or (~scored[int(scored.sum()) :]).all()


def test_marks_of_a_tokenizer_with_two_of_them(tmp_path):
    class Tokenizer:
        bos_token_id, eos_token_id, pad_token_id = 1, 2, None

    special = SpecialTokens.of(Tokenizer)
    around = special.around(Encoded(np.array([7, 8]), np.array([True, True])))
    assert around.tokens.tolist() == [1, 7, 8, 2] and around.scored.tolist() == [False, True, True, True]
    assert special.padding == 2
    documents = [("train", Encoded(np.array([10 + i] * i), np.ones(i, bool))) for i in range(1, 6)]
    store = write_documents(tmp_path, documents, {})
    packed = PackedSequences(store.train, 5, special, np.random.default_rng(0))
    stream = np.concatenate([packed[i].tokens for i in range(len(packed))]).tolist()
    whole = [t for i in packed.order for t in [1, *[11 + int(i)] * (int(i) + 1), 2]]
    assert stream == whole[: len(stream)] and len(whole) - len(stream) < 5


def test_documents_come_back_from_disk(tmp_path):
    def interrupted():
        yield "train", Encoded(np.array([1]), np.array([True]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_documents(tmp_path, interrupted(), {})
    assert read_documents(tmp_path) is None
    written = [
        ("train", Encoded(np.array([1, 70000, 3]), np.array([True, False, True]))),
        ("train", Encoded(np.array([], dtype=np.int64), np.array([], dtype=bool))),
        ("train", Encoded(np.array([4]), np.array([False]))),
    ]
    write_documents(tmp_path, iter(written), {"source": "test"})
    store = read_documents(tmp_path)
    assert [d.tokens.tolist() for d in map(store.train.__getitem__, range(3))] == [[1, 70000, 3], [], [4]]
    assert store.train[0].scored.tolist() == [True, False, True]
    assert len(store.heldout) == 0 and store.train.lengths.tolist() == [3, 0, 1]
    assert store.manifest["train"] == {"documents": 3, "tokens": 4} and store.manifest["source"] == "test"


def test_a_second_training_finds_the_text_encoded(head_data, text_target, monkeypatch, text_file):
    first = open_sequences(head_data(), text_target, seed=3)
    monkeypatch.setattr(module, "write_documents", None)
    second = open_sequences(head_data(sequence_length=8), text_target, seed=3)
    assert first.fingerprint != second.fingerprint and first.manifest == second.manifest
    assert str(text_file.parent) not in str(first.manifest)
    monkeypatch.undo()
    text_file.write_text(text_file.read_text() + "\nanother line")
    assert open_sequences(head_data(), text_target, seed=3).fingerprint != first.fingerprint


def test_python_sources_keep_the_holdout_apart(head_data, text_target, monkeypatch, group_values):
    """The split itself, and what of the rest repeats it, is for `test_python_sources.py`."""
    held, other = "def wrapped(text):\n    return text\n" * 30, "class Other:\n    name = 'other'\n" * 30
    train, heldout = ([Document("stdlib", f"{text[:5]}.py", text)] for text in (other, held))
    corpus = PythonCorpus(train, heldout, {"sha256": "0" * 64, "sources": {"stdlib": {"dropped": {"too short": 1}}}})
    monkeypatch.setattr(module, "build_corpus", lambda config: corpus)
    source = group_values("corpus", "python_sources")
    sequences = open_sequences(head_data(source=source, sequence_length=64, packed=False, batch=1), text_target, seed=3)
    stores = {part: sequences._parts[part].documents for part in ("train", "heldout")}
    found = {part: [text_target.tokenizer.decode(s[i].tokens) for i in range(len(s))] for part, s in stores.items()}
    assert found == {"train": [other], "heldout": [held]}
    assert sequences.manifest["sources"] == corpus.manifest["sources"]


@pytest.mark.parametrize("name", sorted(path.stem for path in (Path(config_dir()) / "head_data").glob("*.yaml")))
def test_every_yaml_composes_and_validates(name):
    values = composed_values(f"+head_data@data={name}", root="train")["data"]
    config = validated(HeadDataConfig, values, "data")
    assert asdict(config) == values
    always = dict.fromkeys(("generated", "prompts", "self_synthesis"), "always")
    when = always | {"python_sources": "chat_model"}
    assert (None if config.generated is None else config.generated.when) == when.get(name)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sequence_length": 257}, "data.sequence_length=257: the target's context has 256 tokens"),
        ({"batch": 4000}, "data.batch=4000: lower"),
        ({"sequences": 3}, "of which 3 are read .data.sequences., and a step takes data.batch=4"),
        ({"passes": None}, "set one of passes and steps"),
        ({"source": {"name": "songs"}}, "source.name=songs is none of text, conversations"),
        ({"source": {"name": "text"}}, "Missing key source.path"),
    ],
)
def test_bad_values_are_refused_in_one_sentence(head_data, text_target, changes, says):
    with refused(says):
        open_sequences(head_data(**changes), text_target, seed=3)


def test_a_target_without_a_tokenizer_is_refused(head_data, table):
    with refused("Table has no fast tokenizer.*target=causal"):
        open_sequences(head_data(), table([[0.5, 0.5], [0.5, 0.5]]), seed=3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"one\nt\xffwo\n" * 20, r"text\.txt:2: not UTF-8 text; convert the file that data.source.path names"),
        (b"one\n" * 11, "held-out text of data.source makes no sequence|makes . sequences"),
    ],
)
def test_bad_text_is_refused_with_this_recipes_keys(head_data, text_target, text_file, content, says):
    text_file.write_bytes(content)
    with pytest.raises(UsageError, match=says) as refused:
        open_sequences(head_data(), text_target, seed=3)
    assert "recipe.corpus" not in str(refused.value) and "prompts." not in str(refused.value)
