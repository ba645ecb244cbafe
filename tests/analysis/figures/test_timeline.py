"""The timeline: which rounds are shown, and that every block is as long as its time."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from specdec.analysis.arms import Arms
from specdec.analysis.figures.timeline import DRAFT, REST, VERIFY, stretch, timeline

SLOW = {"draft_s": 0.0, "verify_s": 0.020, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.021}


def seconds(gamma, factor=1.0):
    draft, verify = 0.004 * gamma * factor, 0.024 * factor
    return {"draft_s": draft, "verify_s": verify, "accept_s": 0.0, "commit_s": 0.0, "round_s": draft + verify + 0.001}


@pytest.fixture
def rounds(make_rounds):
    accepted = {2: [2, 1, 0, 2, 2, 1, 0, 2, 1, 0, 2], 4: [4, 0, 2, 1, 4, 4, 2]}
    tables = [make_rounds({name: [0] * 24 for name in ("slow", "b", "fast")}, 0, "baseline", durations=SLOW)]
    for gamma, counts in accepted.items():
        for name, factor in (("slow", 2.0), ("b", 1.0), ("fast", 0.5)):
            tables.append(make_rounds({name: counts}, gamma, "small_model", durations=seconds(gamma, factor)))
    table = pd.concat(tables, ignore_index=True)
    assert (table.groupby(["gamma", "prompt"])["committed"].sum() == 24).all()
    return table


def test_the_text_is_the_one_of_median_speedup_and_all_rows_show_the_same_tokens(rounds):
    shown = stretch(Arms.of(rounds), 2, count=4)
    assert shown.prompt == "b" and list(shown.rows) == ["baseline", "γ = 4", "γ = 2"]
    # Rounds 5 to 8 of gamma 2 begin after 3 + 2 + 1 + 3 + 3 tokens and commit 2 + 1 + 3 + 2.
    assert (shown.first, shown.tokens) == (12, 8)
    assert shown.rows["γ = 2"]["round"].tolist() == [5, 6, 7, 8]
    assert shown.rows["baseline"]["place"].tolist() == list(range(12, 20))
    # Rounds of gamma 4 begin at 0, 5, 6, 9, 11, 16 and 21: two from 12 on commit 5 and 3.
    assert shown.rows["γ = 4"]["place"].tolist() == [16, 21]
    assert shown.rows["γ = 4"]["committed"].tolist() == [5, 3]
    mixed = rounds.sample(frac=1.0, random_state=0)
    assert stretch(Arms.of(mixed), 2, count=4).rows["γ = 2"]["round"].tolist() == [5, 6, 7, 8]
    with pytest.raises(ValueError, match=r"no rounds at the primary gamma 3, only at \[2, 4\]"):
        stretch(Arms.of(rounds), 3)


def test_blocks_are_to_scale(rounds):
    (axes,) = timeline(stretch(Arms.of(rounds), 2, count=4), title="t").axes
    blocks = {}
    for bar in axes.patches:
        kind = (round(bar.get_y() + bar.get_height() / 2), to_hex(bar.get_facecolor()).upper())
        blocks.setdefault(kind, []).append((bar.get_x(), bar.get_width()))
    # Gamma 2 is row -2, below the baseline and gamma 4; one round behind the other.
    for colour, begins, lasts in ((DRAFT, 0.0, 8.0), (VERIFY, 8.0, 24.0), (REST, 32.0, 1.0)):
        np.testing.assert_allclose(blocks[-2, colour], [(begins + 33.0 * at, lasts) for at in range(4)])
    np.testing.assert_allclose(blocks[0, VERIFY], [(21.0 * at, 20.0) for at in range(8)])
    words = [text.get_text() for text in axes.texts]
    assert words.count("8 tokens, 61 per second") == 1 and words.count("8 tokens, 48 per second") == 1
    assert [word for word in words if word.isdigit()] == ["1"] * 8 + ["5", "3"] + ["2", "1", "3", "2"]
    (axes,) = timeline(stretch(Arms.of(rounds), 2, count=1, most=1), title="t").axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == pytest.approx([4.0, 4.0])
