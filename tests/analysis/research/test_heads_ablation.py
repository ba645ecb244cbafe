"""Ablations of heads from their counts: rates, paired differences, how accuracy falls, and that the words stay true."""

import json
from typing import Any

import numpy as np
import pytest

from specdec.analysis.research import heads_ablation
from specdec.analysis.research.heads_ablation import both, difference, load_ablation, plain_beside
from specdec.errors import UsageError

Row = dict[str, Any]
PROMPTS = [f"p{number:02}" for number in range(20)]


def row(
    variant: str, rate: float = 1.5, keeps: float = 0.9, structure: str = "tree", depth: int = 5,
    prompts: list[str] = PROMPTS, loops: int = 0,
) -> Row:  # fmt: skip
    """The entry of a measured variant; the accuracy of its first head is 0.4, `keeps` the factor from head to head."""
    generator = np.random.default_rng(0)  # one seed: the same prompts are easy for every variant
    rounds = generator.integers(40, 70, len(prompts))
    ease = generator.normal(1.0, 0.1, len(prompts))
    return {
        "variant": variant, "structure": structure, "depth": depth, "nodes": 24 if structure == "tree" else depth,
        "heads": {"count": 5},
        "training": {"parameters": 1000, "tokens": 819200, "seconds": 100.4},
        "heldout": {"top1": [0.4 * keeps**k for k in range(5)]},
        "decoding": {"model": "pocket", "dtype": "float32", "prompts": "stdlib_code", "cpu": "EPYC", "threads": 2},
        "cost": {"cost/g": 0.25},
        "by_prompt": {
            "prompts": prompts,
            "tokens": [round(n * rate * e) for n, e in zip(rounds, ease, strict=True)],
            "rounds": rounds.tolist(),
            "repetitive": [number < loops for number in range(len(prompts))],
            "asked": [[1000] * 5 for _ in prompts],
            "hits": [[round(400 * e * keeps**k) for k in range(5)] for e in ease],
        },
    }  # fmt: skip


def test_a_difference_is_paired_by_the_prompts_that_are_shared_and_asked_for():
    """Prompts differ by much, variants on the same prompt by little: what is common to both drops out."""
    first, second = row("gru", 1.6), row("grounded", 1.5)
    found, alone = difference(first, second), heads_ablation.tokens_per_round(first)
    assert found.estimate == pytest.approx(0.1, abs=0.01) and found.high - found.low < 0.3 * (alone.high - alone.low)
    second = row("grounded", 1.5, prompts=PROMPTS[5:])
    assert difference(first, second).prompts == 15
    assert difference(first, second, prompts=PROMPTS[3:8]).prompts == 3
    with pytest.raises(UsageError, match="gru and grounded have no prompt in common"):
        both(first, row("grounded", prompts=["elsewhere"]))


def test_variants_are_set_against_plain_heads_of_their_own_text():
    """Another training text makes all heads better: what a variant gained must not be what its text gained."""
    rows = [row("grounded", 1.4), row("medusa", 1.3), row("layers_2", 1.5)]
    # The last is without plain heads of its text.
    for text, variant, rate in (("new", "grounded", 1.7), ("new", "gru", 1.7), ("other", "prefix", 1.9)):
        entry = row(variant, rate)
        rows.append(entry | {"date": "2026-11-22", "training": {**entry["training"], "text": text}})
    beyond = {entry["variant"]: difference(entry, plain_beside(rows, entry)) for entry in rows[:-1]}
    assert beyond["layers_2"].estimate == pytest.approx(0.1, abs=0.02)
    assert beyond["gru"].estimate == pytest.approx(0.0, abs=0.02)
    assert plain_beside(rows, rows[-1]) is None
    section = heads_ablation.variants_section(rows)
    assert "More tokens per round than plain grounded heads: two blocks, +0.10" in section.text[0]
    assert "Not told apart: a GRU" in section.text[0] and "attention over the prefix" not in section.text[0]
    assert "There were 2 training texts" in section.text[-1]
    ((_, lines),) = section.tables
    assert lines["variant"].tolist() == ["plain, text 1", "two blocks, text 1", "plain, text 2", "a GRU, text 2"]
    assert ": +0.10" in heads_ablation.grounding_section(rows).text[0]  # the text of independent heads


def rows_of(gain=0.3) -> list[Row]:
    """Embeddings have the rate of independent heads, which is `gain` less than that of grounded ones."""
    return [
        row("grounded", 1.4 + gain, keeps=0.95, loops=4),
        row("medusa", 1.4, keeps=0.6, loops=4),
        row("embeddings", 1.4),
        *(row("grounded", 1.3 + gain * (1 - 0.5**depth), depth=depth) for depth in range(1, 5)),
        row("grounded", 1.3, structure="chain"),
        row("medusa", 1.2, structure="chain"),
    ]


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (0.2, "Grounded heads are better, by less than the paper found, +0.43"),
        (0.43, "Grounded heads are better; what the paper found lies within the interval: +0.43"),
        (0.7, "Grounded heads are better, by more than the paper found"),
        (-0.1, "Grounded heads are worse, by less"),
        (0.0, "cannot be told from these prompts; the paper found +0.43"),
    ],
)
def test_the_verdict_follows_from_the_interval(gain, verdict):
    text = heads_ablation.grounding_section(rows_of(gain)).text
    assert verdict in text[0] and text[0].startswith("On the same tree of 24 nodes and 20 prompts")
    words = " ".join(text)
    assert "less steeply with position for grounded heads: the last of grounded heads keeps 81%" in words
    assert "On the 16 prompts whose text does not fall into repetition: " in words and "In a chain of 5" in words
    assert "cannot be told from what independent heads have" in words


def test_heads_that_add_tokens_are_named():
    rows = [row("grounded", rate, depth=depth) for depth, rate in enumerate((1.2, 1.4, 1.5, 1.5, 1.5), 1)]
    section = heads_ablation.count_section(rows)
    assert section.text[0].startswith("Of the heads after the first, 2, 3 add tokens: head 2 +0.2")
    flat = [row("grounded", 1.5, depth=depth) for depth in (1, 2)]
    assert heads_ablation.count_section(flat).text[0].startswith("No head after the first adds tokens")


def test_a_file_is_read_back_and_what_was_not_measured_names_what_makes_it(tmp_path):
    path, rows = tmp_path / "x.json", [row("medusa")]
    (missing,) = heads_ablation.ablation_sections(path)
    sections = heads_ablation.grounding_section, heads_ablation.variants_section, heads_ablation.count_section
    for section in (missing, *(make(rows) for make in sections)):
        assert "test_heads_ablation.py" in section.text[0] and not section.figures
    path.write_text(json.dumps({"date": "2026-01-01", "figures": rows_of()}))
    assert load_ablation(path) == rows_of() and len(heads_ablation.ablation_sections(path)) == 3
