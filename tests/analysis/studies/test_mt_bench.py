"""Figures of study mt_bench from a small table, computed another way."""

import pandas as pd
import pytest

from specdec.analysis.sections import About, findings

ABOUT = About("medusa on some-model (bfloat16), a computer", "mt_bench", False, 200, 1)


def tables(missing: int = 0, chat: bool = True):
    lines = []
    for number in range(6):
        category, temperature = ("coding", 0.0) if number % 2 else ("writing", 0.7)
        for turn in (1, 2):
            about = {"category": category, "temperature": temperature, "prompt": f"q{number}", "choice": 0}
            about |= {"turn": turn}
            tokens = 30 + number
            lines.append(about | {"method": "plain", "tokens": 40, "rounds": 40, "seconds": 4.0})
            rounds = 10 if category == "coding" else 15
            lines.append(about | {"method": "medusa", "tokens": tokens, "rounds": rounds, "seconds": 1.5})
    answers = [
        {"method": method, "verifier": "typical", "model_id": name, "path": f"data/{name}.jsonl"}
        | {"questions": 6, "missing": missing, "chat": chat}
        for method, name in (("plain", "m-plain"), ("medusa", "m-medusa"))
    ]
    skipped = pd.DataFrame(columns=["reason", "category", "count"])
    return {"outputs": pd.DataFrame(lines), "answers": pd.DataFrame(answers), "skipped": skipped}


def test_figures_by_category():
    found = findings("mt_bench", tables(), ABOUT)
    metrics = found.metrics
    tokens = [30 + number for number in range(6)]
    assert metrics["mt_bench/coding.tokens_per_call"] == pytest.approx(sum(tokens[1::2]) / 30)
    assert metrics["mt_bench/tokens_per_call"] == pytest.approx(2 * sum(tokens) / (6 * 10 + 6 * 15))
    assert metrics["mt_bench/speedup"] == pytest.approx(0.1 / (12 * 1.5 / (2 * sum(tokens))))
    assert metrics["mt_bench/speedup.ci_low"] < metrics["mt_bench/speedup"] < metrics["mt_bench/speedup.ci_high"]
    (section,) = found.sections
    ((_, table),) = section.tables
    assert table["category"].tolist() == ["writing", "coding", "all"]
    assert table["temperature"].tolist() == ["0.7", "0", "–"] and table["questions"].tolist() == [3, 3, 6]
    assert "6 questions of mt_bench (12 turns) answered by medusa under typical" in section.text[0]
    assert "--model-list m-medusa m-plain" in section.text[1]
    assert len(section.text) == 3 and [name for name, _ in section.figures] == ["by_category"]
    words = " ".join(findings("mt_bench", tables(missing=2, chat=False), ABOUT).sections[0].text)
    assert "no chat template" in words and "4 turns did not fit" in words
