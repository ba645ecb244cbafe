"""The page of the theory: its numbers are what the code computes, its places exist, and citations lead to it."""

import re
from pathlib import Path

import numpy as np
import pytest
from oracles import acceptance, calls, multi_draft, queueing, rounds

from specdec.analysis.acceptance import estimates, iid
from specdec.analysis.account import gap_account
from specdec.drafters import model_unigram
from specdec.theory import capped_geometric, roofline, trees

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "notebooks" / "guide" / "theory.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?) ", TEXT, re.MULTILINE))
LINE = re.compile(r"^\| `(.+)` \| (-?\d.*) \|$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = (capped_geometric, roofline, trees)
ORACLES = (acceptance, calls, multi_draft, queueing, rounds)

CITATION = re.compile(r"theory\.md (\d[\d.]*(?:(?: and | to )\d[\d.]*)*)")
# Papers of the project's own workshop, which no reader of the repository has.
ABSENT = re.compile("|".join(rf"\b{name.upper()}\b" for name in ("theory", "design", "style", "ecosystem")))
ENDINGS = {".py", ".yaml", ".md", ".ipynb", ".toml"}
READABLE = [
    path
    for folder in ("specdec", "analysis", "conf", "notebooks", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in ENDINGS and ".ipynb_checkpoints" not in path.parts
] + [ROOT / "README.md", ROOT / "pyproject.toml"]


@pytest.fixture(scope="module")
def names():
    """The functions that the page names, and the data that its blocks make."""
    found: dict[str, object] = {}
    for module in (*MODULES, *ORACLES, estimates, iid, gap_account, model_unigram):
        found |= {name: value for name, value in vars(module).items() if not name.startswith("_")}
    # Names that two of the modules use: those of the theory count, and what the page calls them otherwise.
    found |= {"expected_rounds": rounds.expected_rounds, "after_rounds": estimates.markov}
    for block in BLOCK.findall(TEXT):
        exec(block, found)
    return found


@pytest.mark.parametrize("chapter", range(1, 10))
def test_worked_numbers_are_what_the_code_computes(names, chapter):
    (text,) = (each for each in TEXT.split("\n## ") if each.startswith(f"{chapter} "))
    assert LINE.search(text), "every chapter computes"
    for expression, printed in LINE.findall(text):
        digits = [number.strip() for number in printed.split(",")]
        values = np.asarray(eval(expression, dict(names))).astype(float).ravel()
        assert len(values) == len(digits), f"{expression} has {len(values)} values"
        for value, number in zip(values, digits, strict=True):
            half = 0.5 * 10.0 ** -len(number.partition(".")[2])
            assert abs(value - float(number)) <= half * 1.01 + 1e-9 * ("." not in number), f"{expression}: {value}"


def test_citations_name_sections_that_exist():
    found = [
        (path.relative_to(ROOT).as_posix(), section.rstrip("."))
        for path in READABLE
        for sections in CITATION.findall(" ".join(path.read_text(encoding="utf-8").split()))
        for section in re.split(r" and | to ", sections)
    ]
    assert len(found) > 50
    assert [(path, section) for path, section in found if section not in SECTIONS] == []


def test_nothing_cites_papers_that_a_reader_does_not_have():
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{number}"
        for path in READABLE
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ABSENT.search(line)
    ]
    assert found == []
