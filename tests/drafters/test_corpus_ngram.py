"""The corpus n-gram: its law against a second implementation with dictionaries, reading, keeping, and bad input."""

import gzip
import json
import sqlite3
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.drafting import assert_drafted_from, assert_laws_are_those_of_drafts
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from specdec import run
from specdec.analysis.read.runs import open_folder
from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.models.load import load_tokenizer, model_path
from specdec.ngrams import corpus as ngram_corpus
from specdec.ngrams import kneser_ney as ngram_table
from specdec.ngrams.corpus import BOUNDARY, open_corpus, tokenize
from specdec.ngrams.kneser_ney import NgramTable
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.text.python_sources import held_out_modules

SIZE, DISCOUNT = 5, 0.75


def documents(seed=0, count=6, length=25):
    """Tokens in which some follow others more often, and one token of the vocabulary never occurs."""
    steps = np.random.default_rng(seed).integers(1, 3, size=(count, length))
    return (steps.cumsum(axis=1) % (SIZE - 1)).tolist() + [[2], []]


def stream(texts):
    return np.array([token for text in texts for token in (BOUNDARY, *text)], dtype=np.int32)


def kneser_ney(texts, order, context):
    """p(. | context) from the definition: counts at the highest order, different predecessors below."""
    context = tuple(context[max(0, len(context) - order + 1) :])
    grams = [Counter(tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)) for n in range(1, order + 1)]
    law = [1 / SIZE] * SIZE
    for n in range(1, len(context) + 2):
        suffix = context[len(context) - n + 1 :]
        values = []
        for token in range(SIZE):
            gram = (*suffix, token)
            above = [1 for longer in grams[n] if longer[1:] == gram] if n < order else []
            values.append(sum(above) if n < order else grams[n - 1][gram])
        total = sum(values)
        if total == 0:
            break
        seen = sum(value > 0 for value in values)
        law = [
            max(v - DISCOUNT, 0) / total + DISCOUNT * seen / total * lower for v, lower in zip(values, law, strict=True)
        ]
    return law


def contexts(order, generator):
    yield ()
    for length in range(1, order + 1):
        yield from generator.integers(0, SIZE, size=(12, length)).tolist()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_law_is_interpolated_kneser_ney(order):
    texts = documents()
    table = NgramTable.fit(stream(texts), SIZE, order, DISCOUNT)
    for context in contexts(order, np.random.default_rng(1)):
        law = table.law(context)
        assert law == pytest.approx(kneser_ney(texts, order, context), abs=1e-12), context
        assert law.sum() == pytest.approx(1.0) and (law > 0).all()


def test_counting_in_chunks_changes_nothing(monkeypatch):
    whole = NgramTable.fit(stream(documents()), SIZE, 4, DISCOUNT)
    monkeypatch.setattr(ngram_table, "_CHUNK", 7)
    parts = NgramTable.fit(stream(documents()), SIZE, 4, DISCOUNT)
    assert np.array_equal(whole.unigrams, parts.unigrams)
    for one, other in zip(whole.levels, parts.levels, strict=True):
        assert all(np.array_equal(vars(one)[name], vars(other)[name]) for name in vars(one))


@pytest.fixture
def build(tmp_path, sampling, group_values):
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps({"tokens": text}) + "\n" for text in documents()))

    def make(tokenizer=None, vocab_size=SIZE, how=None, **keys):
        target = SimpleNamespace(
            sampling=sampling(**(how or {})), device=torch.device("cpu"), vocab_size=vocab_size, tokenizer=tokenizer
        )
        files = {"corpus": str(path), "field": "tokens", "cache_dir": str(tmp_path / "fitted")}
        return drafters.build(group_values("drafter", "corpus_ngram", **files | keys), target=target)

    return make


@pytest.mark.parametrize(("order", "temperature"), [(1, 0.8), (2, 0.0), (3, 0.8)])
def test_the_laws_along_a_text_are_those_of_its_drafts(build, order, temperature, monkeypatch):
    monkeypatch.setattr("specdec.drafters.corpus_ngram._CHUNK", 3)
    drafter = build(how={"temperature": temperature}, order=order)
    assert_laws_are_those_of_drafts(drafter, [3], [1, 2, 0, 1, 2, 2, 3, 0, 1])


