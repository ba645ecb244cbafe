"""Docstrings say their subject: each begins with a verb or a noun that names the thing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [path for folder in ("specdec", "analysis") for path in sorted((ROOT / folder).rglob("*.py"))]
FRAGMENT = re.compile(r"(Of|What|Whether|Such|Those|Which|How|Where|As|Like|At most so many|All that)\b")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_docstring_begins_with_a_fragment(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    found = [f"{node.name}, line {node.lineno}" for node in documented if FRAGMENT.match(ast.get_docstring(node) or "")]
    assert not found, "say the subject first: " + "; ".join(found)
