"""k rows of width w: their shape and their budget; `test_dynamic.py` has what is said about bad sizes."""

import pytest
from fixtures.refusals import refused

from specdec.structures import structures


@pytest.fixture
def build(group_values):
    return lambda **changes: structures.build(group_values("structure", "rows", **changes))


def test_rows_are_chains_that_share_the_root(build):
    rows = build(k=3, w=2)
    assert rows.tree.parents == (-1, 0, -1, 2, -1, 4)
    assert (rows.gamma, rows.nodes, rows.branches) == (2, 6, 3)


def test_the_budget_counts_the_root_of_every_row(build):
    assert build(k=4, w=4, budget=20).nodes == 16
    with refused(r"structure\.k=4 structure\.w=4: .* = 20 tokens .*structure\.budget=19"):
        build(k=4, w=4, budget=19)