@pytest.mark.parametrize(
    ("structure", "siblings", "how"),
    [
        ("chain", "independent", {"temperature": 0.7}),
        ("rows", "without_replacement", {"temperature": 1.0, "top_k": 3}),
        ("rows", "independent", {"top_p": 0.6}),
        ("tree", "without_replacement", {"temperature": 0.0}),
        ("tree", "independent", {"temperature": 0.7}),
    ],
)
def test_every_node_follows_the_law_of_its_path(build, sampling, make_structure, siblings, how, structure):
    drafter = build(how=how, order=3, siblings=siblings)
    drafter.start(TextStart([0, 1], 100, generator=generator_for(0, "p", "draft")))
    drafter.commit([3])
    draft = drafter.draft(make_structure(structure, 3))
    assert draft.tree.depth == 3 and (draft.q is None) == (how.get("temperature") == 0)
    assert_drafted_from(
        draft,
        lambda node, above: torch.tensor(kneser_ney(documents(), 3, [0, 1, 3, *above]), dtype=torch.float64).log(),
        sampling(**how),
        independent=siblings == "independent",
    )


@pytest.fixture(scope="module")
def pocket():
    return load_tokenizer(model_path("pocket"))


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def read(path, field, tokenizer, size=4096):
    return tokenize(open_corpus(str(path), field), tokenizer, size).tolist()


TEXT = "def first(x):\n    return x + 1\n\n# Umlaute: äöü, €, 語\n" * 40


@pytest.mark.parametrize("zipped", [False, True])
def test_a_text_file_is_one_document_in_the_targets_tokens(tmp_path, pocket, zipped, monkeypatch):
    content = TEXT.encode()
    (tmp_path / "a.txt").write_bytes(gzip.compress(content) if zipped else content)
    assert read(tmp_path / "a.txt", None, pocket) == [BOUNDARY, *ids(pocket, TEXT)]
    # In parts the same text; tokens end where parts do.
    monkeypatch.setattr(ngram_corpus, "_PART", 100)
    monkeypatch.setattr(ngram_corpus, "_BATCH", 300)
    tokens = read(tmp_path / "a.txt", None, pocket)
    assert tokens[0] == BOUNDARY and BOUNDARY not in tokens[1:]
    assert pocket.decode(tokens[1:]) == TEXT
    monkeypatch.setattr(ngram_corpus, "_PART", 7)  # a line that is longer is cut between characters
    (tmp_path / "a.txt").write_text("語" * 50, encoding="utf-8")
    assert pocket.decode(read(tmp_path / "a.txt", None, pocket)[1:]) == "語" * 50


def test_a_prompt_set_gives_a_document_for_every_text(tmp_path, pocket):
    rows = [{"t": "x = 1"}, {"t": ["a first turn", "a second"]}, {"t": [7, 8]}, {"t": []}]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    texts = [ids(pocket, text) for text in ("x = 1", "a first turn", "a second")] + [[7, 8], []]
    assert read(tmp_path / "a.jsonl", "t", pocket) == stream(texts).tolist()


def test_a_tokenizer_that_truncates_is_not_obeyed(tmp_path, pocket):
    short = deepcopy(pocket)
    short.backend_tokenizer.enable_truncation(3)
    (tmp_path / "a.txt").write_text(TEXT)
    assert read(tmp_path / "a.txt", None, short) == [BOUNDARY, *ids(pocket, TEXT)]
    assert short.backend_tokenizer.truncation is not None


@pytest.mark.slow
def test_the_default_corpus_has_nothing_of_the_held_out_prompts():
    names = [part.where for part in open_corpus(None, None).parts()]
    assert len(names) > 300 and "bisect.py" in names and "json/decoder.py" in names
    stems = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names}
    assert not stems & set(held_out_modules())
    assert not any(name.startswith(("zipfile", "test/", "pydoc_data", "site-packages")) for name in names)


def test_a_fitted_model_is_kept_and_taken_again(build, tmp_path, monkeypatch):
    first = build()
    (kept,) = (tmp_path / "fitted").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(NgramTable, "fit", lambda *_: pytest.fail("it was fitted again"))
        again = build()
        other_discount = build(discount=0.5)
    assert np.array_equal(first._table.law([1]), again._table.law([1]))
    assert not np.array_equal(first._table.law([1]), other_discount._table.law([1]))
    # Another order, vocabulary or corpus is another model.
    build(order=3)
    build(vocab_size=SIZE + 1)
    (tmp_path / "tokens.jsonl").write_text('{"tokens": [0, 1]}')
    build()
    build(order=4, cache_dir=None)
    assert len(list((tmp_path / "fitted").iterdir())) == 4


