"""The pictures of Leviathan et al.: every line against a sum or a search of its own, and the marks of a run."""

import numpy as np
import pytest

from specdec.analysis.figures import theory_figures
from specdec.analysis.figures.theory_figures import COSTS, GAMMAS, Standing, standing_in_words
from specdec.analysis.intervals import Interval

HERE = Standing(0.8, 5, 0.05, 0.1, Interval(2.5, 2.2, 2.8), 1.9)  # theory.md 2.2: best is 8, 3.092080


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def slow_speedup(alpha, gamma, c):
    return sum(alpha**k for k in range(gamma + 1)) / (1 + gamma * c)


def marked(axes, words):
    handles, labels = axes.get_legend_handles_labels()
    line = handles[labels.index(words)]
    data = line[0] if isinstance(line, tuple) else line
    return float(data.get_xdata()[0]), float(data.get_ydata()[0])


def test_best_gamma_is_the_best_of_all_that_are_tried():
    (axes,) = theory_figures.best_gamma().axes
    drawn = lines(axes)
    assert list(drawn) == [f"c = {c:g}" for c in COSTS]
    for c in (0.05, 0.2):
        alpha, gamma = drawn[f"c = {c:g}"].get_data()
        for a, g in list(zip(alpha, gamma, strict=True))[::20]:
            best = int(np.argmax([round(slow_speedup(a, n, c), 12) for n in range(60)]))
            assert g == best or (np.isnan(g) and best > 20)
    (axes,) = theory_figures.best_gamma(HERE).axes
    assert marked(axes, "the capped geometric's best: γ = 8") == (0.8, 8) and marked(axes, "its own: γ = 5") == (0.8, 5)
    alpha, gamma = lines(axes)["c = 0.05, its own"].get_data()
    assert gamma[np.abs(alpha - 0.8).argmin()] == 8


def test_speedup_and_operations_of_a_free_drafter():
    above, below = map(lines, theory_figures.speedup_and_operations().axes)
    for gamma in GAMMAS:
        alpha, fast = above[f"γ = {gamma}"].get_data()
        np.testing.assert_allclose(fast, slow_speedup(alpha, gamma, 0))
        np.testing.assert_allclose(below[f"γ = {gamma}"].get_ydata(), (gamma + 1) / fast)
    above, below = theory_figures.speedup_and_operations(HERE).axes
    alpha, fast = lines(above)["γ = 5"].get_data()
    np.testing.assert_allclose(fast, slow_speedup(alpha, 5, 0.05))
    expected, operations = slow_speedup(0.8, 5, 0.05), (5 * 0.1 + 6) / 3.68928
    assert marked(above, f"capped geometric: {expected:.2f}") == pytest.approx((0.8, expected))
    assert marked(below, f"capped geometric: {operations:.2f}") == pytest.approx((0.8, operations))
    assert marked(above, "measured: 2.50") == (0.8, 2.5) and marked(below, "evaluated: 1.90") == (0.8, 1.9)


def test_the_oracle_drafts_what_is_accepted():
    (axes,) = theory_figures.oracle_bound(HERE).axes
    gain = (1 / 0.2) / (1 + 0.05 * 0.8 / 0.2) / max(slow_speedup(0.8, gamma, 0.05) for gamma in range(60))
    assert marked(axes, f"this run: {gain:.2f}") == pytest.approx((0.8, gain))
    for name, line in lines(axes).items():
        if name.startswith("c = "):
            assert (np.asarray(line.get_ydata()) >= 1 - 1e-9).all() and max(line.get_ydata()) < np.e / (np.e - 1)


def test_the_choice_in_words():
    for here, words in (
        (HERE, "of 2.951 for γ 5 and of 3.092 for γ 8, its best: +4.8%"),
        (Standing(0.8, 8, 0.05), "of 3.092 for γ 8, its best γ"),
        (Standing(0.1, 2, 0.5), "no γ pays, because α is not above c"),
        (Standing(0.8, 5, 0.0), "more for every longer draft"),
    ):
        choice, more = standing_in_words(here)
        assert words in choice and f"{1 / (1 - here.alpha + here.c * here.alpha):.3f}" in more
