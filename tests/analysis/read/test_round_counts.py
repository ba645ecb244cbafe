"""The lean reading of the rounds table: the values of the file, sorted by generation, from one file or its parts."""

import numpy as np
import pandas as pd
from fixtures.rounds_tables import build_rounds

from specdec.analysis.read import round_counts
from specdec.analysis.read.round_counts import read_arms
from specdec.analysis.rounds import COUNTED, GENERATION, Arms


def table():
    """Two prompts by the baseline and at two gammas, in the order in which a run writes them: prompt by prompt."""
    arms = (("ngram", 4), ("ngram", 2), ("baseline", 0))
    parts = [
        build_rounds({prompt: [0, 1, 1] if gamma else [0, 0, 0]}, gamma, method, category=prompt * 2)
        for prompt in ("b", "a")
        for method, gamma in arms
    ]
    written = pd.concat(parts, ignore_index=True)
    number = written["round"]
    seconds = {name: 0.1 * number + 0.01 for name in ("draft_s", "verify_s", "commit_s", "round_s")}
    return written.assign(context=70_000 + number, tokens_left=40_000 - number, accept_s=0.0, **seconds)


def test_every_arm_has_the_values_of_the_file_in_order(tmp_path):
    written = table()
    written.to_parquet(tmp_path / "rounds.parquet", index=False)
    written.to_parquet(tmp_path / "groups.parquet", index=False, row_group_size=5)
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(written)), 4)):
        written.iloc[part].to_parquet(tmp_path / "parts" / f"part-{number:05d}.parquet", index=False)
    for path in (tmp_path / "rounds.parquet", tmp_path / "groups.parquet", tmp_path / "parts"):
        arms = read_arms(path)
        assert list(arms) == [("baseline", 0), ("ngram", 2), ("ngram", 4)]
        for (method, gamma), read in arms.items():
            expected = written[(written["method"] == method) & (written["gamma"] == gamma)]
            expected = expected.sort_values(GENERATION, kind="stable", ignore_index=True)
            assert list(read) == list(COUNTED)
            for name in COUNTED:
                assert read[name].tolist() == expected[name].tolist(), name
            assert read["gamma"].dtype == "int16" and read["tokens_left"].dtype == "int32"
            assert read["accept_s"].to_numpy().strides == (0,), "a clock that stands still takes no memory"
        pd.testing.assert_frame_equal(texts(arms), texts(Arms.of(written)), check_dtype=False)
    written[(written["gamma"] != 2) | (written["prompt"] != "a")].to_parquet(tmp_path / "rounds.parquet", index=False)
    shared = read_arms(tmp_path / "rounds.parquet").shared()
    assert {arm: part["prompt"].tolist() for arm, part in shared.items()} == dict.fromkeys(shared, ["b"] * 3)
    assert shared.texts["prompt"].tolist() == ["b"] * 3 and shared.texts["rounds"].tolist() == [3] * 3


def test_only_an_arm_that_was_disturbed_says_so(tmp_path):
    hit = [None, True, False] * 2 + [None] * 12  # the first of a group was written by an earlier version
    table().assign(disturbed=hit).to_parquet(tmp_path / "rounds.parquet", index=False)
    arms = read_arms(tmp_path / "rounds.parquet")
    for gamma in (2, 4):
        assert arms["ngram", gamma]["disturbed"].tolist() == [False] * 3 + [False, True, False]
    assert "disturbed" not in arms["baseline", 0]


def texts(arms):
    return arms.texts.sort_values(["method", "gamma", "prompt"], ignore_index=True)


def test_arms_of_a_long_table_are_read_again_when_they_are_asked_for_again(tmp_path, monkeypatch):
    table().to_parquet(tmp_path / "rounds.parquet", index=False)
    arms = read_arms(tmp_path / "rounds.parquet")
    assert arms["ngram", 4] is arms["ngram", 4]
    monkeypatch.setattr(round_counts, "_KEPT", 10)
    first = arms["ngram", 4]
    assert arms["ngram", 2] is not None and arms["ngram", 4] is not first
