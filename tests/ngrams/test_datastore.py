"""Datastores: the order of suffixes, files, and damage. `tests/drafters/test_retrieval.py` has the look-up."""

import json
import pickle

import numpy as np
import pytest

from specdec.ngrams.datastore import (
    in_memory,
    open_datastore,
    open_rest_index,
    read_manifest,
    suffix_order,
    write_datastore,
)


def stream(documents):
    return np.array([token for text in documents for token in (-1, *text)], dtype=np.int32)


@pytest.mark.parametrize("vocab_size", [200, 40_000, 70_000])
def test_suffixes_are_in_the_order_of_the_tokens(vocab_size):
    """Tokens of one, two and three bytes: the least significant byte must not decide."""
    dice = np.random.default_rng(vocab_size)
    alphabet = dice.integers(0, vocab_size, size=6)
    store = in_memory(np.concatenate([[-1], dice.choice(alphabet, size=300)]).astype(np.int32), vocab_size, "")
    tokens = np.asarray(store.chunks[0].tokens)
    assert tokens.dtype == (np.uint16 if vocab_size < 2**16 else np.uint32) and tokens[0] == vocab_size
    text = tokens.tolist()
    assert suffix_order(tokens).tolist() == sorted(range(len(text)), key=lambda place: text[place:])


@pytest.fixture
def folder(tmp_path):
    write_datastore(tmp_path / "store", in_memory(stream([[1, 2, 3, 1, 2], [2, 3]]), 9, "a text"), "abc", "its hash")
    return tmp_path / "store"


def test_what_is_written_is_mapped_and_described_and_another_process_opens_it_again(folder):
    manifest = read_manifest(folder)
    assert (manifest.tokenizer, manifest.vocab_size, manifest.tokens, manifest.documents) == ("abc", 9, 9, 2)
    assert (manifest.source, manifest.source_digest) == ("a text", "its hash")
    store = open_datastore(folder, manifest)
    assert store.about["tokens"] == 9
    assert store.continuations([7, 1, 2], 1, width=3, limit=10) == [[3, 1, 2]]  # the other one ends a document
    assert isinstance(store.chunks[0].tokens.obj, np.memmap)
    sent = pickle.dumps(store)
    assert len(sent) < 1000  # names, not tokens
    assert pickle.loads(sent).continuations([1, 2], 1, 3, 9) == store.continuations([1, 2], 1, 3, 9) != []


def test_writing_again_replaces(folder):
    write_datastore(folder, in_memory(stream([[4, 5]]), 9, "another"), "abc", "hash")
    assert open_datastore(folder, read_manifest(folder)).continuations([4], 1, 3, 3) == [[5]]
    assert [path.name for path in folder.parent.iterdir()] == ["store"]


def test_damage_is_seen(folder):
    whole = (folder / "manifest.json").read_text()
    for text, words in (
        ("{", "not JSON"),
        ("[]", "format"),
        (json.dumps({"format": "other"}), "format"),
        (json.dumps({**json.loads(whole), "tokens": "many"}), "'tokens'"),
        (json.dumps({key: value for key, value in json.loads(whole).items() if key != "sha256"}), "'sha256'"),
    ):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match=words):
            read_manifest(folder)
    (folder / "manifest.json").write_text(json.dumps({**json.loads(whole), "tokens": 8}))
    with pytest.raises(ValueError, match="8 tokens"):
        open_datastore(folder, read_manifest(folder))
    (folder / "manifest.json").write_text(whole)
    content = bytearray((folder / "suffixes.npy").read_bytes())
    content[-1] ^= 1
    (folder / "suffixes.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"suffixes\.npy"):
        open_datastore(folder, read_manifest(folder))
    (folder / "suffixes.npy").unlink()
    with pytest.raises(ValueError, match=r"no suffixes\.npy"):
        open_datastore(folder, read_manifest(folder))


def rest_index(*chunks):
    """The bytes that DraftRetriever writes: for each chunk, tokens in two bytes and the order of suffixes in four."""
    content = b""
    for tokens in chunks:
        order = sorted(range(len(tokens)), key=lambda place: tokens[place:])
        for numbers, size in ((tokens, 2), (order, 4)):
            block = b"".join(number.to_bytes(size, "little") for number in numbers)
            content += len(block).to_bytes(4, "little") + block
    return content


def test_an_index_of_rest(tmp_path):
    """Two chunks; the first has an odd number of tokens, so that nothing after it is aligned."""
    one, two = [1, 2, 3, 1, 2, 4, 300], [5, 1, 2, 3, 1, 2, 3, 9]
    (tmp_path / "store.idx").write_bytes(rest_index(one, two))
    store = open_rest_index(tmp_path / "store.idx", 301)
    assert store.about["tokens"] == 15
    assert sorted(store.continuations([8, 1, 2], 2, width=2, limit=10)) == [[3, 1], [3, 1], [3, 9], [4, 300]]
    assert store.continuations([8, 3, 9], 2, width=2, limit=10) == []  # nothing follows
    assert store.continuations([7, 7], 2, width=2, limit=10) == []


def test_damage_of_an_index_is_seen(tmp_path):
    for content, words in (
        (rest_index([1, 2, 3])[:2], "middle"),
        (rest_index([1, 2, 3])[:10], "middle"),
        (rest_index([1, 2, 30]), "token 30"),
        (b"\x02\0\0\0\1\0\x04\0\0\0\7\0\0\0", "places"),
        (b"\x04\0\0\0\1\0\1\0\x04\0\0\0\0\0\0\0", "2 tokens and 1 suffixes"),
    ):
        (tmp_path / "store.idx").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            open_rest_index(tmp_path / "store.idx", 10)
