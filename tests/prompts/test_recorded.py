"""Prompts of recorded streams: literal tokens with their categories, each prompt once."""

from specdec.text.streams import Stream, write_streams

STREAMS = [
    Stream("a", "math", (1, 2), (3, 4)),
    Stream("b", "code", (2, 5), (3,)),
    Stream("again", "math", (1, 2), (3, 4)),
]


def test_prompts_are_those_of_the_streams(load, tmp_path):
    path = tmp_path / "streams.jsonl"
    write_streams(path, STREAMS)
    asked = {"path": str(path), "tokenizer": None, "context": 100, "vocab_size": 6}
    found = load("recorded", **asked)
    assert [(p.id, p.category, p.tokens) for p in found.prompts] == [
        ("recorded/a", "math", (1, 2)),
        ("recorded/b", "code", (2, 5)),
    ]
    assert found.skipped == {"repeated_prompt": {"math": 1}}
    assert found.provenance["path"] == str(path) and len(found.provenance["sha256"]) == 64
    assert [p.id for p in load("recorded", limit=1, **asked).prompts] == ["recorded/a"]
