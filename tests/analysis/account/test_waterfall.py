"""The waterfall of an account: bars that join up, from 1 to Omega and on to the measured speedup."""

from itertools import pairwise
from math import nan, prod

import pytest

from specdec.analysis.account.waterfall import waterfall


def bars(figure) -> list[tuple[float, float]]:
    axes = figure.axes[0]
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]


def words_in(figure) -> str:
    axes = figure.axes[0]
    texts = [*axes.texts, *axes.get_yticklabels(), figure._supxlabel, figure._suptitle]
    return "\n".join(text.get_text() for text in texts).replace("\n", " ")


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
