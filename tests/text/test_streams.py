"""Recorded streams: what is read is what was written, and every fault is named with file and line."""

import json

import pytest

from specdec.errors import UsageError
from specdec.text.streams import Recording, Stream, fitting_lengths, open_recording, read_streams, write_streams

STREAMS = [
    Stream("a", "math", (1, 2), (3, 4, 5), {"acc_eagle": (2, 1, 1), "acc_lookup": (1, 3, 1)}),
    Stream("b", "code", (7,), (8, 9), {"acc_eagle": (1, 1), "acc_lookup": (1, 1)}, ended=True),
]


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def record(prompt=(1, 2), generated=(3, 4), **more):
    return {"prompt_token_ids": list(prompt), "generated_token_ids": list(generated), **more}


def recording(path, **changes):
    keys = {"format": "jsonl", "tokenizer": None, "unit": "paragraph", "prompt_tokens": 2, "continuation_tokens": None}
    keys |= {"skip_bad": False, "lengths": None}
    return Recording(path=None if path is None else str(path), **{**keys, **changes})


@pytest.mark.parametrize("name", ["streams.jsonl", "streams.jsonl.gz"])
def test_what_is_written_is_read(tmp_path, name):
    write_streams(tmp_path / name, STREAMS)
    assert read_streams(tmp_path / name).streams == STREAMS
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_a_public_trace_is_read(tmp_path):
    """The form of SpecDecode-Bench: no method, no names of ours."""
    path = lines(tmp_path / "trace.jsonl", record(acc_eagle={"acc_len": [2, 1]}), record((1, 3), question_id=81))
    first, second = read_streams(path).streams
    assert (first.id, first.category, first.ended) == ("line 1", "recorded", False)
    assert first.accepted_lengths == {"acc_eagle": (2, 1)}
    assert (second.id, second.accepted_lengths) == ("81", {})


def test_of_a_run_the_baselines_texts_are_read_the_first_or_all(tmp_path):
    def line(method, repeat, token, **more):
        return record((1,), (token,), method=method, repeat=repeat, **more) | {"prompt": "set/1"}

    first = line("baseline", 0, 6, finish="end_token", category="code")
    path = lines(
        tmp_path / "generations.jsonl", line("ngram", 0, 5), first, line("baseline", 1, 7), line("ngram", 1, 5)
    )
    assert read_streams(path).streams == [Stream("set/1", "code", (1,), (6,), {}, ended=True)]
    both = [(stream.id, stream.repeat, stream.generated) for stream in read_streams(path, repeats=True).streams]
    assert both == [("set/1", 0, (6,)), ("set/1", 1, (7,))]


def test_a_fault_is_named_with_its_line(tmp_path):
    for second, sentence in (
        ([1, 2], "a JSON list where drafter.path needs an object with fields"),
        ({"prompt_token_ids": [1]}, "generated_token_ids is not a list of token ids"),
        (record(prompt=()), "prompt_token_ids is not a list of token ids .at least one"),
        (record(generated=(3, True)), "generated_token_ids is not a list of token ids"),
        (record(prompt=(-1,)), "prompt_token_ids holds -1, and no token id is negative"),
        (record(prompt=(10,)), "token id 10 in prompt_token_ids is beyond the target's vocabulary of 10 tokens"),
        (record(prompt=(2**70,)), "prompt_token_ids holds a number that is larger than any token id"),
        (record(category=3), "category is 3, not a text"),
        (record(repeat="x"), "repeat is 'x', not a whole number"),
        (record(generated=[1] * 99), "2 . 99 tokens do not fit the target's context of 100"),
    ):
        path = lines(tmp_path / "x.jsonl", record(), second)
        with pytest.raises(UsageError, match=sentence) as fault:
            read_streams(path, vocab_size=10, key="drafter.path", context_length=100)
        assert str(fault.value).startswith(f"{path}:2: ")


def test_all_bad_lines_are_named_at_once_or_left_out(tmp_path):
    path = lines(tmp_path / "x.jsonl", {"id": 1}, record(id="a"), 7, record((5,), id="b", category=3), record((6,)))
    with pytest.raises(UsageError) as fault:
        read_streams(path, key="target.path")
    for number in (1, 3, 4):
        assert f"{path}:{number}: " in str(fault.value)
    assert str(fault.value).endswith("leave these 3 lines out with target.skip_bad=true.")
    recorded = open_recording(recording(path, skip_bad=True), "target")
    assert [stream.id for stream in recorded.streams] == ["a", "line 5"]
    assert recorded.left_out == {"bad_line": {"recorded": 3}}
    assert recorded.notes[0].startswith("3 bad lines are left out: ")


