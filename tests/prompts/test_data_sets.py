"""Prompt sets that the library `datasets` reads: a local parquet file, a local folder; nothing asks a network."""

import socket

import datasets
import pandas as pd
import pytest

from specdec.errors import UsageError

ROWS = pd.DataFrame(
    {
        "question": ["How many?", "And how much?", ""],
        "answer": ["4", "12.5", "none"],
        "topic": ["count", "measure", "count"],
        "about": [{"source": "book"}, {"source": "web"}, {"source": "web"}],
        "turns": [["One", "Two"], ["Three"], ["Four"]],
    }
)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Gives `datasets` a cache of its own, and lets nothing open a connection."""

    def refuse(self, address):
        raise AssertionError(f"a connection to {address} was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path):
    """A data set as they are published: parquet files of two splits, one of them in two parts."""
    path = tmp_path / "published"
    (path / "data").mkdir(parents=True)
    ROWS[:2].to_parquet(path / "data" / "test-00000-of-00002.parquet")
    ROWS[2:].to_parquet(path / "data" / "test-00001-of-00002.parquet")
    ROWS[1:2].to_parquet(path / "data" / "train-00000-of-00001.parquet")
    return path


def test_a_parquet_file(load, tmp_path):
    path = tmp_path / "questions.parquet"
    ROWS.to_parquet(path)
    loaded = load("gsm8k", path=str(path), category_field="topic")
    assert [(each.id, each.category, each.text) for each in loaded.prompts] == [
        ("gsm8k/1", "count", "Question: How many?\nAnswer:"),
        ("gsm8k/2", "measure", "Question: And how much?\nAnswer:"),
    ]
    assert [each.reference for each in loaded.prompts] == ["4", "12.5"]
    assert loaded.skipped == {"empty": {"count": 1}}
    before = loaded.provenance["sha256"]
    assert len(before) == 64 and loaded.provenance["path"] == str(path)
    ROWS[::-1].to_parquet(path)
    assert load("gsm8k", path=str(path)).provenance["sha256"] != before
    assert load("gsm8k", path=str(path)).prompts[0].text == "Question: And how much?\nAnswer:"


def test_nested_fields_and_lists_of_a_parquet_file(load, tmp_path):
    path = tmp_path / "turns.parquet"
    ROWS.to_parquet(path)
    loaded = load("jsonl", path=str(path), field="turns", template="{turns}", category_field="about.source")
    assert [each.category for each in loaded.prompts] == ["book", "web", "web"]
    assert [(each.text, each.follow_ups) for each in loaded.prompts] == [("One", ("Two",)), ("Three", ()), ("Four", ())]


def test_a_folder_in_parts_and_splits(load, folder):
    for keys in ({"path": str(folder)}, {"hub_id": str(folder)}):
        loaded = load("gsm8k", **keys)
        assert [each.text.split("\n")[0] for each in loaded.prompts] == [
            "Question: How many?",
            "Question: And how much?",
        ]
        assert loaded.provenance["split"] == "test"
        (other,) = load("gsm8k", split="train", **keys).prompts
        assert other.text == "Question: And how much?\nAnswer:"
    digest = load("gsm8k", path=str(folder)).provenance["sha256"]
    (folder / "data" / "train-00000-of-00001.parquet").rename(folder / "data" / "other-00000-of-00001.parquet")
    assert load("gsm8k", path=str(folder)).provenance["sha256"] != digest


def test_faults_of_local_data_sets(load, folder, tmp_path):
    def sentence(**keys):
        with pytest.raises(UsageError) as caught:
            load("gsm8k", **keys)
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
        return str(caught.value)

    assert 'Unknown split "nope"' in sentence(path=str(folder), split="nope")
    assert f"prompts.path={folder} (prompts.split=nope) cannot be loaded" in sentence(path=str(folder), split="nope")
    damaged, empty, nothing = tmp_path / "damaged.parquet", tmp_path / "empty.parquet", tmp_path / "nothing"
    damaged.write_bytes(b"PAR1 is not all")
    said = sentence(path=str(damaged))
    assert f"prompts.path={damaged} cannot be loaded: ArrowInvalid" in said and "a folder of parquet, JSON" in said
    ROWS[:0].to_parquet(empty)
    assert f"prompts.path={empty} cannot be loaded" in sentence(path=str(empty))
    nothing.mkdir()
    assert f"prompts.path={nothing} (prompts.split=test) cannot be loaded" in sentence(path=str(nothing))
    (nothing / "nothing.py").write_text("raise SystemExit('a script was run')\n")
    assert "scripts are no longer supported" in sentence(hub_id=str(nothing))
    assert f"{folder}[test]:1: no field 'body'; its keys are question, answer" in sentence(
        path=str(folder), field="body", template="{body}"
    )
