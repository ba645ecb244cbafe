"""Tests of what all drafters over networks share: a draft whose q is not finite ends the run when it is committed."""

import pytest
import torch
from fixtures.drafting import chain

from specdec.drafters.base import drafters, network_drafter
from specdec.errors import NumericsError
from specdec.records import TextStart
from specdec.sampling import generator_for

NAMES = [name for name in drafters.names() if issubclass(drafters.get(name), network_drafter.NetworkDrafter)]


@pytest.mark.parametrize("name", sorted({*NAMES} - {"blockwise"}))  # which drafts point masses
def test_a_q_that_is_not_finite_stops_the_run(drafter_values, small_target, monkeypatch, name):
    target, prompt = small_target(name, 5, temperature=1.0), [0, 3, 1]
    drafter = drafters.build(drafter_values(name, 5, target), target=target)
    target.start(TextStart(prompt, 64))
    drafter.start(TextStart(prompt, 64, generator=generator_for(0, "p", "draft")), target.states)
    monkeypatch.setattr(network_drafter, "all_finite", lambda q: torch.tensor(False))
    drafter.draft(chain(2))
    with pytest.raises(NumericsError, match="not finite"):
        drafter.commit([1])
