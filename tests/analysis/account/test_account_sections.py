"""The account in words: the guilty factor, what is not significant, what one prompt cannot say; the tables; and the
waterfall, whose bars join up, from 1 to Omega and on to the measured speedup; and the capped geometric against the
measurement.
"""

from itertools import pairwise
from math import nan, prod
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.account.account_sections import account_section, factor_table, group_table, time_table, waterfall
from specdec.analysis.account.gap_account import Account
from specdec.analysis.account.verdicts import causes, curve_verdict, formula_verdict, time_split, verdict
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
    table = group_table([account], "category")
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


def bars(figure) -> list[tuple[float, float]]:
    axes = figure.axes[0]
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]


def words_in(figure) -> str:
    axes = figure.axes[0]
    texts = [*axes.texts, *axes.get_yticklabels(), figure._supxlabel, figure._suptitle]
    return "\n".join(text.get_text() for text in texts).replace("\n", " ")


@pytest.mark.parametrize(
    ("intervals", "words"),
    [
        ({}, "dependence, drift or chance costs most, ×0.80"),
        ({"dependence": (0.6, 1.1)}, "verifying more tokens is the largest significant loss, ×0.90"),
        (dict.fromkeys(("dependence", "verify"), (0.6, 1.1)), "no loss is significant"),
    ],
)
def test_the_picture_names_the_loss_that_is_sure(make_account, intervals, words):
    account = make_account({"omega": 2.0, "dependence": 0.8, "draft": 0.8, "verify": 0.9}, intervals)
    run = SimpleNamespace(title="t", simulated=False, metrics={}, refuted="")
    ((_, figure),) = account_section(account, run).figures
    assert f"to a speedup of {account.speedup:.2f}: besides drafting, {words}" in words_in(figure)


def test_every_bar_begins_where_the_last_one_ended(worked_example):
    figure = waterfall(worked_example, title="worked example")
    drawn, words = bars(figure), words_in(figure)
    assert len(drawn) == len(worked_example.factors) + 1
    assert drawn[0] == pytest.approx((1, worked_example.factors["omega"]))
    for before, after in pairwise(drawn[:-1]):
        assert after[0] == pytest.approx(before[1])
    assert drawn[-2][1] == pytest.approx(worked_example.speedup)
    assert drawn[-1] == pytest.approx((1, 2.529197), abs=1e-6)
    low, high = figure.axes[0].get_xlim()
    assert figure.axes[0].get_xscale() == "log" and low < 1 and high > worked_example.factors["omega"]
    for text in ("3.69", "×0.894", "×0.870", "×1.050", "2.53", "20 prompts", "α\xa0=\xa00.800", "95%"):
        assert text in words
    assert "= 1.37 t(1) (verify, draft, rest)" in words
    for factor in set(worked_example.factors) - {"dependence"}:
        assert worked_example.named(factor).name in words and worked_example.named(factor).symbol in words
    assert "+ r)" not in words, "nothing is restored"
    assert "dependence, drift or chance" in words  # no replay: one factor for the three


def test_bars_whose_interval_contains_one_are_pale_and_a_loss_ends_left_of_one(make_account):
    account = make_account({"omega": 2.0, "offered": 0.99, "draft": 0.02}, {"offered": (0.97, 1.01)})
    figure = waterfall(account, title="t")
    first, unsure, sure, last = figure.axes[0].patches
    assert unsure.get_alpha() < 0.6 and {bar.get_alpha() for bar in (first, sure, last)} == {1.0}
    start, end = bars(figure)[-1]
    assert start == 1 and end == pytest.approx(prod(account.factors.values())) and end < 1
    assert figure.axes[0].get_xlim()[0] < 0.04


def test_one_prompt_has_no_whiskers_and_says_so(make_account):
    factors = {"omega": 2.0, "draft": 0.8}
    with_intervals = waterfall(make_account(factors), title="t")
    without = waterfall(make_account(factors, dict.fromkeys((*factors, "speedup"), (nan, nan)), prompts=1), title="t")
    # A whisker is a black line with a white one in it.
    assert len(with_intervals.axes[0].lines) - len(without.axes[0].lines) == 2 * 3
    assert "1 prompt," in words_in(without) and "no intervals" in words_in(without)
    on_a_busy_machine = waterfall(make_account(factors, {"draft": (nan, nan), "speedup": (nan, nan)}), title="t")
    assert "95% prompt-bootstrap intervals of factors that are no times" in words_in(on_a_busy_machine)


