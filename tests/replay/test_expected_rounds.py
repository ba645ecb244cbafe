"""Replay against live decoding: under greedy in float64 the rounds are the same, to the round."""

import numpy as np
import pytest
import torch
from fixtures.decoding import decode
from fixtures.drafting import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.rounds import greedy_rounds, replay_rounds

from specdec.certification.exact import TableDrafter
from specdec.clock import CpuClock
from specdec.drafters import drafters
from specdec.drafters.base import DrafterCapabilities
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, Request, chain_tree
from specdec.replay.expected_rounds import Agreement, Starts, TextReplay, expected_walk, lengths_ahead
from specdec.replay.walk import TextReading
from specdec.sampling import generator_for
from specdec.serving.server import ServedText
from specdec.text.streams import Stream

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
LIMIT = 14


def replayable():
    """Every drafter that can be replayed, along a chain if it fills one; of each kind of replay the first one that
    fills a structure, in that too. Sizes take turns.
    """
    known = set()
    for turn, name in enumerate(drafters.names()):
        drafter = drafters.get(name).capabilities
        for shape in sorted(drafter.fills) if drafter.replay is not None else ():
            if shape == "chain" or (drafter.replay, shape) not in known or "chain" not in drafter.fills:
                known.add((drafter.replay, shape))
                yield name, shape, (1, 2, 5)[turn % 3]


@pytest.fixture(scope="module")
def text(target):
    """The text that the target writes: the same for every drafter."""
    return decode(target, "none", 1, PROMPT, LIMIT).tokens


def of_text(reference=None):
    """Return the fields of a request whose drafter knows the text, if it has to."""
    return {"draft_generator": generator_for(0, "p", "draft"), "reference": reference}


def request(reference):
    return Request(PROMPT, LIMIT, **of_text(reference))


@pytest.mark.parametrize(("name", "shape", "gamma"), list(replayable()))
def test_replay_gives_the_rounds_of_live_greedy_decoding(
    target, text, drafter_values, make_structure, name, shape, gamma
):
    drafter = drafters.build(drafter_values(name, target.vocab_size, target), target=target)
    structure = make_structure(shape, gamma)
    live = decode(target, drafter, structure, PROMPT, LIMIT, **of_text(text))
    assert live.tokens == text
    replay = TextReplay(drafter, target, structure, text, request(text))
    if drafter.capabilities.replay == "calling":
        assert replay.expected_rounds() is None
        walk = replay.rounds(CpuClock())
        assert walk.calls == walk.rounds == len(live.rounds)
    else:
        assert replay.expected_rounds() == pytest.approx(len(live.rounds), abs=1e-9)


def test_agreement_of_the_oracle_is_its_coins(target, text, group_values):
    drafter = drafters.build(group_values("drafter", "oracle", alpha=0.6), target=target)
    along = TextReplay(drafter, target, chain(3), text, request(text)).agreement()
    coins = torch.rand(len(text), generator=generator_for(0, "p", "draft")) < 0.6
    assert along.beta.tolist() == along.m.tolist() == coins.double().tolist()
    assert along.proposed.all()
    # theory.md 4.3, another way to count the rounds of agreement bits
    assert replay_rounds(along.m, 3) == pytest.approx(greedy_rounds(coins.numpy(), 3))


def test_agreement_when_sampling_is_p_of_the_proposal(group_values, table):
    law = [[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.5, 0.25, 0.25]]
    target = table(law, temperature=1.0)
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    along = TextReplay(drafter, target, chain(4), (1, 2, 1, 0), Request((0, 1, 2, 0), 4)).agreement()
    # Proposals: 1 (seen after 0), 2 (after 0 1), 0 (after 2), 2 (after 1); beta is p of the proposal after the text.
    assert along.beta == pytest.approx((law[0][1], law[1][2], law[2][0], law[1][2]))
    assert along.m.tolist() == [1.0, 1.0, 0.0, 0.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 14))
@settings(max_examples=50)
def test_chances_by_position_take_the_rounds_of_the_formula(m, gamma):
    along = Agreement(np.ones(len(m), dtype=bool), np.array(m), np.array(m))
    walk = expected_walk(Starts.of_positions(along, gamma), len(m))
    assert walk.rounds == pytest.approx(replay_rounds(m, gamma), rel=1e-9)


class Markov(TableDrafter):
    """Draws along a chain, and nothing after the token `silent`. `whole` gives all laws along a text at once."""

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), replay="position")

    def __init__(self, q, whole=False, silent=None):
        super().__init__(q)
        self.whole, self.silent = whole, silent

    def draft(self, structure):
        draft = super().draft(structure)
        tokens = [self.root, *draft.tokens.tolist()]
        size = tokens.index(self.silent) if self.silent in tokens else len(draft)
        return Draft(draft.tokens[:size], chain_tree(size), draft.q[:size]) if size else EMPTY

    def laws(self, prompt, text):
        return self.q[[prompt[-1], *text[:-1]]] if self.whole else None


