"""The planted bugs as files: all apply to today's code and name tests that exist. That tests fail is seen by a run."""

from pathlib import Path

import pytest

from mutations.patch_files import AREAS, PatchError, missing_tests, read_patch

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "mutations").glob("*/*.patch"))
MOST = 90


def test_every_planted_bug_applies_and_names_tests():
    assert [fault for path in PATCHES for fault in faults(path)] == []


def faults(path: Path) -> list[str]:
    """Return what is wrong with a patch, a sentence each."""
    try:
        bug = read_patch(path)
        bug.check(ROOT)
    except PatchError as error:
        return [str(error)]
    said = [f"{bug.name} names {test}, which does not exist." for test in missing_tests(bug, ROOT)]
    if not bug.bug.endswith("."):
        said.append(f"{bug.name} does not describe its bug in a sentence.")
    outside = [file for file in bug.files() if not file.startswith(("specdec/", "analysis/", "conf/"))]
    return said + [f"{bug.name} changes {file}, which is no source." for file in outside]


def test_every_area_has_bugs_and_there_are_at_most_90():
    """Three runs of the second tier, which has minutes for them, plant all."""
    assert {path.parent.name for path in PATCHES} == set(AREAS)
    assert len(PATCHES) <= MOST


def test_no_two_patches_share_a_name():
    names = [path.stem for path in PATCHES]
    assert sorted(names) == sorted(set(names))


BEFORE = "".join(f"line {number}\n" for number in range(1, 21))
DIFF = """--- a/specdec/some.py
+++ b/specdec/some.py
@@ -4,3 +4,4 @@
 line 4
-line 5
+line five
+and more
 line 6
"""
HEADER = "Bug: a sentence that\n  goes on.\nKilled by: tests/a.py::test_a\n  tests/b.py::test_b[x y: z]\n\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tests" / "mutations" / "theory" / "one.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (tmp_path / "specdec").mkdir(exist_ok=True)
    (tmp_path / "specdec" / "some.py").write_text("new\n" * 7 + BEFORE)  # it has grown above the lines of the patch
    return path


def test_a_patch_is_read_and_planted(tmp_path):
    bug = read_patch(write(tmp_path, HEADER + DIFF))
    assert (bug.name, bug.bug) == ("theory/one", "a sentence that goes on.")
    assert bug.killed_by == ("tests/a.py::test_a", "tests/b.py::test_b[x y: z]") and bug.files() == ["specdec/some.py"]
    file, other = tmp_path / "specdec" / "some.py", tmp_path / "another name"
    other.hardlink_to(file)
    bug.check(tmp_path)
    assert file.read_text() == other.read_text() == "new\n" * 7 + BEFORE
    bug.plant(tmp_path)
    assert file.read_text() == other.read_text().replace("line 5\n", "line five\nand more\n") != other.read_text()
    for text in ("gone", "no such line\n"):
        file.write_text(text)
        with pytest.raises(PatchError, match="theory/one no longer applies: plant the bug again"):
            bug.plant(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        HEADER,
        "Killed by: tests/a.py::test_a\n\n" + DIFF,
        "Bug: a.\n\n" + DIFF,
        "What: a.\n" + HEADER + DIFF,
    ],
)
def test_a_bad_header_is_refused_in_a_sentence(tmp_path, text):
    with pytest.raises(PatchError, match='^theory/one.patch should begin with "Bug: " and a sentence') as refused:
        read_patch(write(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_tests_that_do_not_exist_are_found(tmp_path):
    bug = read_patch(write(tmp_path, HEADER + DIFF))
    assert missing_tests(bug, tmp_path) == list(bug.killed_by)
    (tmp_path / "tests" / "a.py").write_text("def test_a():\n    pass\n")
    (tmp_path / "tests" / "b.py").write_text("def test_c():\n    pass\n")
    assert missing_tests(bug, tmp_path) == [bug.killed_by[1]]
