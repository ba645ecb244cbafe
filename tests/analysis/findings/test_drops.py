"""The one-sided test for a drop, against a jackknife, and what it promises: its false alarms and the drop it finds."""

from math import log

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from specdec.analysis.findings.drops import TOKENS_PER_ROUND, Drop, chance_at


def texts(tokens, rounds, first=0):
    names = [f"p{number:03d}" for number in range(first, first + len(rounds))]
    return pd.DataFrame({"tokens": tokens, "rounds": rounds, "texts": 1}, index=names).astype(float)


def drawn(generator, prompts=40, extra=0.0):
    """An earlier and a later run whose prompts differ; the later one takes `extra` more rounds, each with its luck."""
    rounds = generator.integers(20, 90, prompts)
    rate = 1 + 3 * generator.beta(4, 3, prompts)
    tokens = [rounds + generator.poisson(rounds * (rate - 1)) for _ in range(2)]
    return texts(tokens[0], rounds), texts(tokens[1], rounds + generator.poisson(rounds * extra))


def rate(table):
    return log(table["tokens"].sum() / table["rounds"].sum())


@pytest.mark.parametrize("paired", [True, False])
def test_the_bound_is_that_of_a_jackknife_over_prompts(paired):
    earlier, later = drawn(np.random.default_rng(3))
    pairs = [(name, name) for name in earlier.index]
    if not paired:
        later = later.iloc[:25].set_axis([f"other {name}" for name in later.index[:25]])
        pairs = [(name, None) for name in earlier.index], [(None, name) for name in later.index]
    variance = 0.0
    for group in [pairs] if paired else pairs:
        left_out = np.array([rate(later.drop(b or [])) - rate(earlier.drop(a or [])) for a, b in group])
        variance += (len(group) - 1) / len(group) * ((left_out - left_out.mean()) ** 2).sum()
    quantile = t.ppf(0.99, (40 if paired else 25) - 1)
    expected = 1 - np.exp(rate(later) - rate(earlier) + quantile * np.sqrt(variance))
    assert Drop.of(TOKENS_PER_ROUND, earlier, later, 0.01).least == pytest.approx(expected, rel=0.02)


def test_looking_after_every_run_raises_no_more_false_alarms_than_promised():
    """At a chance of 0.2 for a figure, of which 100 series with nothing lost keep below 0.32 (3 standard errors)."""
    assert sum(2 * chance_at(look, 0.2) for look in range(1, 10_000)) == pytest.approx(0.2, rel=1e-3)

    def alarmed(seed):
        generator = np.random.default_rng(seed)
        (earlier, later), pooled = drawn(generator), 0
        for look in range(1, 5):
            again = later["rounds"] + generator.poisson(earlier["tokens"] - earlier["rounds"])
            pooled = pooled + later.assign(tokens=again)
            if Drop.of(TOKENS_PER_ROUND, earlier, pooled, chance_at(look, 0.4)).loss:
                return True
        return False

    assert 0.02 < np.mean([alarmed(seed) for seed in range(100)]) < 0.32


def test_the_drop_that_is_said_to_be_found_is_found_and_half_of_it_is_not():
    """A greedy text is the same twice, so nothing varies until rounds are lost, here each one alone. Less than 0.68 of
    100 would be 3 standard errors below 0.8.
    """
    found = {1.0: 0, 0.5: 0}
    for seed in range(100):
        generator = np.random.default_rng(seed)
        earlier, _ = drawn(generator)
        said = Drop.of(TOKENS_PER_ROUND, earlier, earlier, 0.005).detectable
        for part in found:
            lost = generator.poisson(earlier["rounds"] * part * said / (1 - part * said))
            later = earlier.assign(rounds=earlier["rounds"] + lost)
            found[part] += Drop.of(TOKENS_PER_ROUND, earlier, later, 0.005).loss
    assert found[1.0] > 68 and found[0.5] < 60


def test_neither_the_same_outputs_decoded_again_nor_a_drop_within_the_tolerance_is_a_loss():
    earlier, _ = drawn(np.random.default_rng(0))
    drop = Drop.of(TOKENS_PER_ROUND, earlier, earlier * 3, 0.01)
    assert not drop.loss and drop.later == pytest.approx(drop.earlier)
    assert drop.detectable == Drop.of(TOKENS_PER_ROUND, earlier, earlier, 0.01).detectable
    later = earlier.assign(rounds=earlier["rounds"] * 1.05)
    assert Drop.of(TOKENS_PER_ROUND, earlier, later, 0.01, tolerance=0.02).loss
    assert not Drop.of(TOKENS_PER_ROUND, earlier, later, 0.01, tolerance=0.06).loss
