"""Theory without independence: replay against simulation, against enumeration and against its special cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.theory.dependence import replay_rounds

M = np.array([0.9, 0.5, 1.0, 0.2, 0.8, 0.7])


def test_replay_takes_every_gamma_in_one_pass():
    np.testing.assert_allclose(replay_rounds(M, [[1, 2], [3, 10]]), [[3.298, 3.14], [2.698, 2.6]])
    assert replay_rounds(M, 0) == len(M)
    assert replay_rounds([], 3) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 14))
@settings(max_examples=50)
def test_replay_satisfies_its_recursion(m, gamma):
    """V by the formula of theory.md 4.2, term by term."""
    n = len(m)
    value = np.zeros(n + gamma + 3)  # V at positions 0 ... n-1, zero behind the end
    chance = np.append(m, np.zeros(gamma + 2))  # behind the end the value is 0 whatever is accepted
    for t in range(n - 1, -1, -1):
        value[t] = 1
        for k in range(gamma):
            value[t] += np.prod(chance[t : t + k]) * (1 - chance[t + k]) * value[t + k + 1]
        value[t] += np.prod(chance[t : t + gamma]) * value[t + gamma + 1]
    assert replay_rounds(m, gamma) == pytest.approx(value[0], rel=1e-9)
