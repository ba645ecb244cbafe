"""First differences, and which of them rounding explains."""

import math

import pytest
import torch

from specdec.session.divergence import explain


class Scored:
    """A target whose float32 logits and own logits are given."""

    def __init__(self, wide, narrow):
        self.wide, self.narrow = torch.tensor([wide]), torch.tensor([narrow])

    def score(self, prompt, text):
        return self.wide

    def score_as_decoded(self, prompt, text):
        return self.narrow


@pytest.mark.parametrize(
    "wide, narrow, explained",
    [
        ([2.0, 1.99, 0.0], [2.0, 2.0, 0.0], True),  # apart by 0.01, rounding 0.01
        ([2.0, 1.5, 0.0], [2.0, 1.51, 0.0], False),  # apart by 0.5, rounding 0.01
        ([2.0, 1.99, 3.0], [2.0, 2.0, 3.0], False),  # near each other, but neither is near the best
        ([2.0, 2.0, 0.0], [2.0, 2.0, 0.0], True),  # an exact tie
    ],
)
def test_a_near_tie_is_explained_and_nothing_else(wide, narrow, explained):
    found = explain(Scored(wide, narrow), ("p", 4), (9,), (7, 0, 5), (7, 1, 5))
    assert found is not None
    assert (found.position, found.baseline_token, found.token) == (1, 0, 1)
    assert found.explained is explained


def test_a_text_that_ends_early_is_never_explained():
    found = explain(Scored([1.0], [1.0]), ("p", 4), (9,), (7, 0), (7, 0, 5))
    assert found is not None and not found.explained and math.isnan(found.margin)
    assert explain(Scored([1.0], [1.0]), ("p", 4), (9,), (7, 0), (7, 0)) is None
