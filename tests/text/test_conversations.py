"""Conversations: what of a record is used, how it is rendered, and which tokens are scored."""

import gzip
import json

import pytest
from fixtures.refusals import refused

from specdec.errors import UsageError
from specdec.text import conversations as module
from specdec.text import sources as records
from specdec.text.conversations import ChatTemplate
from specdec.training.data.head_data import open_sequences

BRACKETS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PLAIN = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
THINKING = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.last %}<t></t>{% endif %}{{ m.content }}"
    "<|endoftext|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def record(*turns: str) -> dict:
    """Turns of human and gpt one after the other; "speaker: text" names another."""
    speakers = ("human", "gpt")
    return {"conversations": [{"from": speakers[i % 2], "value": turn} for i, turn in enumerate(turns)]}


@pytest.fixture
def source(tmp_path, group_values):
    """`source(list of records or bytes)`: keys of a source of conversations in a file."""

    def make(content, **changes) -> dict:
        path = tmp_path / "chats.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        values = group_values("head_data", "sharegpt")["source"]
        return values | {"path": str(path), "hub_id": None, "heldout_every": 2, **changes}

    return make


@pytest.fixture
def opened(source, head_data, text_target):
    """`opened(content, sequence_length=256, **source)`: sequences of conversations, every second one held out."""

    def make(content, sequence_length=256, **changes):
        how = {"packed": False, "batch": 1, "sequence_length": sequence_length}
        return open_sequences(head_data(source=source(content, **changes), **how), text_target, seed=3)

    return make


def rendered(sequences, tokenizer, part: str) -> list[tuple[str, str]]:
    """(text, its scored tokens) of every document."""
    store = sequences._parts[part].documents
    documents = [store[i] for i in range(len(store))]
    return [(tokenizer.decode(d.tokens), tokenizer.decode(d.tokens[d.scored])) for d in documents]


def test_vicunas_template_where_the_tokenizer_has_none(opened, text_target):
    sequences = opened([record("if?", "while", "for?", "not"), record("a", "b")])
    ((text, scored),) = rendered(sequences, text_target.tokenizer, "train")
    asked = "A chat between a curious user and an artificial intelligence assistant. "
    asked += "The assistant gives helpful, detailed, and polite answers to the user's questions. "
    end = "<|endoftext|>"
    assert text == f"{end}{asked}USER: if? ASSISTANT: while{end}USER: for? ASSISTANT: not{end}"
    assert scored == f" while{end} not{end}"
    assert len(rendered(sequences, text_target.tokenizer, "heldout")) == 1


@pytest.mark.parametrize("template", [BRACKETS, THINKING])
def test_the_tokenizers_own_template(tiny_corpus, template):
    tokenizer = tiny_corpus.tokenizer
    roles, said = ["system", *["user", "assistant"] * 2], ("be brief", "if", "é while", "while", "北京 for")
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    found = ChatTemplate(tokenizer, template)
    text, spans = found.render(messages)
    (document,) = found.encode([text], [spans])
    end, thought = "<|endoftext|>", "<t></t>" if template == THINKING else ""
    assert tokenizer.decode(document.tokens) == text
    assert tokenizer.decode(document.tokens[document.scored]) == f"é while{end}{thought}北京 for{end}"


def test_a_template_that_changes_what_was_said_is_counted(opened, text_target, monkeypatch):
    upper = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    for template in (upper, "{{ raise_exception('no system') }}"):
        monkeypatch.setattr(text_target.tokenizer, "chat_template", template, raising=False)
        with pytest.raises(UsageError, match="makes 0 sequences .*left out: 2 refused by the chat template"):
            opened([record("if?", "while"), record("a", "b")])


def test_what_of_a_record_is_used(opened, text_target, monkeypatch):
    monkeypatch.setattr(text_target.tokenizer, "chat_template", PLAIN, raising=False)
    held = record("h", "h")
    odd = {"conversations": [
        {"from": "system", "value": "s"}, {"from": "chatgpt", "value": "rest of an answer"},
        {"from": "user", "value": " q "}, {"from": "bing", "value": "a"}, {"from": "human", "value": "never answered"},
    ]}  # fmt: skip
    twice = {"conversations": [*record("q", "a")["conversations"], {"from": "gpt", "value": "again"}]}
    used = [odd, record("q", "a", "", "b"), twice, record("no answer"), {"conversations": []}]
    content = [conversation for one in used for conversation in (one, held)]
    sequences = opened(content)
    texts = [text for text, _ in rendered(sequences, text_target.tokenizer, "train")]
    assert texts == ["[s][q][a]", "[q][a]", "[q][a]"]
    assert len(rendered(sequences, text_target.tokenizer, "heldout")) == 5
    assert sequences.manifest["left_out"] == {
        "cut at an empty turn or at two turns of one speaker": 2,
        "without an answer": 2,
    }


def test_a_conversation_without_a_scored_token_in_its_row_is_left_out(opened, text_target, monkeypatch):
    monkeypatch.setattr(text_target.tokenizer, "chat_template", PLAIN, raising=False)
    long = record("while " * 40, "not")
    sequences = opened([record("q", "a"), record("h", "h"), long, record("h", "h")], sequence_length=12)
    assert len(sequences._parts["train"].documents) == 2 and sequences.counts["train"] == 1


@pytest.mark.parametrize("form", ["list", "lines", "gzip"])
def test_a_list_lines_and_gzip_read_the_same(opened, text_target, form):
    content = [record("if?", "while"), record("a", "b"), record("x", "y")]
    plain = json.dumps(content).encode()
    data = {"list": plain, "gzip": gzip.compress(plain, mtime=0), "lines": "\n".join(map(json.dumps, content)).encode()}
    found = rendered(opened(data[form]), text_target.tokenizer, "train")
    assert [scored for _, scored in found] == [" while<|endoftext|>", " y<|endoftext|>"]
    assert len(opened(data[form], max_conversations=2)._parts["train"].documents) == 1


def test_records_of_the_hub(opened, text_target, monkeypatch):
    def hub(keys, group) -> records.Records:
        assert (keys.hub_id, keys.split, group) == ("a/b", "train", "data.source")
        rows = ((f"a/b:{i}", i, record("if?", f"while {i}")) for i in range(1, 5))
        return records.Records(rows, {"hub_id": "a/b"})

    monkeypatch.setattr(module, "read_hub", hub)
    sequences = opened([], path=None, hub_id="a/b")
    assert [s for _, s in rendered(sequences, text_target.tokenizer, "train")] == [
        f" while {i}<|endoftext|>" for i in (1, 3)
    ]
    assert sequences.manifest["source"]["hub_id"] == "a/b"


def test_bad_records_are_refused_by_file_and_number(opened):
    for content, says in (
        (b"", "data.source.path=.*chats.json is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b'[{"conversations": []},\n oops]', r"chats\.json:2: not JSON"),
        (b'{"conversations": []}\n\nnull, 1', r"chats\.json:3: not JSON"),
        ([{"text": "a"}], "chats.json: record 1: no list 'conversations'"),
        ([record("a", "b"), 7], "chats.json: record 2: no list 'conversations'"),
        ([record("a", "b"), {"conversations": [{"from": "human"}]}], "record 2: a turn without the texts"),
        ([{"conversations": [{"from": "cat", "value": "x"}]}], "record 1: a turn from 'cat'; data.source knows system"),
        ([record("a", "b")], "held-out text of data.source makes no sequence"),
    ):
        with refused(says):
            opened(content)
    for path, hub_id in ((None, None), ("x", "a/b")):
        with refused("need one source: set either data.source.path"):
            opened([], path=path, hub_id=hub_id)
