"""Layer skipping against a copy of the target whose skipped parts end in zeros, and the files that searches leave."""

import json
from copy import deepcopy

import pytest
import torch
from fixtures.drafting import assert_texts_are_drafted_from
from fixtures.refusals import refused

from specdec.drafters import drafters
from specdec.drafters.base.calibration import CalibrationText
from specdec.models.partial import parse_parts, partial_model
from specdec.targets.causal import Causal


def silenced(model, skip):
    """A copy of a Llama in which skipped attentions and MLPs add nothing."""
    other = deepcopy(model)
    for block, kind in parse_parts(skip):
        layer = other.model.layers[block]
        (layer.self_attn.o_proj if kind == "attention" else layer.mlp.down_proj).weight.zero_()
    return other


@pytest.fixture
def values(group_values):
    small = {"passages": 3, "context": 6, "tokens": 6, "cache_dir": None}
    return lambda **changes: group_values("drafter", "layer_skip", **(small | changes))


@pytest.mark.parametrize(("skip", "temperature"), [([1], 0.0), (["0.mlp", "1.attention"], 1.0)])
def test_drafts_are_those_of_a_plain_forward(tiny_model, sampling, make_structure, values, skip, temperature):
    target = Causal(tiny_model("llama"), sampling(temperature=temperature))
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    drafter, plain = drafters.build(values(skip=skip), target=target), silenced(target.model, skip)
    assert_texts_are_drafted_from(
        target, drafter, make_structure, lambda text: plain(torch.tensor([text]), use_cache=False).logits[0, -1]
    )
    assert all(torch.equal(weight, before[name]) for name, weight in target.model.state_dict().items())


def test_the_search_finds_what_adds_nothing(tiny_llama, sampling, values):
    """A model with a block and a half that add nothing: what is found is at least as good as leaving these out."""
    model = silenced(tiny_llama(13, layers=3), [1, "2.mlp"])
    target = Causal(model, sampling(temperature=0.0))
    found = drafters.build(values(skip="auto", units="parts"), target=target).skipped
    assert found.by == "search" and found.worth is not None
    config = drafters.config(values(skip="auto", units="parts"))
    known = CalibrationText(config, target).worth(partial_model(model, parse_parts([1, "2.mlp"]), "m"))
    assert known.alpha == pytest.approx(1.0, abs=1e-9) and known.cost < 1
    assert found.worth.speedup >= known.speedup > 1
    assert parse_parts([1, "2.mlp"]) <= found.parts
    sampled = Causal(model, sampling(temperature=1.0))
    blocks = drafters.build(values(skip="auto", units="blocks"), target=sampled)
    assert 1 in blocks.describe()["skip"] and all(isinstance(block, int) for block in blocks.describe()["skip"])


def test_a_search_is_kept_and_found_again(tiny_llama, sampling, values, tmp_path, caplog, monkeypatch):
    target = Causal(tiny_llama(13, layers=3), sampling())
    asked = values(skip="auto", units="blocks", cache_dir=str(tmp_path), evaluations=2)
    first = drafters.build(asked, target=target).describe()
    (file,) = tmp_path.glob("*.json")
    with monkeypatch.context() as patch:
        patch.setattr("specdec.drafters.layer_skip.search", lambda *_: pytest.fail("searched again"))
        assert drafters.build(asked, target=target).describe() == first
    file.write_text(json.dumps({"about": 1}))
    assert drafters.build(asked, target=target).describe() == first
    assert "is damaged" in caplog.text and json.loads(file.read_text())["skip"] == first["skip"]
    others = (
        (Causal(tiny_llama(13, layers=3, seed=1), sampling()), {}),
        (Causal(tiny_llama(13, layers=3), sampling(temperature=0.5)), {}),
        (target, {"tokens": 9}),
        (target, {"evaluations": 3}),
    )
    for number, (other, changes) in enumerate(others, start=2):
        drafters.build(asked | changes, target=other)
        assert len(list(tmp_path.glob("*.json"))) == number
    assert drafters.build(asked | {"evaluations": 3}, target=target).skipped.compared == 3


def test_bad_input_is_answered_with_a_sentence(tiny_llama, table, sampling, values, tmp_path):
    llama = Causal(tiny_llama(13, layers=2), sampling())
    one = Causal(tiny_llama(13, layers=1), sampling())
    (tmp_path / "file").write_text("")
    for target, changes, message in (
        (llama, {"skip": [5]}, "has no block 5: its 2 blocks count from 0"),
        (llama, {"skip": [0, 1]}, "has no attention left: skip less"),
        (llama, {"skip": ["1.norm"]}, "'1.norm' is neither a block's number nor"),
        (one, {"skip": "auto"}, "has 1 layer, so there is nothing to skip"),
        (llama, {"skip": "auto", "cache_dir": str(tmp_path / "file" / "x")}, "cannot be kept there"),
        (table([[0.5, 0.5], [0.5, 0.5]]), {}, "the target has no network; use target=causal"),
    ):
        with refused(message):
            drafters.build(values(**changes), target=target)
