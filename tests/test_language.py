"""Docstrings say their subject: each begins with a verb or a noun that names the thing."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = [path for folder in ("specdec", "analysis") for path in sorted((ROOT / folder).rglob("*.py"))]
FRAGMENT = re.compile(r"(Of|What|Whether|Such|Those|Which|How|Where|As|Like|At most so many|All that)\b")


def test_no_docstring_begins_with_a_fragment():
    fragments = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            documented = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if documented and FRAGMENT.match(ast.get_docstring(node) or ""):
                fragments.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not fragments, "say the subject first"