def gap(error=(0.08, 0.06, 0.1), factors=None, alpha_of_text=True, replayed=True, offered=(3.0, 0.08, 0.06, 0.1)):
    """An account of gamma 3, by `error` off the capped geometric; `offered`: tokens of a draft, and their error."""
    made = {"offered": Interval(0.99, 0.98, 1.0), "dependence": Interval(0.93, 0.91, 0.95)}
    made = {"omega": Interval(2.533), **(made if factors is None else factors)}
    made |= {"drift": Interval(1.0)} if replayed else {}
    known = {"alpha": Interval(0.7), "tokens_per_round": Interval(2.345, 2.2, 2.5), "tokens_error": Interval(*error)}
    known |= {"offered_tokens": Interval(offered[0]), "offered_error": Interval(*offered[1:])}
    values = {name: value.estimate for name, value in made.items()}
    return Account(3, 9, values, made | known, alpha_of_text=alpha_of_text)


@pytest.mark.parametrize(
    "made, says",
    [
        (gap(), "every draft token with the same chance (alpha 0.700), says 2.533, an error of +8.0% (+6.0% to "),
        (gap(), "for 3 draft tokens a round: it over-predicts, by more than chance. Most of it is dependence between"),
        (
            gap(offered=(2.3, 0.031, -0.01, 0.07)),
            "a round, +3.1% (-1.0% to +7.0%) for the 2.3 that were offered: it ov",
        ),
        (gap(offered=(2.3, 0.031, -0.01, 0.07)), "than chance; for what was offered by no more than chance. Most of"),
        (gap(offered=(2.3, 0.03, 0.01, 0.07)), "it over-predicts, by more than chance, both times."),
        (gap(offered=(2.3, -0.03, -0.05, -0.01)), "by more than chance, and under-predicts for what was offered."),
        (gap(error=(0.08, -0.01, 0.1)), "no more than chance at that gamma."),
        (gap(error=(0.0002, 0.0001, 0.0003)), "it is right, whatever it rests on."),
        (gap(error=(0.08, nan, nan)), "Without an interval no difference can be called real."),
        (gap(alpha_of_text=False), "(alpha 0.700, fitted to the same rounds), says"),
        (gap(replayed=False), "Most of it is dependence, drift or chance, a factor of 0.930"),
        (gap(factors={"offered": Interval(0.6), "dependence": Interval(0.9)}), "Most of it is fewer tokens offered"),
        (gap(error=(-0.1, -0.2, -0.05), factors={"dependence": Interval(1.1)}), "it under-predicts"),
        (gap(error=(-0.1, -0.2, -0.05), factors={"dependence": Interval(0.9)}), "by more than chance."),
    ],
)
def test_the_verdict_says_which_way_how_surely_and_why(made, says):
    assert says in formula_verdict(made)


def test_where_no_token_saved_a_call_nothing_is_right_or_wrong():
    made = gap(error=(0.0, 0.0, 0.0))
    made.intervals["tokens_per_round"] = Interval(1.0, 1.0, 1.0)
    assert "at gamma 3: no draft token saved a call of the target, as the capped" in formula_verdict(made)


def curve(*errors):
    lines = [(gamma, *error) for gamma, error in enumerate(errors, 1)]
    return pd.DataFrame(lines, columns=["gamma", "error", "error_low", "error_high"])


@pytest.mark.parametrize(
    "table, says",
    [
        (curve((0.1, 0.05, 0.2), (0.2, 0.1, 0.3)), "over-predicts at each of 2 gammas, by more than chance; its "),
        (curve((0.1, 0.05, 0.2), (0.2, 0.1, 0.3)), "+20.0% (+10.0% to +30.0%) at gamma 2 at most, and least +10.0%"),
        (curve((0.1, 0.05, 0.2), (-0.2, -0.3, -0.1)), "over-predicts at gamma 1 and under-predicts at gamma 2"),
        (curve((0.1, 0.05, 0.2), (0.0002, 0.0001, 0.0003)), "over-predicts at gamma 1, by more than chance"),
        (curve((0.1, -0.05, 0.2)), "agrees with the measured speed at gamma 1, as far as prompts can tell"),
        (curve((0.1, nan, nan)), "Without intervals no difference can be called real"),
        (curve((nan, nan, nan)), "There is no capped geometric to set the measured speed against."),
    ],
)
def test_the_curve_says_where_the_capped_geometric_misses(table, says):
    assert says in curve_verdict(table, "speed")