def test_empty_outputs_are_left_out_and_counted(tmp_path):
    path = lines(tmp_path / "x.jsonl", record(generated=(), category="m"), record((5,)))
    recorded = open_recording(recording(path), "target")
    assert [stream.prompt for stream in recorded.streams] == [(5,)]
    assert recorded.left_out == {"empty_output": {"m": 1}}
    assert recorded.notes == ("1 outputs without a token are left out.",)
    with pytest.raises(UsageError, match="holds no recorded stream"):
        read_streams(lines(path, record(generated=())))


OTHER_RUN = {"acc_x": {"acc_len": [1, 2, 1, 1]}, "acc_y": {"acc_len": "?"}}


def test_lengths_that_nothing_uses_are_not_looked_at(tmp_path):
    path = lines(tmp_path / "x.jsonl", record(**OTHER_RUN), record((5,), acc_x={"acc_len": [3.0, 1]}))
    first, second = read_streams(path).streams
    assert set(first.accepted_lengths) == {"acc_x", "acc_y"}
    with pytest.raises(UsageError, match=r"x.jsonl:1: acc_x.acc_len has 4 entries for 2 .*target.skip_bad=true"):
        read_streams(path, key="target.path", lengths="acc_x")
    read = read_streams(path, key="target.path", lengths="acc_x", skip_bad=True)
    assert [stream.prompt for stream in read.streams] == [(5,)]
    assert read.left_out == {"bad_line": {"recorded": 1}}
    assert len(read_streams(path, lengths="acc_z").streams) == 2  # lengths of another file, as drafter.path may name


def test_fitting_lengths_are_checked_and_begin_with_a_one(tmp_path):
    path = lines(tmp_path / "x.jsonl", record(acc_x={"acc_len": [0, 2.0]}), record((5,), acc_x={"acc_len": [0, 1]}))
    streams, (note,) = fitting_lengths(read_streams(path).streams, "acc_x", None)
    assert [stream.accepted_lengths for stream in streams] == [{"acc_x": (1, 2)}, {"acc_x": (1, 1)}]
    assert "the token that the prefill gives" in note
    lines(path, record(acc_x={"acc_len": [1, 2]}), record((5,), acc_x={"acc_len": [2]}), record((6,)))
    with pytest.raises(UsageError, match=r":2: acc_x.acc_len has 1 entries for 2 .*; .*:3: no acc_x.acc_len, which"):
        fitting_lengths(read_streams(path).streams, "acc_x", None)


def test_of_equal_prompts_the_first_counts(tmp_path):
    path = lines(tmp_path / "x.jsonl", record(category="m"), record(generated=(9,), category="m"), record((5,)))
    recorded = open_recording(recording(path), "target")
    assert [stream.generated for stream in recorded.streams] == [(3, 4), (3, 4)]
    assert (recorded.left_out, recorded.largest, recorded.tokenizer) == ({"repeated_prompt": {"m": 1}}, 5, None)


def test_text_becomes_prompt_and_continuation(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("for index in range(10):\n    print(index)\n\nx\n\n\nreturn self.value + 1\n", encoding="utf-8")
    recorded = open_recording(recording(path, format="text", tokenizer="pocket"), "target")
    tokenizer = recorded.tokenizer
    shown = [tokenizer.decode(stream.prompt + stream.generated) for stream in recorded.streams]
    assert shown == ["for index in range(10):\n    print(index)", "return self.value + 1"]  # x alone is too short
    assert all(len(stream.prompt) == 2 and not stream.ended for stream in recorded.streams)
    assert len({stream.id for stream in recorded.streams}) == 2
    (whole,) = open_recording(recording(path, format="text", tokenizer="pocket", unit="file"), "target").streams
    assert tokenizer.decode(whole.prompt + whole.generated) == path.read_text(encoding="utf-8").strip()
    (cut, _) = open_recording(
        recording(path, format="text", tokenizer="pocket", continuation_tokens=3), "target"
    ).streams
    assert cut.generated == recorded.streams[0].generated[:3]


def test_text_that_cannot_be_cut(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("one two\n")
    with pytest.raises(UsageError, match="Missing key target.tokenizer"):
        open_recording(recording(path, format="text"), "target")
    with pytest.raises(UsageError, match="has no paragraph of more than target.prompt_tokens=50 tokens"):
        open_recording(recording(path, format="text", tokenizer="pocket", prompt_tokens=50), "target")
    with pytest.raises(UsageError, match="there is no tokenizer in this folder"):
        open_recording(recording(path, format="text", tokenizer=str(tmp_path)), "target")
    with pytest.raises(UsageError, match="Missing key target.path"):
        open_recording(recording(None), "target")
