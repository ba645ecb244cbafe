"""The fault table names tests that exist, and no row is without one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from faults.fault_table import ROWS

ROOT = Path(__file__).resolve().parents[2]


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=[row.fault for row in ROWS])
def test_every_fault_has_tests_that_exist(row):
    assert row.tests
    for node in row.tests:
        file, _, test = node.partition("::")
        name, _, values = test.partition("[")
        assert name in functions(file), node
        if values:  # the ids of that test are the arguments of its cases
            words = values.removesuffix("]").split()
            source = (ROOT / file).read_text(encoding="utf-8")
            assert words == ["nothing"] or all(re.search(rf'"{re.escape(word)}"', source) for word in words), node
