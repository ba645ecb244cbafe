"""One choice against five, from counts by text: shares, paired differences, and words that follow from the interval."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec.analysis.research import heads_accuracy
from specdec.analysis.research.heads_accuracy import accuracies, accuracy_section, load_accuracy
from specdec.errors import UsageError
from specdec.published.network_files import shipped_file

TEXTS = [f"t{number:02}" for number in range(20)]


def found(lead: float = 0.05, heads: int = 4) -> dict[str, dict[str, Any]]:
    """Counts of 20 texts that differ by much: head 4 of grounded heads is right `lead` more often with one choice than
    that of independent ones with five; earlier heads of independent ones are better by 0.1 each.
    """
    generator = np.random.default_rng(0)
    asked = generator.integers(1000, 2000, len(TEXTS))
    ease = generator.normal(0.0, 0.08, len(TEXTS))
    shares = {"medusa": {"top1": 0.06, "top5": 0.2}, "grounded": {"top1": 0.2 + lead, "top5": 0.5}}

    def counts(kind: str, top: str) -> list[list[int]]:
        falls = 0.1 if kind == "medusa" else 0.0
        return [
            [round(n * (shares[kind][top] + e + falls * (heads - head))) for head in range(1, heads + 1)]
            for n, e in zip(asked.tolist(), ease, strict=True)
        ]

    about = {"trained_tokens": 4096000, "text": "some texts", "piece_tokens": 256, "dtype": "float32"}
    return {
        kind: {"heads": kind, "texts": TEXTS, "asked": [[int(n)] * heads for n in asked]}
        | {top: counts(kind, top) for top in ("top1", "top5")}
        | about
        for kind in shares
    }


def written(path: Path, counts: dict[str, dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"figures": list(counts.values())}), encoding="utf-8")
    return path


def test_shares_are_over_all_positions_and_the_lead_is_paired():
    counts = found()
    table = accuracies(counts).set_index("head")
    asked = np.array(counts["grounded"]["asked"])[:, 3]
    one, five = np.array(counts["grounded"]["top1"])[:, 3], np.array(counts["medusa"]["top5"])[:, 3]
    last = table.loc[4]
    assert last["grounded_top1"].estimate == pytest.approx(one.sum() / asked.sum())
    assert last["independent_top5"].estimate == pytest.approx(five.sum() / asked.sum())
    assert last["lead"].estimate == pytest.approx((one - five).sum() / asked.sum()) == pytest.approx(0.05, abs=0.002)
    # The ease of a text drops out of a difference at the same positions.
    width, alone = (each.high - each.low for each in (last["lead"], last["grounded_top1"]))
    assert width < 0.1 * alone and last["lead"].prompts == len(TEXTS)
    assert [each.estimate for each in table["lead"]] == pytest.approx([-0.25, -0.15, -0.05, 0.05], abs=0.002)


@pytest.mark.parametrize(
    ("lead", "words", "earlier"),
    [
        (0.05, "of head 4, the first choice of grounded head 4 is right more", "It holds for no earlier head"),
        (-0.05, "Against what the paper says, the first choice of grounded head 4 is right less often", ""),
        (0.0, "cannot be told from these texts", ""),
        (0.15, "is right more", "Of the earlier heads it holds for 3."),
        (0.4, "is right more", "It holds for all earlier heads too."),
    ],
)
def test_the_answer_follows_from_the_interval(tmp_path, lead, words, earlier):
    section = accuracy_section(written(tmp_path / "x.json", found(lead)))
    assert words in section.text[0] and earlier in section.text[0]
    ((_, shown),) = section.tables
    assert shown["head"].tolist() == [1, 2, 3, 4] and len(section.figures) == 1


def test_other_positions_are_refused_and_a_missing_file_says_what_makes_it(tmp_path):
    counts = found()
    counts["medusa"]["asked"][0][3] += 1
    with pytest.raises(UsageError, match="holds no accuracies"):
        load_accuracy(written(tmp_path / "x.json", counts))
    assert "-m benchmark" in accuracy_section(tmp_path / "none.json").text[0]


def test_the_committed_result_is_of_the_heads_that_come_with_specdec():
    for name, entry in load_accuracy(heads_accuracy.RESULT).items():
        assert entry["file_sha256"] == hashlib.sha256(shipped_file(name).read_bytes()).hexdigest()
        assert len(entry["texts"]) == len(set(entry["texts"])) >= 20
