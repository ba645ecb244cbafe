"""Prompts of recorded streams: literal tokens with their categories, each prompt once."""

from specdec.prompts import load_prompts, read_prompts
from specdec.text.streams import Stream, write_streams

STREAMS = [
    Stream("a", "math", (1, 2), (3, 4)),
    Stream("b", "code", (2, 5), (3,)),
    Stream("again", "math", (1, 2), (3, 4)),
]


def load(path, **more):
    values = {
        "name": "recorded", "limit": None, "balance": True, "chat": "never", "path": path, "format": "jsonl",
        "tokenizer": None, "unit": "paragraph", "prompt_tokens": 2, "continuation_tokens": None,
        "skip_bad": False, "lengths": None,
    }  # fmt: skip
    return load_prompts(read_prompts(values | more), tokenizer=None, context_length=100, max_new_tokens=8, vocab_size=6)


def test_prompts_are_those_of_the_streams(tmp_path):
    path = tmp_path / "streams.jsonl"
    write_streams(path, STREAMS)
    found = load(str(path))
    assert [(p.id, p.category, p.tokens) for p in found.prompts] == [
        ("recorded/a", "math", (1, 2)),
        ("recorded/b", "code", (2, 5)),
    ]
    assert found.skipped == {"repeated_prompt": {"math": 1}}
    assert found.provenance["path"] == str(path) and len(found.provenance["sha256"]) == 64
    assert [p.id for p in load(str(path), limit=1).prompts] == ["recorded/a"]
