"""The lean reading of the rounds table: the values of the file, sorted by generation, from one file or its parts."""

import numpy as np
import pandas as pd

from specdec.analysis.read.round_counts import read_round_counts
from specdec.analysis.rounds import COUNTED, GENERATION, by_gamma, drafted, in_order, shared_work


def table():
    """Two prompts by the baseline and at two gammas, in the order in which a run writes them: prompt by prompt."""
    lines = []
    for prompt in ("b", "a"):
        for method, gamma in (("ngram", 4), ("ngram", 2), ("baseline", 0)):
            for number in range(3):
                counts = {"offered": gamma, "offered_nodes": gamma, "accepted": number if gamma > 1 else 0}
                seconds = {name: 0.1 * number + 0.01 for name in ("draft_s", "verify_s", "commit_s", "round_s")}
                lines.append(
                    {
                        "cell": "x",
                        "method": method,
                        "gamma": gamma,
                        "repeat": 0,
                        "prompt": prompt,
                        "category": prompt * 2,
                    }
                    | {"round": number, "context": 70_000 + number, "committed": 1, "rejected": gamma > 0}
                    | {"truncation": "limit" if number == 2 else "", "tokens_left": 40_000 - number, "source": ""}
                    | {"rank": 0, "beta": [1.0], "accept_s": 0.0}
                    | counts
                    | seconds
                )
    return pd.DataFrame(lines)


def test_it_has_the_values_of_the_file_in_order(tmp_path):
    written = table()
    written.to_parquet(tmp_path / "rounds.parquet", index=False)
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(written)), 4)):
        written.iloc[part].to_parquet(tmp_path / "parts" / f"part-{number:05d}.parquet", index=False)
    expected = written.sort_values(GENERATION, kind="stable", ignore_index=True)[list(COUNTED)]
    for path in (tmp_path / "rounds.parquet", tmp_path / "parts"):
        read = read_round_counts(path)
        assert list(read) == list(COUNTED)
        for name in COUNTED:
            assert read[name].tolist() == expected[name].tolist(), name
    assert read["gamma"].dtype == "int16" and read["tokens_left"].dtype == "int32"
    assert read["accept_s"].to_numpy().strides == (0,), "a clock that stands still takes no memory"


def test_its_arms_are_not_copied(tmp_path):
    table().to_parquet(tmp_path / "rounds.parquet", index=False)
    read = read_round_counts(tmp_path / "rounds.parquet")
    seconds = read["verify_s"].to_numpy()
    shared = shared_work(read)
    for part in (shared, drafted(shared), in_order(read), *by_gamma(read).values()):
        assert np.shares_memory(part["verify_s"].to_numpy(), seconds)
    assert {gamma: len(part) for gamma, part in by_gamma(read).items()} == {2: 6, 4: 6}
    assert by_gamma(read)[4]["prompt"].tolist() == ["a"] * 3 + ["b"] * 3
