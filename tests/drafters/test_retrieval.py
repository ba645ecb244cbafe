"""Retrieval against a search of the whole corpus, round by round; origins of datastores; bad input."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.drafting import chain
from fixtures.refusals import refused
from fixtures.slow_drafters import SlowDrafter, along_paths, along_ranks, rounds_of, same_rounds

from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.ngrams.datastore import in_memory, write_datastore
from specdec.records import TextStart

SIZE = 5
EVERY = ("chain", "rows", "tree", "dynamic")


def documents(seed=0, count=12, length=30):
    steps = np.random.default_rng(seed).integers(1, 3, size=(count, length))
    return (steps.cumsum(axis=1) % SIZE).tolist() + [[2], []]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "tokens.jsonl"
    path.write_text("".join(json.dumps({"tokens": text}) + "\n" for text in documents()))
    return {"corpus": str(path), "field": "tokens", "cache_dir": str(tmp_path / "stores")}


@pytest.fixture
def build(corpus, group_values):
    def make(target=None, vocab_size=SIZE, **keys):
        target = target or SimpleNamespace(device=torch.device("cpu"), vocab_size=vocab_size, tokenizer=None)
        return drafters.build(group_values("drafter", "retrieval", **corpus | keys), target=target)

    return make


class SlowRetrieval(SlowDrafter):
    """Searches every document for the last tokens, the longest suffix first, and counts what follows."""

    def __init__(self, texts, match_max, match_min, hits_max):
        super().__init__(self.proposed)
        self.stream = [token for text in texts for token in (99, *text)]
        self.lengths, self.hits_max = range(match_max, match_min - 1, -1), hits_max

    def following(self, text, width):
        for length in self.lengths:
            ends = range(length, len(self.stream) + 1)
            found = [end for end in ends if length <= len(text) and self.stream[end - length : end] == text[-length:]]
            if found:
                found.sort(key=lambda end: self.stream[end:])
                count = min(self.hits_max, len(found))
                chosen = [found[int((number + 0.5) * len(found) / count)] for number in range(count)]
                rows = [self.stream[end : end + width] for end in chosen]
                return [tuple(row[: row.index(99)] if 99 in row else row) for row in rows]
        return []

    def proposed(self, text, structure):
        rows = self.following(text, structure.gamma)
        counts = Counter(row[:end] for row in rows for end in range(1, len(row) + 1))
        paths = list(dict.fromkeys(row for row in rows if row))

        def ranked(path):
            after = dict.fromkeys(p[len(path)] for p in paths if len(p) > len(path) and p[: len(path)] == path)
            return sorted(after, key=lambda token: -counts[(*path, token)])

        if structure.name in ("chain", "rows"):
            whole = [path for path in paths if not any(o[: len(path)] == path and o != path for o in paths)]
            whole.sort(key=lambda path: -sum(counts[path[:end]] for end in range(1, len(path) + 1)))
            return along_paths(whole[: structure.rows])
        if structure.name == "tree":
            return along_ranks(structure.tree, ranked)
        level, drafted = [()], []
        for _ in range(structure.gamma):
            level = sorted(level, key=lambda path: -counts[path])[: structure.beam.width]
            level = [(*path, token) for path in level for token in ranked(path)[: structure.beam.branching]]
            drafted += level
        kept = sorted(drafted, key=lambda path: -counts[path])[: structure.nodes]
        place = {(): -1} | {path: number for number, path in enumerate(kept)}
        return [(path[-1], place[path[:-1]]) for path in kept]


@pytest.mark.parametrize(
    ("structure", "keys"),
    [*((structure, (3, 1, 5)) for structure in EVERY), ("tree", (16, 2, 64)), ("chain", (5, 3, 1))],
)
def test_rounds_are_those_of_a_slow_search(build, table, random_law, make_structure, structure, keys):
    """Drawn texts, so that drafts are rejected anywhere, several texts by one drafter."""
    law = 0.5 * random_law(SIZE, 3) + 0.25 * (torch.eye(SIZE).roll(1, 1) + torch.eye(SIZE).roll(2, 1)).double()
    target, shape = table(law, temperature=1.0), make_structure(structure, 4)
    prompts = [[0, 1, 2, 4], [3], [2, 2, 1], [4, 4]]
    named = dict(zip(("match_max", "match_min", "hits_max"), keys, strict=True))
    fast = rounds_of(target, build(target, **named), shape, prompts, 24)
    slow = rounds_of(target, SlowRetrieval(documents(), *keys), shape, prompts, 24)
    same_rounds(fast, slow)


def offered(drafter, prompt):
    drafter.start(TextStart(prompt, 100))
    return drafter.draft(chain(4)).tokens.tolist()


def test_a_datastore_is_built_once_and_can_be_named(build, corpus, tmp_path, monkeypatch):
    first = build()
    (folder,) = (tmp_path / "stores").iterdir()
    monkeypatch.setattr("specdec.ngrams.datastore.write_datastore", None)  # not called again
    prompt, about = documents()[0][3:6], first.describe()
    expected = offered(first, prompt)
    assert len(expected) == 4
    for again in ({}, {"model": str(folder), "corpus": None, "field": None}, {"cache_dir": None}):
        assert offered(build(**again), prompt) == expected
    assert about["tokens"] == sum(len(text) + 1 for text in documents()) == about["weight_bytes"] / 6
    assert about["source"] == f"drafter.corpus={corpus['corpus']}" and len(about["sha256"]) == 64


def test_a_damaged_datastore_is_built_again_in_the_cache_and_refused_elsewhere(build, tmp_path, caplog):
    expected = offered(build(), [0, 1, 2])
    (folder,) = (tmp_path / "stores").iterdir()
    (folder / "tokens.npy").write_bytes((folder / "tokens.npy").read_bytes()[:-2])
    with pytest.raises(UsageError, match=r"drafter\.model=.*tokens\.npy.*build it again"):
        build(model=str(folder), corpus=None, field=None)
    assert offered(build(), [0, 1, 2]) == expected
    assert "damaged" in caplog.text


def test_an_empty_datastore_proposes_nothing(build, tmp_path, table, random_law, make_structure):
    write_datastore(tmp_path / "empty", in_memory(np.empty(0, dtype=np.int32), SIZE, "nothing"), "", "")
    (tmp_path / "empty.idx").write_bytes(b"")
    target = table(random_law(SIZE, 3))
    for name in ("empty", "empty.idx"):
        drafter = build(target, model=str(tmp_path / name), corpus=None, field=None)
        for structure in EVERY:
            rounds = rounds_of(target, drafter, make_structure(structure, 3), [[1, 2]], 5)
            assert [item.draft_tokens for item in rounds] == [()] * 5


def test_bad_input_is_named_in_one_sentence(build, corpus, tmp_path):
    for name, tokenizer, size in (("other", "another", SIZE), ("larger", "", SIZE + 1)):
        store = in_memory(np.array([-1, 1, 2], dtype=np.int32), size, "text")
        write_datastore(tmp_path / name, store, tokenizer, "")
    (tmp_path / "none").mkdir()
    (tmp_path / "blocked").write_text("a file")
    (tmp_path / "rest.idx").write_bytes(b"\2\0\0\0\7\0\4\0\0\0\0\0\0\0")  # one token and its place
    model = {"corpus": None, "field": None}
    for keys, words in (
        ({**model, "model": str(tmp_path / "other")}, "another tokenizer"),
        ({**model, "model": str(tmp_path / "larger")}, "another tokenizer"),
        ({**model, "model": str(tmp_path / "none")}, r"no manifest\.json"),
        ({**model, "model": str(tmp_path / "missing")}, "no such folder"),
        ({**model, "model": str(tmp_path / "rest.idx")}, r"rest\.idx.*token 7 is not among"),
        ({"model": str(tmp_path / "none")}, r"drafter\.corpus"),
        ({"match_min": 5, "match_max": 4}, r"drafter\.match_min=5"),
        ({"cache_dir": str(tmp_path / "blocked")}, r"drafter\.cache_dir"),
    ):
        with refused(words):
            build(**keys)
