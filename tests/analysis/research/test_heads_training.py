"""Histories of heads: what is read of them, what is said, and what is no history."""

from pathlib import Path

import pandas as pd
import pytest

from specdec.analysis.research.heads_training import (
    final_accuracies,
    load_history,
    overtakes,
    shipped_histories,
    training_section,
)
from specdec.errors import UsageError


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
    assert load_history(history(tmp_path / "a.csv", 0.4, 0.2)).to_dict("list") == {
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
            load_history(path)


def test_the_fall_is_named_by_kind(tmp_path):
    histories = {
        "medusa": load_history(history(tmp_path / "a.csv", 0.4, 0.2, 0.1)),
        "grounded": load_history(history(tmp_path / "b.csv", 0.5, 0.45, 0.4)),
    }
    assert final_accuracies(histories)["kept"].to_dict() == pytest.approx({"medusa": 0.25, "grounded": 0.8})
    section = training_section(histories, "somewhere")
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
    other = training_section({"grounded": histories["medusa"], "medusa": histories["grounded"]})
    assert "falls least steeply with position for independent heads" in other.text[0]
    assert other.text[1].startswith("At no time up to the end one choice of grounded head 3")
    assert "least steeply" not in training_section({"medusa": histories["medusa"]}).text[0]


def test_a_lead_that_is_lost_again_is_no_lead():
    tokens = [10, 20, 30, 40]
    one = pd.DataFrame({"tokens": tokens, "head_1": [0.0] * 4, "head_2": [0.3, 0.1, 0.3, 0.4]})
    five = pd.DataFrame({"tokens": tokens, "head_1": [0.9] * 4, "top5_head_2": [0.2] * 4})
    assert overtakes(one, five) == 30
    assert overtakes(one.assign(head_2=0.5), five) == 10
    assert overtakes(one.assign(head_2=[0.5, 0.5, 0.5, 0.2]), five) is None


def test_the_shipped_histories_have_the_same_heads_and_text():
    histories = shipped_histories()
    assert list(histories) == ["medusa", "grounded"]
    medusa, grounded = histories.values()
    assert list(medusa) == list(grounded) and medusa["tokens"].tolist() == grounded["tokens"].tolist()
    assert medusa["target"].tolist() == grounded["target"].tolist()
    assert ((grounded.filter(like="head_") > 0) & (grounded.filter(like="head_") < 1)).all(axis=None)
