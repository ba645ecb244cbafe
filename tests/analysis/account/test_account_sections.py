"""The account in words: the guilty factor, what is not significant, what one prompt cannot say; the tables."""

from math import nan, prod
from types import SimpleNamespace

import numpy as np
import pytest

from specdec.analysis.account.account_sections import account_section, factor_table, group_table, time_table
from specdec.analysis.account.run_account import GroupAccount
from specdec.analysis.account.verdicts import causes, time_split, verdict
from specdec.analysis.intervals import Interval


def test_the_worked_example_names_the_acceptance_and_not_the_drafts_that_the_formula_counts(worked_example):
    """3.68928 / 1.15 = 3.208 is promised; most of the gap is dependence, 0.894; verify is 0.902, the loop 0.977."""
    sentence, split = verdict(worked_example), time_split(worked_example)
    assert sentence.startswith("Speculation pays: speedup 2.529 (")
    for text, words in (
        (sentence, "the capped geometric promises 3.208, an error of +26.8%"),
        (sentence, "3.689 tokens per round at gamma 5 and alpha 0.800, and drafts that take 0.150 of a bare call"),
        (sentence, "what costs most is dependence, drift or chance (no replay tells them apart), `dependence` 0.894"),
        (sentence, "without it the speedup would be 2.828"),
        (split, "v = 1.125"),
        (split, "1.370 times a bare call"),
        (split, "t(1) = 20 ms, the mean call on one token in plain decoding of these prompts"),
        (split, "net of it the loop's time is a factor of 0.977"),  # 0.930657 x 1.05
    ):
        assert words in text
    assert "not significant" not in sentence and "gains" not in sentence


def test_the_loop_is_netted_against_the_baselines_own(make_account):
    account = make_account({"omega": 2.0, "dependence": 0.95, "draft": 0.9, "overhead": 0.5, "baseline": 2.0})
    assert "what costs most is dependence" in verdict(account)
    assert prod(each.estimate for each in causes(account).values()) == pytest.approx(account.speedup / 1.8)
    table = group_table([GroupAccount("code", account, True)], "category")
    assert table["costs most"].tolist() == ["dependence"]


def test_simulated_time_is_said(make_account):
    account = make_account({"omega": 2.0, "dependence": 0.8})
    assert "simulated speedup 1.600" in verdict(account, simulated=True)
    assert factor_table(account, simulated=True)["meaning"].iloc[-1] == "simulated by a cost model"
    for simulated, clock in ((True, "cost model"), (False, "wall clock")):
        run = SimpleNamespace(title="t", simulated=simulated, metrics={}, refuted="")
        assert clock in account_section(account, run).tables[0][0]
    assert "simulated" not in verdict(account)


@pytest.mark.parametrize(
    "factors, says",
    [
        ({"omega": 2.0, "draft": 0.9, "verify": 0.4}, "without it speculation would pay, with 1.800"),
        ({"omega": 1.1, "draft": 0.6, "verify": 0.4}, "even without it speculation would not pay, with 0.660"),
        ({"omega": 1.1, "draft": 1 / 1.15}, "by the capped geometric it would not pay either; drafts that took no t"),
        ({"omega": 2.0, "offered": 0.4}, "fewer tokens offered than gamma, `offered` 0.400"),
        ({"omega": 2.0, "drift": 0.4, "dependence": 1.0}, "drift of the drafter, or chance, `drift` 0.400"),
        ({"omega": 2.0, "dependence": 0.4}, "no replay tells them apart), `dependence` 0.400"),
        ({"omega": 2.0, "dependence": 0.4, "drift": 1.0}, "dependence between positions and differences between texts"),
    ],
)
def test_a_loss_names_its_cause(make_account, factors, says):
    sentence = verdict(make_account(factors))
    assert sentence.startswith("Speculation does not pay: speedup 0.") and says in sentence


def test_nothing_costs_anything_or_nothing_was_gained(make_account):
    sentence = verdict(make_account({"omega": 2.0, "offered": 1.0, "draft": 1 - 1e-12, "baseline": 1.2}))
    assert "no factor costs anything" in sentence and "`loop` 1.200" in sentence
    assert "gains" not in verdict(make_account({"omega": 2.0, "offered": 1.0}))
    quicker = verdict(make_account({"omega": 2.0, "offered": 1.0, "verify": 1.07}))
    assert "what gains most is calls on a draft, which took less time here than calls on one" in quicker
    account = make_account({"omega": 1.0, "draft": 0.9, "verify": 1.07})
    account.intervals["tokens_per_round"] = Interval(1.0, 1.0, 1.0)
    said = (
        "; no draft token saved a call of the target, and a round took 0.150 (0.148 to 0.151) of a bare call to draft"
    )
    assert said in verdict(account)


def test_what_is_not_significant_is_called_so(make_account):
    factors = {"omega": 2.0, "dependence": 0.8, "draft": 0.8, "verify": 0.9}
    sentence = verdict(make_account(factors, {"dependence": (0.6, 1.1)}))
    assert "`dependence` 0.800 (0.600 to 1.100), not significant because the interval contains 1" in sentence
    assert "the largest significant loss is verifying several tokens in one call, `verify` 0.900" in sentence
    unsure = {name: (0.5, 1.5) for name in (*factors, "loop")}
    assert "no loss is significant" in verdict(make_account(factors, unsure))
    unsettled = verdict(make_account(factors, {"speedup": (0.9, 1.8)}))
    assert unsettled.startswith("Whether speculation pays is not settled, the interval of its speedup contains 1")
    unknown = factor_table(make_account(factors, {"draft": (nan, nan)}))
    assert unknown["effect"].tolist()[:3] == ["promise", "costs", "costs (no interval)"]
    noisy = verdict(make_account({"omega": 2.0, "draft": 0.9}), noise=0.9)
    assert noisy.startswith("Whether speculation pays is not settled, its speedup is within the noise of 90.0%")


def test_factor_table_multiplies_up_to_the_speedup(worked_example):
    table = factor_table(worked_example).set_index("factor")
    assert list(table.index) == [*worked_example.factors, "speedup"]
    np.testing.assert_allclose(table["product"][:-1], np.cumprod(list(worked_example.factors.values())))
    assert table.at["speedup", "product"] == pytest.approx(table.at["speedup", "value"].estimate)
    assert table.loc[["offered", "draft", "baseline"], "effect"].tolist() == ["none", "costs", "gains"]
    table = time_table(worked_example).set_index("part")
    assert table.loc[["verify", "draft", "rest"], "ms"].sum() == pytest.approx(27.4) == table.loc["round", "ms"]
    assert table.loc["verify", "over t(1)"].estimate == pytest.approx(1.125)
    assert table["share"].sum() == pytest.approx(2)
