"""Whatever a file holds, a reader gives data sets or one sentence: examples of every format, damaged in every way."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec.analysis.read.imported import ImportChoices
from specdec.analysis.read.importers import IMPORTERS
from specdec.errors import UsageError
from specdec.text.streams import fitting_lengths, read_streams

PAGE = Path(__file__).resolve().parents[4] / "notebooks" / "guide" / "foreign_formats.md"
EXAMPLES = re.findall(
    r"^## (\w+).*?```(?:jsonl|json|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(rb"(?<![\w\"])\d+(\.\d+)?")
STRANGE = [
    b"-1", b"0", b"1e400", b"NaN", b"-Infinity", b"2.5", b"3.0", b"9" * 400, b"123456789012", b"null", b"true",
    b"[]", b"{}", b"[1, [2]]", b'"x"', b'"\\ud800"', b"1" * 5000,
]  # fmt: skip


@st.composite
def damaged(draw):
    """A kind, and one of its examples with numbers, keys or any bytes of it replaced, lines repeated or added."""
    kind, example = draw(st.sampled_from(EXAMPLES))
    content = example.encode()
    chosen = draw(st.sampled_from([kind, kind, "auto", *IMPORTERS]))
    for damage in draw(st.lists(st.sampled_from(["number", "number", "bytes", "line", "key"]), max_size=3)):
        places = [match.span() for match in NUMBER.finditer(content)]
        if damage == "number" and places:
            start, end = draw(st.sampled_from(places))
            content = content[:start] + draw(st.sampled_from(STRANGE)) + content[end:]
        elif damage == "bytes" and content:
            start = draw(st.integers(0, len(content) - 1))
            content = content[:start] + draw(st.binary(max_size=6)) + content[start + draw(st.integers(0, 30)) :]
        elif damage == "line":
            lines = content.split(b"\n")
            lines.insert(
                draw(st.integers(0, len(lines))), draw(st.sampled_from([*lines, b"", b"[]", b"7", b"\xff", b"{"]))
            )
            content = b"\n".join(lines)
        elif damage == "key":
            keys = re.findall(rb'"\w+"(?=:)', content)
            if keys:
                content = content.replace(draw(st.sampled_from(keys)), draw(st.sampled_from([*keys, b'"other"'])))
    if draw(st.integers(0, 3)):
        return chosen, content
    return chosen, gzip.compress(content)[: draw(st.sampled_from([None, None, 30]))]


def test_the_page_has_examples():
    assert len(EXAMPLES) == 7


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(file=damaged(), gamma=st.sampled_from([None, 1, 4, 4, 5]), skip=st.booleans())
def test_an_importer_gives_data_sets_or_one_sentence(tmp_path_factory, file, gamma, skip):
    kind, content = file
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.write_bytes(content)
    try:
        found = IMPORTERS[kind](path, ImportChoices(gamma, bonus=True, skip_bad=skip))
    except UsageError as error:
        assert "\n" not in str(error) and str(error).endswith(".") and len(str(error)) < 6000
        return
    assert found
    for source in found:
        json.dumps([source.name, *source.notes, *source.texts["prompt"]], ensure_ascii=False).encode()
        assert source.texts["rounds"].sum() > 0 and not source.texts.duplicated(["prompt", "repeat"]).any()
        assert (source.rounds["accepted"] <= source.rounds["offered"]).all()


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(file=damaged(), skip=st.booleans(), lengths=st.sampled_from([None, "acc_eagle"]))
def test_a_replay_gives_streams_or_one_sentence(tmp_path_factory, file, skip, lengths):
    path = tmp_path_factory.getbasetemp() / "damaged_stream.jsonl"
    path.write_bytes(file[1])
    try:
        streams = read_streams(path, 10_000, key="target.path", lengths=lengths, skip_bad=skip).streams
        fitting_lengths(streams, "acc_eagle", "target.skip_bad=true")
    except UsageError as error:
        assert "\n" not in str(error) and str(error).endswith(".") and len(str(error)) < 6000
