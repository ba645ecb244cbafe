"""The runner, on a toy project; and, in the second tier, a quarter of the planted bugs."""

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_mutations import sample

from mutations.patch_files import PlantedBug, planted_bugs

ROOT = Path(__file__).resolve().parents[2]
CODE = """def total(values):
    result = 0
    for value in values:
        result += value
    return result
"""
TESTS = """import time

import pytest

from analysis.sums import total


def test_total():
    assert total([1, 2]) == 3


def test_nothing():
    assert total([]) == 0


@pytest.mark.skipif(True, reason="no such processor")
def test_elsewhere():
    assert total([1]) == 1
"""
ADDS = "        result += value"
TOTAL, NOTHING, ELSEWHERE = (f"tests/test_sums.py::test_{name}" for name in ("total", "nothing", "elsewhere"))


@pytest.fixture
def toy(tmp_path):
    """`toy(name=(before, after, field), ...)` runs the command on a project with these planted bugs."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n')
    for name, text in (("analysis/sums.py", CODE), ("tests/test_sums.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)

    def run(*options: str, **bugs: tuple[str, str, str]) -> subprocess.CompletedProcess:
        folder = tmp_path / "tests" / "mutations" / "theory"
        folder.mkdir(parents=True)
        for name, (before, after, field) in bugs.items():
            lines = [text.splitlines(keepends=True) for text in (CODE, CODE.replace(before, after))]
            diff = "".join(difflib.unified_diff(*lines, "a/analysis/sums.py", "b/analysis/sums.py"))
            (folder / f"{name}.patch").write_text(f"Bug: a bug.\n{field}\n\n{diff}")
        command = [sys.executable, str(ROOT / "tests" / "run_mutations.py"), "-j2", f"--root={tmp_path}", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    return run


def statuses(ended: subprocess.CompletedProcess) -> dict[str, str]:
    lines = [line.split() for line in ended.stdout.split("\n\n")[0].splitlines()]
    return {words[3].removeprefix("theory/"): words[0] for words in lines}


FLIPPED = (ADDS, ADDS.replace("+=", "-="))


@pytest.mark.slow
def test_a_toy_project(toy, tmp_path):
    """Every verdict that there is; the tree itself is never written to."""
    ended = toy(
        "--limit=5",
        killed=(*FLIPPED, f"Killed by: {NOTHING}\n{TOTAL}"),
        raises=(ADDS, "        raise ArithmeticError", f"Killed by: {TOTAL}"),
        survived=(*FLIPPED, f"Killed by: {NOTHING}"),
        no_import=("def total", "import nothing_such\n\n\ndef total", f"Killed by: {TOTAL}"),
        no_name=(ADDS, ADDS + "d", f"Killed by: {TOTAL}"),
        no_test=(*FLIPPED, "Killed by: tests/test_sums.py::test_other"),
        elsewhere=(*FLIPPED, f"Killed by: {ELSEWHERE}"),
        either=(*FLIPPED, f"Killed by: {ELSEWHERE}\n{TOTAL}"),
        here_alone=(*FLIPPED, f"Killed by: {ELSEWHERE}\n{NOTHING}"),
        sleeps=(ADDS, "        __import__('time').sleep(600)", f"Killed by: {TOTAL}"),
    )
    assert statuses(ended) == {
        **dict.fromkeys(("killed", "raises", "either"), "killed"),
        **dict.fromkeys(("survived", "here_alone"), "survived"),
        **dict.fromkeys(("no_import", "no_name", "no_test"), "broken"),
        **{"elsewhere": "skipped", "sleeps": "hung"},
    }, ended.stdout + ended.stderr
    said = "3 of 10 planted bugs killed (1 cannot be on this machine, which skips their tests);"
    assert ended.returncode == 1 and said in ended.stdout
    assert (tmp_path / "analysis" / "sums.py").read_text() == CODE
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_full_score(toy):
    """A bug that cannot be noticed here is no failure."""
    ended = toy(killed=(*FLIPPED, f"Killed by: {TOTAL}"), elsewhere=(*FLIPPED, f"Killed by: {ELSEWHERE}"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert statuses(ended) == {"killed": "killed", "elsewhere": "skipped"}


def test_names_choose_bugs(toy):
    killed = (*FLIPPED, f"Killed by: {TOTAL}")
    ended = toy("on*", "two", one=killed, two=killed, three=killed)
    assert ended.returncode == 2 and "No planted bug is called on*" in ended.stderr


def test_consecutive_seeds_choose_every_bug_once():
    bugs = [PlantedBug(Path(), f"area/{number}", "", ()) for number in range(47)]
    samples = [sample(bugs, 10, seed) for seed in range(7, 12)]
    assert sorted(bug.name for chosen in samples for bug in chosen) == sorted(bug.name for bug in bugs)
    assert {len(chosen) for chosen in samples} == {9, 10}
    assert sample(bugs, 10, 7) == sample(bugs, 10, 12)
    assert sample([], 10, 7) == []


@pytest.mark.slow
@pytest.mark.parametrize("half", range(2))
def test_a_quarter_of_the_planted_bugs_are_killed(half):
    """Each fails a test that it names: another quarter with every commit, in halves that two workers can share.

    `python tests/run_mutations.py` plants all. Without the bugs these tests run in this very suite.
    """
    counted = subprocess.run(["git", "-C", ROOT, "rev-list", "--count", "HEAD"], capture_output=True, text=True)
    seed = 2 * int(counted.stdout or 0) + half
    size = -(-len(planted_bugs(ROOT / "tests" / "mutations")) // 8)
    command = [sys.executable, str(ROOT / "tests" / "run_mutations.py"), "-j1", f"--sample={size}", f"--seed={seed}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=550, env=environment)
    assert ended.returncode == 0, ended.stdout.split("\n\n", 1)[-1] + ended.stderr
