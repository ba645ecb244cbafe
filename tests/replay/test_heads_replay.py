"""Heads along a text: under greedy the rounds of live decoding, to the round; drawn drafts, the exact expectation."""

from collections import Counter

import pytest
import torch
from fixtures.drafting import chain, decoded

from specdec.clock import CpuClock
from specdec.drafters.adaptive import Adaptive
from specdec.drafters.blockwise import BlockwiseHeads
from specdec.drafters.grounded import Grounded
from specdec.drafters.medusa import Medusa
from specdec.drafters.none import NoDrafter
from specdec.records import Request
from specdec.replay.expected_rounds import TextReplay, expected_walk
from specdec.replay.walk import TextReading

PROMPT = (7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8, 3, 19)
TOKENS = 30
KINDS = {
    "medusa": (Medusa, {"output": "own"}),
    "grounded": (Grounded, {"output": "own", "grounded": True, "offset": 1}),
    "attention": (Grounded, {"output": "own", "grounded": True, "mixer": "attention"}),
    "gru": (Grounded, {"output": "own", "grounded": True, "mixer": "gru", "state": "embeddings", "prefix": True}),
    "blockwise": (BlockwiseHeads, {"output": "own"}),
}


@pytest.fixture(scope="module")
def text(target):
    return decoded(target, NoDrafter(), chain(1), PROMPT, TOKENS).tokens


@pytest.fixture(scope="module")
def fitted(target, text, random_heads):
    """`fitted("medusa")`: a drafter whose heads are fitted to two thirds of the text, so that some of it is guessed."""

    def make(kind):
        cls, changes = KINDS[kind]
        heads = random_heads(target, **changes)
        offset = target.hidden.layers if heads.config.state == "embeddings" else heads.config.offset
        tokens = torch.tensor([[*PROMPT, *text]])
        states, _ = target.hidden.sequence(tokens, offset)
        for k, features in enumerate(heads.features(states.clone(), tokens), 1):
            kept = torch.arange(tokens.shape[1] - k - 1)
            kept = kept[kept % 3 > 0]
            wanted = torch.nn.functional.one_hot(tokens[0, kept + k + 1], target.vocab_size).double()
            heads.outputs[k - 1].copy_(torch.linalg.lstsq(features[0, kept], wanted).solution.T)
        return cls(heads, target)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_rounds_are_those_of_live_decoding(target, text, fitted, make_structure, kind):
    """Chains, and of each kind another structure, with rounds of all lengths between; the states are read once."""
    drafter, request, reading = fitted(kind), Request(PROMPT, TOKENS), TextReading(target)
    accepted = Counter()
    branching = sorted(drafter.capabilities.fills - {"chain"})
    own = branching[list(KINDS).index(kind) % len(branching)] if branching else "chain"
    for shape, gamma in (("chain", 5), ("chain", 2), (own, 4)):
        structure = make_structure(shape, gamma)
        live = decoded(target, drafter, structure, PROMPT, TOKENS)
        assert live.tokens == text
        accepted.update(item.accepted for item in live.rounds)
        replay = TextReplay(drafter, target, structure, text, request, reading)
        walk = replay.rounds(CpuClock())
        assert walk.rounds == len(live.rounds) and walk.calls == 0 and walk.draft_s > 0
        assert walk.offered == Counter(len(item.draft_tokens) for item in live.rounds)
        assert replay.expected_rounds() == len(live.rounds)
        if shape == "chain":  # the other way: chances of all starts at once
            starts = replay.starts()
            assert expected_walk(starts, TOKENS).rounds == len(live.rounds)
            assert set(starts.m.flat) <= {0.0, 1.0}
    assert accepted[0] > 5 and sum(accepted[number] for number in (1, 2, 3)) > 5, "rejections and acceptances"


def test_wrapped_heads_are_walked(target, text, fitted):
    drafter, request = Adaptive(fitted("medusa"), "heuristic", length=2), Request(PROMPT, TOKENS)
    assert drafter.capabilities.replay == "copying" and drafter.capabilities.reads_states
    live = decoded(target, drafter, chain(4), PROMPT, TOKENS)
    assert TextReplay(drafter, target, chain(4), text, request).expected_rounds() == len(live.rounds)


def test_agreement_is_that_of_the_first_head(target, text, fitted):
    replay = TextReplay(fitted("grounded"), target, chain(4), text, Request(PROMPT, TOKENS))
    along, starts = replay.agreement(), replay.starts()
    assert along.beta.tolist() == along.m.tolist() == starts.m[:, 0].tolist() and along.proposed.all()
    assert 0.1 < along.beta.mean() < 0.9


LAW = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.35, 0.25, 0.4]]
DRAWN = [
    ("medusa", "sampled", (1,)),  # nothing is offered in the first round: no state before it
    ("grounded", "sampled", (2, 1)),
    ("grounded", "greedy", (2, 1)),
]


@pytest.mark.parametrize(("name", "drafts", "prompt"), DRAWN)
def test_expected_rounds_of_each_sampled_text_are_exact(table, live_rounds, random_heads, name, drafts, prompt):
    """All outcomes of live decoding, by enumeration: given the text, the mean number of rounds is the replay's."""
    target = table(LAW, temperature=1.0)
    heads = random_heads(target, count=2, grounded=name == "grounded")
    drafter = {"medusa": Medusa, "grounded": Grounded}[name](heads, target, drafts=drafts)
    live = live_rounds(target, drafter, prompt, 3)
    assert len(live) == 3**3
    for tokens, offered in live.items():
        replay = TextReplay(drafter, target, chain(2), tokens, Request(prompt, 3))
        assert replay.expected_rounds() == pytest.approx(sum(offered.values()), abs=1e-12)
