"""The model unigram: its order against the definition, the sign, proposals, bad input."""

import json
import logging
from copy import deepcopy

import numpy as np
import pytest
from fixtures.refusals import refused
from torch import nn

from specdec.drafters import model_unigram
from specdec.drafters.base import drafters
from specdec.records import Source, TextStart
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder


def explicit_order(model):
    u, v = (part.weight.double().numpy() for part in (model.get_output_embeddings(), model.get_input_embeddings()))
    return np.argsort(u @ (v.T @ v / len(v)) @ u.mean(0), kind="stable").tolist()


@pytest.fixture
def target_of(tiny_model, sampling):
    return lambda name: Causal(tiny_model(name), sampling(temperature=0.0))


@pytest.fixture
def build(group_values, tmp_path):
    """`build(target, text, k=...)`: calibrated on lists of token ids."""

    def make(target, texts=((0, 1, 2),), **keys):
        path = tmp_path / "calibration.jsonl"
        path.write_text("".join(json.dumps({"ids": list(text)}) + "\n" for text in texts))
        defaults = {"corpus": str(path), "field": "ids", "k": 6}
        return drafters.build(group_values("drafter", "model_unigram", **defaults | keys), target=target)

    return make


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma2"])  # tied and not
def test_the_end_that_the_text_favours_is_used(target_of, build, name, monkeypatch, caplog):
    monkeypatch.setattr(model_unigram, "_CHUNK", 16)
    target = target_of(name)
    order = explicit_order(target.model)
    with caplog.at_level(logging.INFO):
        low = build(target, [[*order[:6], order[30], order[-1]]])
        high = build(target, [[*order[-6:], order[30], order[0]]])
    assert low.sign == "smallest" and low.ranked(3, 6) == order[:6]
    assert high.sign == "largest" and high.ranked(3, 6) == order[:-7:-1]
    assert low.hits == {"smallest": 6 / 8, "largest": 1 / 8}
    assert low.describe() == target.describe() | {"sign": "smallest", "hits": low.hits}
    assert "the 6 smallest scores make up 75.0%" in caplog.text and "the other end's 12.5%" in caplog.text


def test_a_tie_goes_to_the_papers_sign_and_no_more_is_read_than_asked_for(target_of, build):
    target = target_of("llama")
    order = explicit_order(target.model)
    assert build(target, [[order[0], order[-1]]]).sign == build(target, [[order[30]]]).sign == "smallest"
    texts = [[order[0]] * 5, [order[1]] * 5, *[[order[-1]] * 50] * 3]
    assert build(target, texts, calibration=6).hits == {"smallest": 1.0, "largest": 0.0}
    assert build(target, texts, calibration=11).sign == "largest"


def test_proposals_are_the_same_in_any_context(target_of, build, make_structure):
    drafter = build(target_of("llama"))
    a, b, c = drafter.ranked(0, 3)
    for prompt, more in (([3, 8], [1]), ([60], [2, 2])):
        drafter.start(TextStart(prompt, 100))
        drafter.commit(more)
        assert drafter.propose(make_structure("chain", 3)).tokens == (a, a, a)
        tokens, topology, source = drafter.propose(make_structure("rows", 3))
        assert tokens == (a, a, a, b, a, a, c, a, a) and topology == make_structure("rows", 3).tree
        assert source == tuple(Source("model_unigram", node // 3) for node in range(9))


def test_what_it_cannot_rank(build, target_of, table, random_law, tiny_encoder_decoder, sampling):
    t5, llama = EncoderDecoder(tiny_encoder_decoder("t5"), sampling(temperature=0.0)), target_of("llama")
    narrow, headless = (Causal(deepcopy(llama.model), llama.sampling) for _ in range(2))
    narrow.model.lm_head, headless.model.lm_head = nn.Linear(8, 61, bias=False), None
    for target, changes, sentence in (
        (table(random_law(5, 0)), {}, r"drafter\.model=null: the target has no model"),
        (t5, {}, "the target is an encoder-decoder"),
        (llama, {"corpus": __file__, "field": None}, "text, and the target has no tokenizer"),
        (llama, {"texts": [[61]]}, "token 61 is not among the target's 61 tokens"),
        (narrow, {}, "the output's have 8 dimensions and the input's 32"),
        (headless, {}, "no output embeddings"),
    ):
        with refused(sentence):
            build(target, **changes)
