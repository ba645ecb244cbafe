"""Panels of accuracy by head: one for each variant, and words that follow from paired intervals."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdec.analysis.research.accuracy_panels import by_head, panels_section
from specdec.analysis.research.heads_ablation import load_ablation

PROMPTS = [f"p{number:02}" for number in range(12)]


def entry(variant: str, *own: float, heldout: float = 0.2) -> dict[str, Any]:
    """A measured variant whose heads are right at these shares of the target's own text, easier in some prompts."""
    ease = [0.02 * (number % 5) for number in range(len(PROMPTS))]
    heads = len(own)
    return {
        "variant": variant, "structure": "tree", "depth": heads, "nodes": 24, "heads": {"count": heads},
        "training": {"tokens": 1000},
        "heldout": {"top1": [heldout] * heads, "top5": [2 * heldout] * heads},
        "decoding": {"model": "pocket"},
        "by_prompt": {
            "prompts": PROMPTS, "tokens": [20] * len(PROMPTS), "rounds": [10] * len(PROMPTS),
            "asked": [[500] * heads] * len(PROMPTS),
            "hits": [[round(500 * (share + e)) for share in own] for e in ease],
        },
    }  # fmt: skip


def written(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"figures": entries}), encoding="utf-8")
    return path


def test_every_variant_has_a_panel_and_heads_apart_from_the_plain_ones_are_named(tmp_path):
    plain = entry("grounded", 0.4, 0.3, 0.2)
    path = written(
        tmp_path / "x.json", plain, entry("medusa", 0.3, 0.1, 0.1, heldout=0.1), entry("layers_4", 0.4, 0.35, 0.2),
        entry("gru", 0.4, 0.3, 0.2),
    )  # fmt: skip
    assert [each.estimate for each in by_head(load_ablation(path)[1], plain)] == pytest.approx([-0.1, -0.2, -0.1])
    section = panels_section(path)
    words = section.text[0]
    assert "Right more often: four blocks (head 2). Less often: independent heads (heads 1, 2, 3)." in words
    assert (
        words.endswith("Not told apart at any head: a GRU.") and "9 heads are set against one each" in section.text[1]
    )
    ((name, figure),) = section.figures
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["independent heads", "four blocks", "a GRU"]
    drawn = [line.get_ydata()[0] for line in shown[0].lines]  # plain with one choice and five, then the variant
    assert name == "heads_accuracy_panels" and drawn == [0.2, 0.4, 0.1, 0.2]
    ((_, table),) = section.tables
    assert table["variant"].tolist() == ["plain", "independent heads", "four blocks", "a GRU"]
    assert table["head 2"].tolist() == ["0.200 / 0.400", "0.100 / 0.200", "0.200 / 0.400", "0.200 / 0.400"]
    assert table["own text, last head"][1].startswith("-0.100 (")
    path = written(tmp_path / "x.json", entry("grounded", 0.4, 0.3, 0.2), entry("gru", 0.4, 0.3))
    ((_, table),) = panels_section(path).tables
    assert table["head 3"].tolist() == ["0.200 / 0.400", ""]


def test_what_was_not_measured_is_said(tmp_path):
    for path in (tmp_path / "none.json", written(tmp_path / "x.json", entry("medusa", 0.3))):
        section = panels_section(path)
        assert "test_heads_ablation.py" in section.text[0] and not section.figures
