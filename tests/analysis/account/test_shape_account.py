"""Chain, rows and tree side by side, from runs with made-up rounds: who yields more, and what eats it."""

import pandas as pd
import pytest

from specdec.analysis.account.shape_account import compare_shapes, shape_section
from specdec.errors import UsageError

SHAPES = {
    "chain": {"structure__gamma": "4"},
    "rows": {"structure__gamma": "", "structure__k": "2", "structure__w": "4"},
    "tree": {"structure__gamma": "", "structure__nodes": "8"},
    "dynamic": {"structure__gamma": "", "structure__nodes": "24"},
}

PLAIN = {"draft_s": 0.0, "verify_s": 0.009, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.010}


@pytest.fixture
def make_run(stored_run, make_rounds):
    def build(shape, accepted, verify_s, draft_s=0.001, prompts=6, slow=1.0):
        """A run whose rounds accept `accepted` of 4, or by turns of prompts, and take these seconds, all `slow` times
        as long.
        """
        by_turns = [accepted] if isinstance(accepted, int) else accepted
        times = {"draft_s": draft_s, "verify_s": verify_s, "accept_s": 0.001, "commit_s": 0.0}
        times["round_s"] = sum(times.values())
        outputs = {f"p{n}": [by_turns[n % len(by_turns)]] * (10 + n) for n in range(prompts)}
        plain = {name: [0] * sum(count + 1 for count in rounds) for name, rounds in outputs.items()}
        arm = make_rounds(outputs, 4, durations=times)
        rounds = pd.concat([arm, make_rounds(plain, 0, method="baseline", durations=PLAIN)], ignore_index=True)
        rounds[list(PLAIN)] *= slow
        sums = arm.groupby("prompt", as_index=False).agg(tokens=("committed", "sum"), rounds=("round", "size"))
        alpha = arm.groupby("prompt", as_index=False).agg(numerator=("accepted", "sum"), denominator=("offered", "sum"))
        return stored_run(
            rounds,
            "mixed",
            files={"account.json": '{"primary_gamma": 4}'},
            tables={"replay": sums.assign(gamma=4, kind="own", repeat=0), "alpha": alpha.assign(repeat=0)},
            **{"structure__name": shape, "measurement__bootstrap": "200", "seed": "0"} | SHAPES[shape],
        )

    return build


def test_what_rows_yield_is_eaten_by_verification(make_run):
    # 3 against 2 tokens per call, in rounds of 24 ms against 12 ms.
    runs = [make_run("rows", 2, 0.022), make_run("chain", 1, 0.010)]
    section = shape_section(runs)
    for words in (
        "Rows 2 x 4 yield +50.0% (+50.0% to +50.0%) tokens per call against the chain of 4, in rounds that take +100",
        "-25.0% (-25.0% to -25.0%) tokens per second; longer rounds eat more than what was gained, verification most.",
    ):
        assert words in section.text[0]
    rounds, factors = (table.set_index(table.columns[0]) for _, table in section.tables)
    assert rounds.loc["chain of 4", "speedup"].startswith("1.67") and rounds.loc["rows 2 x 4", "round"] == "2.400"
    assert factors.loc["speedup"].tolist()[1] == "1.250"


def test_a_gain_that_stays_and_a_slower_minute(make_run):
    # The tree's run found the machine half as fast, baseline included: in plain steps that is no difference.
    runs = [make_run("chain", 1, 0.010), make_run("tree", 3, 0.010, draft_s=0.004, slow=2.0)]
    (_, found), text = compare_shapes(runs), shape_section(runs).text[0]
    assert "The dynamic of 24 yields +100" in shape_section([runs[0], make_run("dynamic", 3, 0.01)]).text[0]
    assert [values["tokens"].estimate for values in found.values()] == [2, 4]
    assert [values["round"].estimate for values in found.values()] == pytest.approx([1.2, 1.5])
    assert text.startswith("The tree of 8 yields +100.0%")
    assert (
        "+60.0% (+60.0% to +60.0%) tokens per second; longer rounds eat 32% of what was gained, drafting most" in text
    )


def test_a_difference_within_chance_is_called_that(make_run):
    # On half of the prompts rows yield twice as much, on the others nothing more, in rounds of half as long again.
    text = shape_section([make_run("chain", 1, 0.010), make_run("rows", (3, 1), 0.016)]).text[0]
    assert text.endswith("within chance, longer rounds eat what was gained, verification most.")
    runs = [make_run("chain", 1, 0.01), make_run("rows", 2, 0.01), make_run("tree", 3, 0.01, prompts=2)]
    _, found = compare_shapes(runs)
    assert {values["gain"].prompts for values in found.values()} == {2}  # only shared prompts count
    assert list(found) == ["chain of 4", "rows 2 x 4", "tree of 8"]


def test_what_is_missing_is_said(make_run):
    chain, rows = make_run("chain", 1, 0.01), make_run("rows", 2, 0.01)
    for runs in ([], [chain], [rows], [chain, chain]):
        with pytest.raises(UsageError, match="experiment=chain_rows_tree` makes them"):
            shape_section(runs)
