"""Accuracy of heads: what is read of a history of training, what is said of it, and what is no history. One choice
against five, from counts by text: shares, paired differences, and words that follow from the interval.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.research import heads_accuracy as heads
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
    table = heads.accuracies(counts).set_index("head")
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
    section = heads.accuracy_section(written(tmp_path / "x.json", found(lead)))
    assert words in section.text[0] and earlier in section.text[0]
    ((_, shown),) = section.tables
    assert shown["head"].tolist() == [1, 2, 3, 4] and len(section.figures) == 1


def test_other_positions_are_refused_and_a_missing_file_says_what_makes_it(tmp_path):
    counts = found()
    counts["medusa"]["asked"][0][3] += 1
    with pytest.raises(UsageError, match="holds no accuracies"):
        heads.load_accuracy(written(tmp_path / "x.json", counts))
    assert "-m benchmark" in heads.accuracy_section(tmp_path / "none.json").text[0]


def test_the_committed_result_is_of_the_heads_that_come_with_specdec():
    for name, entry in heads.load_accuracy(heads.RESULT).items():
        assert entry["file_sha256"] == hashlib.sha256(shipped_file(name).read_bytes()).hexdigest()
        assert len(entry["texts"]) == len(set(entry["texts"])) >= 20


def history(path: Path, *finals: float) -> Path:
    """Four steps, of which the second and the last were scored; accuracies double in between."""
    table = pd.DataFrame({"step": [1, 2, 3, 4], "tokens": [10, 20, 30, 40], "train_loss": [3.0, 2.5, 2.2, 2.1]})
    for head, final in enumerate(finals, 1):
        table[f"heldout_head_{head}_top1"] = [None, final / 2, None, final]
        table[f"heldout_head_{head}_top1_given_earlier"] = 0.9
        table[f"heldout_head_{head}_top2"] = 0.8
        table[f"heldout_head_{head}_top5"] = [None, final, None, 2 * final]
    table["heldout_target_top1"] = [None, 0.5, None, 0.5]
    table["heldout_target_top5"] = [None, 0.7, None, 0.7]
    table.to_csv(path, index=False)
    return path


def test_scored_steps_are_kept_with_one_choice_and_with_five(tmp_path):
    assert heads.load_history(history(tmp_path / "a.csv", 0.4, 0.2)).to_dict("list") == {
        "step": [2, 4], "tokens": [20, 40], "target": [0.5, 0.5], "head_1": [0.2, 0.4], "head_2": [0.1, 0.2],
        "top5_target": [0.7, 0.7], "top5_head_1": [0.4, 0.8], "top5_head_2": [0.2, 0.4],
    }  # fmt: skip
    for content, words in (
        (None, "does not exist"),
        ("step,tokens,heldout_head_1_top1,heldout_target_top1\n1,2,0.5,0.5\n", "is no history of heads"),
        ((tmp_path / "a.csv").read_text().splitlines()[0] + "\n1,10,3\n", "ends before held-out text was scored"),
    ):
        path = tmp_path / "history.csv"
        if content is not None:
            path.write_text(content)
        with pytest.raises(UsageError, match=words):
            heads.load_history(path)


def test_the_fall_is_named_by_kind(tmp_path):
    histories = {
        "medusa": heads.load_history(history(tmp_path / "a.csv", 0.4, 0.2, 0.1)),
        "grounded": heads.load_history(history(tmp_path / "b.csv", 0.5, 0.45, 0.4)),
    }
    assert heads.final_accuracies(histories)["kept"].to_dict() == pytest.approx({"medusa": 0.25, "grounded": 0.8})
    section = heads.training_section(histories, "somewhere")
    fall, lead = section.text[:2]
    assert "independent heads end at 0.400 for head 1 and 0.100 for the last, which keeps 25% of it" in fall
    assert "falls least steeply with position for grounded heads" in fall
    assert lead.startswith("From 20 tokens of training on, one choice of grounded head 3 is right more often than five")
    ((_, figure),) = section.figures
    assert [axes.get_title() for axes in figure.axes] == ["independent heads", "grounded heads", "", ""]
    assert figure.axes[2].lines[2].get_ydata().tolist() == [0.1, 0.2]  # five choices of independent head 3
    ((_, table),) = section.tables
    assert table["heads"].tolist() == ["independent"] * 3 + ["grounded"] * 3
    assert table["top-5"].tolist() == [0.8, 0.4, 0.2, 1.0, 0.9, 0.8]
    other = heads.training_section({"grounded": histories["medusa"], "medusa": histories["grounded"]})
    assert "falls least steeply with position for independent heads" in other.text[0]
    assert other.text[1].startswith("At no time up to the end one choice of grounded head 3")
    assert "least steeply" not in heads.training_section({"medusa": histories["medusa"]}).text[0]


def test_a_lead_that_is_lost_again_is_no_lead():
    tokens = [10, 20, 30, 40]
    one = pd.DataFrame({"tokens": tokens, "head_1": [0.0] * 4, "head_2": [0.3, 0.1, 0.3, 0.4]})
    five = pd.DataFrame({"tokens": tokens, "head_1": [0.9] * 4, "top5_head_2": [0.2] * 4})
    assert heads.overtakes(one, five) == 30
    assert heads.overtakes(one.assign(head_2=0.5), five) == 10
    assert heads.overtakes(one.assign(head_2=[0.5, 0.5, 0.5, 0.2]), five) is None


def test_the_shipped_histories_have_the_same_heads_and_text():
    histories = heads.shipped_histories()
    assert list(histories) == ["medusa", "grounded"]
    medusa, grounded = histories.values()
    assert list(medusa) == list(grounded) and medusa["tokens"].tolist() == grounded["tokens"].tolist()
    assert medusa["target"].tolist() == grounded["target"].tolist()
    assert ((grounded.filter(like="head_") > 0) & (grounded.filter(like="head_") < 1)).all(axis=None)
