"""Logits that are not finite end the text with the position, and the rounds before are kept."""

from copy import deepcopy

import pytest
import torch
from fixtures.drafting import decoded

from specdec.drafters.none import NoDrafter
from specdec.errors import NumericsError
from specdec.records import EMPTY, Draft, TextStart, chain_tree
from specdec.structures.base import structures
from specdec.targets.causal import Causal

PROMPT = [7, 3, 19, 44, 3]


def plainly(target):
    return decoded(target, NoDrafter(), structures.build({"name": "chain", "gamma": 2}), PROMPT, 20)


@pytest.fixture
def spoilt(tiny_model, sampling):
    """A target that a later token breaks: its embedding holds NaN. Also the clean text and the place."""
    clean = plainly(Causal(tiny_model("llama"), sampling(temperature=0.0))).tokens
    place = next(i for i, token in enumerate(clean) if i >= 4 and token not in (*PROMPT, *clean[:i], 1, 2, 3, 4))
    model = deepcopy(tiny_model("llama"))
    target = Causal(model, sampling(temperature=0.0))  # opened before: so small a vocabulary is all tried then
    model.get_input_embeddings().weight[clean[place]] = float("nan")
    return target, clean, place


def test_the_run_ends_at_the_position_and_keeps_the_rounds_before(spoilt):
    target, clean, place = spoilt
    with pytest.raises(NumericsError) as raised:
        plainly(target)
    assert raised.value.exit_code == 4
    assert f"not finite after position {len(PROMPT) + place}:" in str(raised.value)
    partial = raised.value.partial
    assert partial.prompt == tuple(PROMPT)
    assert partial.tokens == clean[: place + 1], "the token that breaks the model was written by a sound round"
    assert len(partial.rounds) == place + 1 and partial.finish == "failed"
    assert sum((row.committed for row in partial.rounds), ()) == partial.tokens


def test_a_bad_row_anywhere_in_the_draft_is_seen(spoilt):
    target, clean, place = spoilt
    for draft in ([clean[place], 1], [1, clean[place]]):
        target.start(TextStart(PROMPT, 20))
        with pytest.raises(NumericsError):
            target.verify(Draft(torch.tensor(draft), chain_tree(2)))


ALL = slice(None)


@pytest.mark.parametrize(
    ("tokens", "value", "is_law"),
    [(3, float("nan"), False), (3, float("inf"), False), (3, -float("inf"), True), (ALL, -float("inf"), False)],
)
def test_minus_infinity_forbids_some_tokens_and_every_other_bad_logit_ends_the_text(
    tiny_model, sampling, monkeypatch, tokens, value, is_law
):
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    forward = target._forward

    def spoil(drafted, tree):
        logits = forward(drafted, tree).clone()
        logits[-1, tokens] = value
        return logits

    target.start(TextStart(PROMPT, 20))
    monkeypatch.setattr(target, "_forward", spoil)
    if is_law:
        p = target.verify(EMPTY)
        assert p[0, tokens] == 0 and p.isfinite().all()
    else:
        with pytest.raises(NumericsError):
            target.verify(EMPTY)
