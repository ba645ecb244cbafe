"""Every fault is a UsageError of one sentence that names the key or the file, and what to do."""

import sys
from types import SimpleNamespace

import pytest

from specdec.errors import UsageError

GOOD = b'{"text": "hello", "kind": "a"}\n'


def sentence(load, *args, **keys) -> str:
    with pytest.raises(UsageError) as caught:
        load(*args, **keys)
    text = str(caught.value)
    assert "\n" not in text and text.endswith((".", "?")) and caught.value.exit_code == 2
    assert caught.value.__cause__ is None
    return text


@pytest.mark.parametrize(
    "content, keys, expected",
    [
        (b"", {}, "prompts.path={path} is empty"),
        (GOOD + b"{oops\n", {}, "{path}:2: not JSON"),
        (GOOD + b"\n\n[1]\n", {}, "{path}:4: a JSON list"),
        (GOOD + b"[" * 100_000 + b"\n", {}, "{path}:2: not JSON"),
        (GOOD + b'{"body": "x", "kind": 1}\n', {}, "instruction, text) is there; its keys are body, kind: set"),
        (GOOD + b"{}\n", {}, "{path}:2: none of the usual fields (turns, "),
        (GOOD, {"field": "body"}, "{path}:1: no field 'body'; its keys are text, kind (set prompts.field)"),
        (b'{"messages": [{"role": "user"}]}\n', {}, "{path}:1: messages holds a message without a role (system, "),
        (b'{"messages": [{"role": "clown", "content": "x"}]}\n', {}, "messages holds a message without a role"),
        (b'{"prompt": [{"role": "system", "content": "x"}]}\n', {}, "{path}:1: prompt holds no message of the user."),
        (GOOD + b'{"text": "\xff"}\n', {}, "{path}:2: not UTF-8"),
        (GOOD + b'{"text": {"a": 1}}\n', {}, "{path}:2: text holds a dict"),
        (GOOD + b'{"text": "\\ud800"}\n', {}, "{path}:2: text holds half a character"),
        (GOOD, {"category_field": "topic"}, "{path}:1: no field 'topic'; its keys are text, kind (set "),
        (GOOD, {"id_field": "key"}, "{path}:1: no field 'key'"),
        (GOOD + GOOD, {"id_field": "kind"}, "{path}:2: kind 'a' was used before; set prompts.id_field=null"),
        (GOOD, {"template": "Q:"}, "prompts.template='Q:': it should contain {{text}}"),
        (GOOD, {"template": "{text"}, "prompts.template='{{text': expected '}}' before end of string"),
        (GOOD, {"template": "{text} {lang}"}, "{path}:1: no field 'lang'; its keys are text"),
        (b'{"text": ""}\n{"text": " "}\n', {}, "no usable prompt (2 empty): give another"),
    ],
)
def test_faults_of_a_file(load, tmp_path, content, keys, expected):
    path = tmp_path / "set.jsonl"
    path.write_bytes(content)
    assert expected.format(path=path) in sentence(load, "jsonl", path=str(path), **keys)


def test_no_file(load, tmp_path):
    missing = tmp_path / "no.jsonl"
    assert f"prompts.path={missing} does not exist" in sentence(load, "gsm8k", path=str(missing))
    missing = tmp_path / "no.parquet"
    assert f"prompts.path={missing} does not exist" in sentence(load, "gsm8k", path=str(missing))
    assert "set prompts.path to a local one, or prompts.hub_id" in sentence(load, "gsm8k")
    assert "Both prompts.path and prompts.hub_id" in sentence(load, "gsm8k", path="a", hub_id="b")


def test_all_too_long_says_how_many_and_why(load, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(GOOD * 3)
    text = sentence(load, "jsonl", path=str(path), category_field="kind", context=15)
    assert "(3 too long): a prompt may have 5 tokens" in text
    assert "measurement.max_new_tokens=10 (by category: a 3)" in text
    no_room = sentence(load, "jsonl", path=str(path), context=10)
    assert "measurement.max_new_tokens=10: it should be less than the target's context of 10" in no_room


@pytest.mark.parametrize(
    "keys, expected",
    [
        ({"limit": 0}, "prompts.limit=0: it should be greater than or equal to 1"),
        ({"limit": "ten"}, "prompts.limit='ten': it should be a valid integer"),
        ({"chat": "always"}, "prompts.chat='always': it should be 'auto' or 'never'"),
        ({"min_characters": None}, "prompts.min_characters=None"),
        ({"max_characters": 100}, "no usable prompt (it holds none)"),
    ],
)
def test_bad_values(load, keys, expected):
    assert expected in sentence(load, "stdlib_code", **keys)


def test_text_without_a_tokenizer_and_tokens_outside_the_vocabulary(load):
    assert "the target has no tokenizer: use prompts=tokens" in sentence(load, "stdlib_docs", tokenizer=None)
    outside = sentence(load, "tokens", tokenizer=None, tokens=[[0, 2], [1, 3]], vocab_size=3)
    assert "tokens/1-3 holds token 3, and the target's vocabulary ends at 2" in outside
    assert "prompts.tokens.0.1=-1" in sentence(load, "tokens", tokens=[[0, -1]])
    assert "no usable prompt (1 empty)" in sentence(load, "tokens", tokens=[[]])


def test_a_chat_template_that_fails(load, characters, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(GOOD)
    text = sentence(load, "jsonl", path=str(path), tokenizer=characters("broken"))
    assert "fails (only one turn, please): set prompts.chat=never" in text


def fake_datasets(monkeypatch, load_dataset) -> None:
    module = SimpleNamespace(
        load_dataset=load_dataset,
        disable_progress_bars=lambda: None,
        config=SimpleNamespace(HF_DATASETS_CACHE="/somewhere/cache"),
    )
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_hub_faults_are_one_sentence(load, monkeypatch):
    def offline(**_):
        raise ConnectionError("Couldn't reach 'openai/gsm8k'\non the Hub")

    fake_datasets(monkeypatch, offline)
    text = sentence(load, "gsm8k", hub_id="openai/gsm8k", hub_config="main")
    assert "prompts.hub_id=openai/gsm8k (prompts.split=test) cannot be loaded: ConnectionError: C" in text
    assert "/somewhere/cache" in text and "prompts.path" in text


def test_a_truncated_cache_is_fetched_once_more(load, monkeypatch):
    from pyarrow import ArrowInvalid

    class Rows(list):
        info = SimpleNamespace(download_checksums={f"hf://datasets/openai/gsm8k@{'a' * 40}/x.parquet": {}})
        _fingerprint = "f"

    modes = []

    def load_dataset(download_mode=None, **where):
        modes.append(download_mode)
        if download_mode is None:
            raise ArrowInvalid("truncated")
        assert where == {"path": "openai/gsm8k", "name": "main", "split": "test", "revision": None}
        return Rows([{"question": "1+1?"}, {"question": ""}])

    fake_datasets(monkeypatch, load_dataset)
    loaded = load("gsm8k", hub_id="openai/gsm8k", hub_config="main")
    assert modes == [None, "force_redownload"]
    assert [prompt.text for prompt in loaded.prompts] == ["Question: 1+1?\nAnswer:"]
    assert loaded.skipped == {"empty": {"gsm8k": 1}}
    assert loaded.provenance["revision"] == "a" * 40

    Rows.__len__ = lambda self: 0
    assert "prompts.hub_id=openai/gsm8k (prompts.split=test) is empty" in sentence(
        load, "gsm8k", hub_id="openai/gsm8k", hub_config="main"
    )
