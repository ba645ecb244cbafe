"""Accepted lengths by position: walking them gives the rounds of live greedy decoding, at every gamma."""

import pytest
from fixtures.drafting import chain
from fixtures.plain_rounds import decoded

from specdec.drafters import drafters
from specdec.drafters.none import NoDrafter
from specdec.errors import UsageError
from specdec.replay.expected_rounds import lengths_ahead
from specdec.serving.arrivals import ServedText
from specdec.text.streams import Stream

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
GAMMAS = (1, 5)


@pytest.fixture(scope="module")
def text(target):
    return decoded(target, NoDrafter(), chain(1), PROMPT, 36).tokens


@pytest.mark.parametrize("name", ["ngram", "small_model", "medusa"])
def test_a_walk_of_the_lengths_takes_the_rounds_of_live_decoding(target, text, drafter_values, name):
    drafter = drafters.build(drafter_values(name, target.vocab_size, target), target=target)
    gammas = [gamma for gamma in GAMMAS if gamma <= (drafter.capabilities.deepest or gamma)]
    found = lengths_ahead(drafter, target, [chain(gamma) for gamma in gammas], Stream("t", "", PROMPT, text))
    assert list(found) == gammas and max(found[gammas[-1]]) > 1
    served = ServedText(1, found[gammas[-1]], found)
    for gamma in gammas:
        live = decoded(target, drafter, chain(gamma), PROMPT, 36)
        assert live.tokens == text
        position = 0
        for each in live.rounds:
            assert served.committed(position, gamma) == len(each.committed)
            position += len(each.committed)
        assert served.rounds(gamma) == len(live.rounds)


def test_a_drafter_whose_rounds_depend_on_earlier_ones_is_refused(target, text, drafter_values):
    drafter = drafters.build(drafter_values("jacobi", target.vocab_size, target), target=target)
    with pytest.raises(UsageError, match="depends on the rounds before"):
        lengths_ahead(drafter, target, [chain(2)], Stream("t", "", PROMPT, text))
