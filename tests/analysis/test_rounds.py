"""The rounds table: what is refused, which repeats count, sums per prompt."""

import pandas as pd
import pytest

from specdec.analysis.rounds import COLUMNS, check_rounds, distinct_generations, prompt_sums


def test_a_sound_table_passes_and_has_all_columns(d4):
    check_rounds(d4)
    assert set(COLUMNS) == set(d4.columns)
    with pytest.raises(ValueError, match="lacks the columns tokens_left, round_s"):
        check_rounds(d4.drop(columns=["round_s", "tokens_left"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accepted": 5}, "accepts more tokens than were offered"),
        ({"rejected": True}, "has a rejection although"),
        ({"tokens_left": 1}, "commits more tokens than are left"),
        ({"offered": 6}, "offers more than its gamma"),
    ],
)
def test_contradictions_are_refused_with_their_round(d4, change, message):
    broken = d4.copy()
    for column, value in change.items():
        broken.loc[1, column] = value  # a full round of prompt a
    with pytest.raises(ValueError, match=f"round 1 of prompt 'a'.* {message}"):
        check_rounds(broken)


def test_copies_of_a_generation_are_dropped_and_different_repeats_kept(make_rounds):
    first = make_rounds({"a": [2, 0, 1], "b": [1, 1]}, 2)
    copy = make_rounds({"a": [2, 0, 1], "b": [1, 0]}, 2, repeat=1)
    kept = distinct_generations(pd.concat([copy, first], ignore_index=True))
    assert list(kept.groupby(["prompt", "repeat"]).groups) == [("a", 0), ("b", 0), ("b", 1)]
    rounds = pd.concat([make_rounds({"a": [1], "b": [1]}, 2), make_rounds({"a": [1]}, 3)], ignore_index=True)
    assert len(distinct_generations(rounds)) == 3


def test_prompt_sums(make_rounds):
    rounds = make_rounds({"a": [2, 0]}, 2, censored={"a": [1]}, offered={"a": [2, 0, 2]})
    sums = prompt_sums(rounds).loc["a"]
    expected = {"rounds": 3, "tokens": 5, "accepted": 3, "rejected": 0, "tested": 3, "offered": 4, "proposals": 2}
    assert {name: sums[name] for name in expected} == expected
    assert sums["round_s"] == pytest.approx(3 * 0.0274)
