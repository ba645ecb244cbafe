"""Drafters that need no training save calls of the pocket target, whose text stays that of plain decoding."""

import os
from pathlib import Path

import pytest
from fixtures.drafting import chain, decoded, dynamic, tree
from fixtures.small_parts import pocket_target

from specdec.drafters.base import drafters

TEXT = "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\n    def __add__(self"
CORPUS = ("tarfile", "zipfile", "os", "pathlib", "glob", "tempfile", "argparse", "optparse")


@pytest.fixture
def corpus(tmp_path):
    """Return keys that name half a megabyte of the standard library."""
    folder = Path(os.__file__).parent
    text = "\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in CORPUS)
    (tmp_path / "sources.txt").write_text(text, encoding="utf-8")
    return {"corpus": str(tmp_path / "sources.txt"), "field": None, "match_min": 1, "cache_dir": None}


@pytest.fixture(scope="module")
def plain():
    """Return 48 tokens of plain decoding."""
    target = pocket_target()
    alone = drafters.build({"name": "none"}, target=target)
    return decoded(target, alone, chain(0), target.tokenizer.encode(TEXT), 48, rule="greedy").tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "structure", "share"),
    [
        ("jacobi", chain(8), 0.99),
        ("lookahead", dynamic(55, 9, 30, 30), 0.9),
        ("recycling", tree(-1, -1, -1, 0, 0, 1, 3, 3, 5, 6), 0.9),
        ("suffix", chain(4), 0.8),
        ("retrieval", chain(4), 0.85),
    ],
)
def test_there_are_fewer_calls_than_tokens(plain, group_values, corpus, name, structure, share):
    values, target = group_values("drafter", name, **corpus if name == "retrieval" else {}), pocket_target()
    drafter = drafters.build(values, target=target)
    fast = decoded(target, drafter, structure, target.tokenizer.encode(TEXT), 48, rule="greedy")
    assert fast.tokens == plain and len(fast.rounds) < share * 48
