"""Replay against live decoding: under greedy in float64 the rounds are the same, to the round."""

from collections import Counter

import pytest
import torch

from specdec.clock import CpuClock
from specdec.decode import generate
from specdec.drafters import drafters
from specdec.records import Request
from specdec.replay.expected_rounds import agreement, expected_rounds, rounds_along
from specdec.sampling import generator_for
from specdec.structures import structures
from specdec.targets.causal import Causal
from specdec.theory.dependence import greedy_rounds, replay_rounds
from specdec.verifiers import verifiers

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
REPLAYABLE = [
    (name, shape)
    for name in drafters.names()
    if drafters.get(name).capabilities.replay is not None
    for shape in sorted(drafters.get(name).capabilities.fills)
]


@pytest.fixture(scope="module")
def target(tiny_model, sampling):
    return Causal(tiny_model("llama"), sampling(temperature=0.0))


@pytest.fixture(scope="module")
def text(target):
    """The text that the target writes: the same for every drafter."""
    plain = structures.build({"name": "chain", "gamma": 1})
    return decode(target, drafters.build({"name": "none"}, target=target), plain).tokens


def request(reference):
    return Request(PROMPT, 80, draft_generator=generator_for(0, "p", "draft"), reference=reference)


def decode(target, drafter, structure, reference=None):
    return generate(
        target=target,
        drafter=drafter,
        verifier=verifiers.build({"name": "greedy"}),
        structure=structure,
        request=request(reference),
        clock=CpuClock(),
    )


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize(("name", "shape"), REPLAYABLE)
def test_replay_gives_the_rounds_of_live_greedy_decoding(
    target, text, drafter_values, make_structure, name, shape, gamma
):
    drafter = drafters.build(drafter_values(name, target.vocab_size, target), target=target)
    structure = make_structure(shape, gamma)
    live = decode(target, drafter, structure, reference=text)
    assert live.tokens == text
    if drafter.capabilities.replay == "calling":
        assert expected_rounds(drafter, target, structure, text, request(text)) is None
        walk = rounds_along(drafter, target, structure, text, request(text), CpuClock())
        assert walk.calls == walk.rounds == len(live.rounds)
    else:
        replayed = expected_rounds(drafter, target, structure, text, request(text))
        assert replayed == pytest.approx(len(live.rounds), abs=1e-9)


@pytest.mark.parametrize(("name", "shape"), [("ngram", "chain"), ("ngram", "tree"), ("oracle", "chain")])
@pytest.mark.parametrize("limit", [1, 13, 30])
def test_a_walk_offers_what_live_decoding_offers(target, text, drafter_values, make_structure, name, shape, limit):
    """At the end of a text the room is less than the structure, and nothing is offered for the last token."""
    drafter = drafters.build(drafter_values(name, target.vocab_size, target), target=target)
    structure, verifier = make_structure(shape, 5), verifiers.build({"name": "greedy"})
    fresh = [
        Request(PROMPT, limit, draft_generator=generator_for(0, "p", "draft"), reference=text[:limit]) for _ in range(2)
    ]
    live = generate(
        target=target, drafter=drafter, verifier=verifier, structure=structure, request=fresh[0], clock=CpuClock()
    )
    walk = rounds_along(drafter, target, structure, text[:limit], fresh[1], CpuClock())
    assert live.tokens == text[:limit]
    assert walk.offered == Counter(len(row.draft_tokens) for row in live.rounds)


def test_agreement_of_the_oracle_is_its_coins(target, text, group_values):
    drafter = drafters.build(group_values("drafter", "oracle", alpha=0.6), target=target)
    structure = structures.build({"name": "chain", "gamma": 3})
    along = agreement(drafter, target, structure, text, request(text))
    coins = torch.rand(len(text), generator=generator_for(0, "p", "draft")) < 0.6
    assert along.beta == along.m == tuple(coins.double().tolist())
    assert all(along.proposed)
    # theory.md 4.3, another way to count the rounds of agreement bits
    assert replay_rounds(along.m, 3) == pytest.approx(greedy_rounds(coins.numpy(), 3))


def test_agreement_when_sampling_is_p_of_the_proposal(group_values, table):
    law = [[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.5, 0.25, 0.25]]
    target = table(law, temperature=1.0)
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    structure = structures.build({"name": "chain", "gamma": 4})
    asked, text = Request((0, 1, 2, 0), 4), (1, 2, 1, 0)
    along = agreement(drafter, target, structure, text, asked)
    # Proposals: 1 (seen after 0), 2 (after 0 1), 0 (after 2), 2 (after 1); beta is p of the proposal after the text.
    assert along.beta == pytest.approx((law[0][1], law[1][2], law[2][0], law[1][2]))
    assert along.m == (1.0, 1.0, 0.0, 0.0)