def test_targets_that_tokenise_otherwise_have_files_of_their_own(build, tmp_path):
    """Two tokenizers with the same words under other numbers, and one cache: each target has the law that it would
    have without a cache.
    """
    words = ["a", "b", "c", "d", "e"]
    (tmp_path / "words.txt").write_text("a b a c a b a d e a b")
    for numbers in ([0, 1, 2, 3, 4], [3, 2, 0, 4, 1], [0, 1, 2, 3, 4]):
        level = WordLevel(dict(zip(words, numbers, strict=True)), unk_token="a")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(level))
        tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
        keys = {"tokenizer": tokenizer, "corpus": str(tmp_path / "words.txt"), "field": None}
        kept, alone = build(**keys), build(**keys, cache_dir=None)
        for context in range(SIZE):
            assert np.array_equal(kept._table.law([context]), alone._table.law([context]))
        follows_a = {words[numbers.index(token)] for token in np.flatnonzero(alone._table.law([numbers[0]]) > 0.2)}
        assert follows_a == {"b"}
    assert len(list((tmp_path / "fitted").iterdir())) == 2


def test_a_corpus_that_cannot_be_used_is_named_in_one_sentence(tmp_path, pocket):
    for content, field, words in (
        (None, None, "drafter.corpus=.*does not exist"),
        (b"", None, "is empty"),
        (b'{"t": []}', "t", "is empty"),
        (b"good\n" + 70_000 * b"x" + b"\xff\xfe", None, "not UTF-8 text at byte 70005"),
        (b'{"t": "ok"}\n{"t": "\xff"}', "t", ":2: not UTF-8"),
        (b"plain text", "t", ":1: not JSON; .*drafter.field=null"),
        (b'{"text": "x"}', "t", ":1: no key 't'"),
        (b'{"t": {"x": 1}}', "t", "a text, a list of texts or a list of token ids"),
        (b'{"t": [1, 4096]}', "t", ":1: token 4096 is not among the target's 4096 tokens"),
        (b'{"t": [1, 18446744073709551616]}', "t", ":1: token 18446744073709551616 is not among"),
    ):
        path = tmp_path / "corpus"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=words) as caught:
            read(path, field, pocket)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_text_needs_a_tokenizer_and_a_field_a_file(build):
    with pytest.raises(UsageError, match="the target has no tokenizer"):
        build(corpus=__file__, field=None)
    with pytest.raises(UsageError, match=r"drafter\.field=tokens"):
        build(corpus=None)


@pytest.mark.slow
def test_a_bigram_is_called_that_everywhere(in_process, made_database, undrawn_pictures, tmp_path):
    (tmp_path / "tokens.jsonl").write_text(json.dumps({"tokens": [0, 1, 2, 0, 1, 1, 2]}) + "\n")
    corpus = ("drafter.corpus=tokens.jsonl", "drafter.field=tokens", "drafter.cache_dir=null")
    small = ("+debug=tiny", "measurement.gammas=[]", "measurement.max_new_tokens=6", "measurement.null=false")
    small += ("measurement.bootstrap=50", "measurement.cost_contexts=[]")
    ended = in_process(run, *small, "+drafter=bigram", *corpus, "hydra.run.dir=out")
    assert ended.code == 0, ended.error
    done = open_folder(tmp_path / "out")
    assert done.drafter_name == done.params["drafter.name"] == done.facts().drafter == "bigram"
    rounds = done.rounds()
    assert set(rounds["method"]) == {"baseline", "bigram"}
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        names = [row[0] for row in store.execute("select name from runs")]
        tags = [row[0] for row in store.execute("select value from tags")]
    assert any(name.startswith("bigram") for name in names) and not any("corpus_ngram" in each for each in names + tags)
    texts = [path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix in (".md", ".json", ".html")]
    assert texts and not any("corpus_ngram" in text for text in texts) and "corpus_ngram" not in rounds.to_json()


def test_a_bigram_has_the_order_of_its_name(group_values):
    values = group_values("drafter", "corpus_ngram")
    with pytest.raises(UsageError, match="the order of a bigram is 2, not 3: choose corpus_ngram"):
        drafters.config(values | {"name": "bigram", "order": 3})
    assert drafters.config(values | {"name": "unigram", "order": 1}).name == "unigram"
