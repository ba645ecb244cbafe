"""Lines of any file: what is read is what was written, and lines that cannot be used are named together or left out."""

import gzip

import pytest

from specdec.errors import UsageError
from specdec.text.lines import BadLine, LineFaults, Names, file_digest, json_file


def values(path, skip=False, option="--skip-bad"):
    faults = LineFaults(skip)
    found = [line.value for line in json_file(path, f"The file {path}", faults, "one value a line")]
    faults.settle(option)
    return found, faults


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "gzip by another name"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "mark"])
def test_packed_or_not_marked_or_not_the_lines_are_the_same(tmp_path, name, mark):
    content = mark + b'{"a": 1}\r\n\n [2]\n"caf\xc3\xa9"'
    path = tmp_path / name
    path.write_bytes(content if name == "a.jsonl" else gzip.compress(content))
    found, _ = values(path)
    assert found == [{"a": 1}, [2], "café"]
    assert len(file_digest(path, "it")) == 64


def test_twelve_bad_lines_are_one_sentence_with_ten_of_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b"{\n" if number % 2 else b"\xff\n" for number in range(12)) + b"7\n")
    with pytest.raises(UsageError) as fault:
        values(path)
    sentence = str(fault.value)
    assert sentence.startswith(f"{path}:1: not UTF-8 text; convert the file; {path}:2: not JSON")
    assert sentence.count(str(path)) == 10 and f"{path}:10: " in sentence
    assert sentence.endswith(
        "; and 2 more lines; put these 12 lines right, or leave these 12 lines out with --skip-bad."
    )
    with pytest.raises(UsageError, match="and 2 more lines.$"):
        values(path, option=None)
    found, faults = values(path, skip=True)
    assert found == [7] and faults.number == 12
    (note,) = faults.notes()
    assert note.startswith("12 bad lines are left out: ") and note.endswith("and 2 more lines.")


def test_only_bad_lines_are_kept_and_other_faults_go_on():
    faults = LineFaults(skip=True)
    with faults.line():
        raise BadLine("a:1: wrong.")
    with pytest.raises(UsageError, match="gamma"), faults.line():
        raise UsageError("a:2: gamma is wrong.")
    assert faults.notes() == ["1 line that cannot be used is left out: a:1: wrong."]
    assert LineFaults(skip=True).notes() == []


def test_files_that_are_none(tmp_path):
    for make, says in (
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(b"\xef\xbb\xbf \n\n"), "is empty"),
        (lambda path: path.write_bytes(gzip.compress(b"[1]\n" * 99)[:20]), "damaged gzip"),
    ):
        path = tmp_path / says
        make(path)
        with pytest.raises(UsageError, match=says):
            values(path)
    with pytest.raises(UsageError, match="null character"):
        values(tmp_path / "a\0b")


def test_names_are_told_apart_whatever_they_are():
    names = Names()
    assert list(map(names, ["a", "a", "b", "a"])) == ["a", "a#2", "b", "a#3"] and names.repeated == 2
    tricky = ["a", "a#2", "a", "a#2", "a"]
    assert len(set(map(Names(), tricky))) == 5
