"""The capped geometric against the measurement, in sentences: which way it misses, how sure that is, and why."""

from math import nan

import pandas as pd
import pytest

from specdec.analysis.account.gap_account import Account
from specdec.analysis.account.verdicts import curve_verdict, formula_verdict
from specdec.analysis.intervals import Interval


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
