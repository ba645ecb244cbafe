"""Logits that are not finite end the text with the position, and the rounds before are kept."""

from copy import deepcopy

import pytest
import torch
from fixtures.decoding import decode

from specdec.errors import NumericsError
from specdec.records import EMPTY, Draft, TextStart, chain_tree
from specdec.targets.causal import Causal

PROMPT = [7, 3, 19, 44, 3]


@pytest.fixture
def spoilt(tiny_model, sampling):
    """A target that a later token breaks: its embedding holds NaN. Also the clean text and the place."""
    clean = decode(Causal(tiny_model("llama"), sampling(temperature=0.0)), "none", 0, PROMPT, 20).tokens
    place = next(i for i, token in enumerate(clean) if i >= 4 and token not in (*PROMPT, *clean[:i], 1, 2, 3, 4))
    model = deepcopy(tiny_model("llama"))
    model.get_input_embeddings().weight[clean[place]] = float("nan")
    return Causal(model, sampling(temperature=0.0)), clean, place


def test_the_run_ends_at_the_position_and_keeps_the_rounds_before(spoilt):
    target, clean, place = spoilt
    with pytest.raises(NumericsError) as raised:
        decode(target, "none", 0, PROMPT, 20)
    assert raised.value.exit_code == 4
    assert f"not finite after position {len(PROMPT) + place}:" in str(raised.value)
    partial = raised.value.partial
    assert partial.prompt == tuple(PROMPT)
    assert partial.tokens == clean[: place + 1], "the token that breaks the model was written by a sound round"
    assert len(partial.rounds) == place + 1 and partial.finish == "failed"
    assert sum((row.committed for row in partial.rounds), ()) == partial.tokens


def test_a_bad_row_of_the_root_or_anywhere_in_the_draft_is_seen(spoilt):
    target, clean, place = spoilt
    bad = clean[place]
    for prompt, draft in (([*PROMPT, bad], EMPTY), (PROMPT, chain(bad, 1)), (PROMPT, chain(1, bad))):
        target.start(TextStart(prompt, 20))
        with pytest.raises(NumericsError, match=f"position {len(PROMPT)}:" if draft is EMPTY else None) as raised:
            target.verify(draft)
        assert raised.value.partial is None


def chain(*tokens):
    return Draft(torch.tensor(tokens), chain_tree(len(tokens)))


@pytest.fixture
def with_logits(tiny_model, sampling, monkeypatch):
    """`with_logits(change)`: a target at a text's start, whose logits are changed."""

    def make(change):
        target = Causal(tiny_model("llama"), sampling(temperature=1.0))
        target.start(TextStart(PROMPT, 20))
        forward = target._forward
        monkeypatch.setattr(target, "_forward", lambda tokens, tree: change(forward(tokens, tree).clone()))
        return target

    return make


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits.index_fill(-1, torch.tensor([3]), torch.nan),
        lambda logits: logits.index_fill(-1, torch.tensor([3]), torch.inf),
        lambda logits: torch.full_like(logits, -torch.inf),
    ],
    ids=["a NaN", "an infinite one", "every token forbidden"],
)
def test_logits_that_are_no_law_are_an_error(with_logits, change):
    with pytest.raises(NumericsError):
        with_logits(change).verify(EMPTY)


def test_minus_infinity_only_forbids_a_token(with_logits):
    p = with_logits(lambda logits: logits.index_fill(-1, torch.tensor([3]), -torch.inf)).verify(EMPTY)
    assert p[0, 3] == 0 and p.isfinite().all()
