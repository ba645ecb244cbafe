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
    name = f"{path.parent.name}/{path.name}"
    try:
        bug = read_patch(path)
        texts = bug.patched(ROOT)
    except PatchError as error:
        return [str(error)]
    said = [f"{name} names {test}, which does not exist." for test in missing_tests(bug, ROOT)]
    if not bug.bug.endswith("."):
        said.append(f"{name} does not describe its bug in a sentence.")
    for file, text in texts.items():
        if not file.startswith(("specdec/", "analysis/", "conf/")):
            said.append(f"{name} changes {file}, which is no source.")
        if text == (ROOT / file).read_text(encoding="utf-8"):
            said.append(f"{name} changes nothing in {file}.")
        if file.endswith(".py"):
            try:
                compile(text, file, "exec")
            except SyntaxError as error:
                said.append(f"{name} makes {file} a file that cannot be compiled: {error}.")
    return said


def test_every_area_has_bugs_and_there_are_at_most_90():
    """All of them are planted with every run of the second tier, which has minutes for them."""
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
@@ -15,2 +16,1 @@
 line 15
-line 16
"""
HEADER = "Bug: a sentence that\n  goes on.\nKilled by: tests/a.py::test_a\n  tests/b.py::B::test_b[x y: z]\n\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tests" / "mutations" / "theory" / "one.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (tmp_path / "specdec").mkdir(exist_ok=True)
    (tmp_path / "specdec" / "some.py").write_text(BEFORE)
    return path


def test_a_patch_is_read_and_applied(tmp_path):
    bug = read_patch(write(tmp_path, HEADER + DIFF))
    assert (bug.name, bug.bug) == ("theory/one", "a sentence that goes on.")
    assert bug.killed_by == ("tests/a.py::test_a", "tests/b.py::B::test_b[x y: z]")
    after = BEFORE.replace("line 5\n", "line five\nand more\n").replace("line 16\n", "")
    assert bug.patched(tmp_path) == {"specdec/some.py": after}
    # The file has grown above the hunks, and still has the lines that they expect.
    (tmp_path / "specdec" / "some.py").write_text("new\n" * 7 + BEFORE)
    assert bug.patched(tmp_path) == {"specdec/some.py": "new\n" * 7 + after}


def test_of_equal_places_the_nearest_is_changed(tmp_path):
    bug = read_patch(
        write(tmp_path, HEADER + "--- a/specdec/some.py\n+++ b/specdec/some.py\n@@ -6 +6 @@\n-same\n+other\n")
    )
    (tmp_path / "specdec" / "some.py").write_text("same\n\n\n\n\nsame\n\n\nsame\n")
    assert bug.patched(tmp_path)["specdec/some.py"] == "same\n\n\n\n\nother\n\n\nsame\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "has no diff"),
        ("Killed by: tests/a.py::test_a\n\n" + DIFF, "does not say what is wrong"),
        ("Bug: a.\n\n" + DIFF, "does not name the tests"),
        ("What: a.\n" + HEADER + DIFF, "its header has the fields"),
        (HEADER + DIFF.replace(" line 6\n", ""), "is cut or edited"),
        (HEADER + DIFF.replace("@@ -4,3 +4,4 @@", "@@ here @@"), "is not a unified diff"),
        (HEADER + DIFF.replace("b/specdec/some.py", "/dev/null"), "existing files"),
    ],
)
def test_a_bad_patch_is_refused_in_a_sentence(tmp_path, text, message):
    with pytest.raises(PatchError, match=message) as refused:
        read_patch(write(tmp_path, text))
    assert "\n" not in str(refused.value) and "one.patch" in str(refused.value)


def test_a_patch_that_does_not_apply_is_refused(tmp_path):
    bug = read_patch(write(tmp_path, HEADER + DIFF))
    (tmp_path / "specdec" / "some.py").write_text(BEFORE.replace("line 15", "another"))
    with pytest.raises(PatchError, match="no longer applies to specdec/some.py near line 15"):
        bug.patched(tmp_path)
    (tmp_path / "specdec" / "some.py").unlink()
    with pytest.raises(PatchError, match="does not exist"):
        bug.patched(tmp_path)


def test_tests_that_do_not_exist_are_found(tmp_path):
    bug = read_patch(write(tmp_path, HEADER + DIFF))
    assert missing_tests(bug, tmp_path) == list(bug.killed_by)
    (tmp_path / "tests" / "a.py").write_text("def test_a():\n    pass\n")
    (tmp_path / "tests" / "b.py").write_text(
        "class B:\n    def test_c(self):\n        pass\n\n\ndef test_b():\n    pass\n"
    )
    assert missing_tests(bug, tmp_path) == [bug.killed_by[1]]
    (tmp_path / "tests" / "b.py").write_text("class B:\n    def test_b(self):\n        pass\n")
    assert missing_tests(bug, tmp_path) == []