P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.35, 0.25, 0.4]], dtype=torch.float64)
Q = torch.tensor([[0.3, 0.5, 0.2], [0.4, 0.35, 0.25], [0.2, 0.2, 0.6]], dtype=torch.float64)


@pytest.mark.parametrize(("whole", "silent", "end"), [(True, None, 2), (False, None, 2), (False, 1, None)])
def test_drawn_drafts_take_the_rounds_that_enumeration_counts(table, live_rounds, whole, silent, end):
    """Chains that may end early have offers that no text tells, because they depend on the tokens that were drafted."""
    target, drafter, limit = table(P, end_token=end, temperature=1.0), Markov(Q, whole, silent), 3
    prompt = (0, 1, 0)
    live = live_rounds(target, drafter, prompt, limit)
    assert len(live) == (3**limit if end is None else 1 + 2 + 4 * 3)
    for tokens, offered in live.items():
        asked = Request(prompt, limit, draft_generator=torch.Generator())
        replay = TextReplay(drafter, target, chain(2), tokens, asked)
        assert replay.expected_rounds() == pytest.approx(sum(offered.values()), abs=1e-12)
        along, walk = replay.agreement(), expected_walk(replay.starts(), limit)
        before = (0, *tokens[:-1])
        beta = [0.0 if last == silent else float(torch.minimum(P[last], Q[last]).sum()) for last in before]
        assert along.beta == pytest.approx(beta) and along.proposed.tolist() == [last != silent for last in before]
        if silent is None:
            assert walk.offered == pytest.approx(offered, abs=1e-12)


def test_point_masses_from_every_start_offer_what_live_decoding_offers(table, live_rounds, group_values):
    """An n-gram's draft follows from the text before it; texts end at token 2 or at the limit."""
    target, limit, prompt = table(P, end_token=2, temperature=1.0), 4, (0, 1, 1, 0)
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    for tokens, offered in live_rounds(target, drafter, prompt, limit).items():
        starts = TextReplay(drafter, target, chain(2), tokens, Request(prompt, limit)).starts()
        assert expected_walk(starts, limit).offered == pytest.approx(offered, abs=1e-12)


@pytest.mark.parametrize("name", ["ngram", "small_model", "medusa"])
def test_a_walk_of_the_lengths_takes_the_rounds_of_live_decoding(target, drafter_values, name):
    """Accepted lengths by position, walked at every gamma."""
    long = decode(target, "none", 1, PROMPT, 36).tokens
    drafter = drafters.build(drafter_values(name, target.vocab_size, target), target=target)
    gammas = [gamma for gamma in (1, 5) if gamma <= (drafter.capabilities.deepest or gamma)]
    found = lengths_ahead(drafter, target, [chain(gamma) for gamma in gammas], Stream("t", "", PROMPT, long))
    assert list(found) == gammas and max(found[gammas[-1]]) > 1
    served = ServedText(1, found[gammas[-1]], found)
    for gamma in gammas:
        live = decode(target, drafter, chain(gamma), PROMPT, 36, **of_text())
        assert live.tokens == long
        position = 0
        for each in live.rounds:
            assert served.committed(position, gamma) == len(each.committed)
            position += len(each.committed)
        assert served.rounds(gamma) == len(live.rounds)


def test_a_drafter_whose_rounds_depend_on_earlier_ones_has_no_lengths(target, text, drafter_values):
    drafter = drafters.build(drafter_values("jacobi", target.vocab_size, target), target=target)
    with pytest.raises(UsageError, match="depends on the rounds before"):
        lengths_ahead(drafter, target, [chain(2)], Stream("t", "", PROMPT, text))


def test_what_is_read_belongs_to_its_text_and_is_read_once(table, monkeypatch):
    """Two texts of one length, one after the other, and the first again: states of a table are its tokens, one-hot."""
    target = table(P, temperature=1.0)
    reading, score, scored = TextReading(target), target.score, []
    monkeypatch.setattr(target, "score", lambda *text: scored.append(text) or score(*text))
    for text in [(0, 1), (2, 2), (2, 2), (0, 1)]:
        assert reading.states((1, 0), text).argmax(-1).tolist() == [1, 0, text[0]]
        assert reading.laws((1, 0), text).tolist() == [pytest.approx(P[last].tolist()) for last in (0, text[0])]
    assert reading.laws((1,), (0, 0, 1)).shape[0] == 3  # the same tokens, of which one more is the text's
    assert [text for _, text in scored] == [(0, 1), (2, 2), (0, 1), (0, 0, 1)]
