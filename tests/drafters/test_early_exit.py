"""Early exit against a plain forward pass of the first layers, and the target's cache before and after a draft."""

import pytest
import torch
from fixtures.drafting import PROMPT, assert_texts_are_drafted_from, chain, decoded, rows, tokens_of_calls
from fixtures.refusals import refused

from specdec.drafters import drafters
from specdec.drafters.early_exit import EarlyExit, ExitLayer
from specdec.models.partial import block_parts, partial_model
from specdec.records import TextStart
from specdec.targets import targets
from specdec.targets.causal import Causal


def exiting(target, layer=1, **how):
    return EarlyExit(target, ExitLayer(layer, "config", {}), **how)


def slow_logits(model, tokens, layer):
    states = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states[layer]
    return model.lm_head(model.model.norm(states))[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_those_of_a_plain_forward(tiny_model, sampling, make_structure, monkeypatch, temperature):
    """The target's cache holds the same before and after a draft."""
    target = Causal(tiny_model("llama"), sampling(temperature=temperature))
    drafter = exiting(target)
    make_draft = drafter.draft

    def checked(structure):
        cache = target.decoder.cache
        before = [(layer.keys[..., : cache.length, :].clone(), cache.length) for layer in cache.layers]
        draft = make_draft(structure)
        for layer, (keys, length) in zip(cache.layers, before, strict=True):
            assert layer.length == length and torch.equal(layer.keys[..., :length, :], keys)
        return draft

    monkeypatch.setattr(drafter, "draft", checked)
    assert_texts_are_drafted_from(target, drafter, make_structure, lambda text: slow_logits(target.model, text, 1)[-1])


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_nothing_of_the_prefix_is_computed_or_held_twice(tiny_model, sampling, make_structure, shape):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = exiting(target)
    with tokens_of_calls(drafter._decoder.model) as calls:
        generation = decoded(target, drafter, make_structure(shape, 3), PROMPT, 24)
    if shape == "chain":
        assert set(map(len, calls)) == {1} and len(calls) == sum(len(row.draft_tokens) for row in generation.rounds)
    else:
        assert max(map(len, calls)) <= 1 + max(len(row.draft_tokens) for row in generation.rounds)
    own, shared = drafter._decoder.cache, target.decoder.cache
    assert [layer.keys.data_ptr() for layer in own.layers] == [layer.keys.data_ptr() for layer in shared.layers[:1]]


def test_without_a_target_in_step_it_has_a_cache_of_its_own(tiny_model, sampling):
    """As in a replay: the target may hold another text, which has to stay as it is."""
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = exiting(target)
    alone = decoded(target, drafter, chain(4), PROMPT, 16)
    target.start(TextStart([5, 5, 9, 11, 2], 60))
    held = [layer.keys.clone() for layer in target.decoder.cache.layers]
    drafter.start(TextStart(PROMPT, 60))
    for row in alone.rounds:
        assert tuple(drafter.draft(chain(4).clamped(len(row.draft_tokens))).tokens.tolist()) == row.draft_tokens
        drafter.commit(row.committed)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(target.decoder.cache.layers, held, strict=True))


@pytest.mark.slow
def test_traced_passes_write_into_the_targets_cache(tiny_model, sampling, make_structure):
    structure, limit = make_structure("chain", 3), 10
    eager = Causal(tiny_model("llama"), sampling(temperature=0.0))
    expected = decoded(eager, exiting(eager), structure, PROMPT, limit)
    target = Causal(tiny_model("llama"), sampling(temperature=0.0), compilation="trace")
    drafter = exiting(target)
    target.prepare({1, 4}, 24)
    drafter.prepare(24, structure)
    for length in (limit, 30):  # the second text needs a larger cache than the one compiled for
        found = decoded(target, drafter, structure, PROMPT, length)
        assert found.tokens[:limit] == expected.tokens
        assert [row.draft_tokens for row in found.rounds][:3] == [row.draft_tokens for row in expected.rounds][:3]
        assert drafter._decoder.cache.over is target.decoder.cache and drafter._decoder.passes.steps


def test_paths_that_are_evaluated_apart_leave_too_few_slots(tiny_model, sampling):
    """Above all for a draft of many short rows, of which the target needs the slots of one."""
    both = (Causal(tiny_model("llama"), sampling(temperature=0.0), evaluation=how) for how in ("packed", "rows"))
    one, other = (decoded(target, exiting(target), rows(12, 2), PROMPT, 12) for target in both)
    assert one.tokens == other.tokens
    assert [row.draft_tokens for row in one.rounds] == [row.draft_tokens for row in other.rounds]


@pytest.fixture
def values(group_values):
    small = {"passages": 3, "context": 6, "tokens": 10, "cache_dir": None}
    return lambda **changes: group_values("drafter", "early_exit", **(small | changes))


def test_the_exit_layer_is_found_on_calibration_text(tiny_llama, sampling, values):
    """A model whose last layer adds nothing: leaving it out costs no agreement. Another one agrees nowhere."""
    model = tiny_llama(13, layers=3)
    model.model.layers[2].self_attn.o_proj.weight.zero_()
    model.model.layers[2].mlp.down_proj.weight.zero_()
    for temperature in (0.0, 1.0):
        target = Causal(model, sampling(temperature=temperature))
        drafter = drafters.build(values(exit_layer="auto"), target=target)
        described = drafter.describe()
        worths = described["exit_layers"]
        assert list(worths) == ["1", "2"] and worths["2"]["alpha"] == pytest.approx(1.0, abs=1e-9)
        assert all(worth["speedup"] <= worths[str(drafter.exit.layer)]["speedup"] for worth in worths.values())
        assert (described["exit_layer_by"], described["layers"]) == ("calibration", 3)
    assert drafters.build(values(exit_layer=2), target=target).describe()["exit_layer_by"] == "config"


def test_a_comparison_is_kept_and_found_again(tiny_llama, sampling, values, tmp_path, caplog, monkeypatch):
    target, asked = Causal(tiny_llama(13, layers=3), sampling()), values(exit_layer="auto", cache_dir=str(tmp_path))
    first = drafters.build(asked, target=target)
    (file,) = tmp_path.glob("*.json")
    with monkeypatch.context() as patch:
        patch.setattr("specdec.drafters.base.calibration.CalibrationText.worth", lambda *_: pytest.fail("compared"))
        assert drafters.build(asked, target=target).exit == first.exit
    for damaged in ('{"worths": {"1": 2}}', '{"worths": [1]}', "[]", "{"):
        file.write_text(damaged)
        assert drafters.build(asked, target=target).exit == first.exit
        assert "is damaged" in caplog.text
        caplog.clear()
    drafters.build(asked, target=Causal(tiny_llama(13, layers=3), sampling(temperature=0.5)))
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_the_worth_of_an_exit_layer_is_the_share_of_the_targets_text_that_it_writes(
    tiny_llama, sampling, values, tmp_path
):
    """Greedy, against transformers' own `generate` after the middles of the documents and a plain pass per position."""
    documents = [[(7 * n * n + place * (n + 2)) % 13 for place in range(20)] for n in range(3)]
    (tmp_path / "c.jsonl").write_text("".join(f'{{"t": {tokens}}}\n' for tokens in documents))
    model = tiny_llama(13, layers=3)
    target = Causal(model, sampling(temperature=0.0))
    changes = {"exit_layer": "auto", "corpus": str(tmp_path / "c.jsonl"), "field": "t", "tokens": 6}
    worths = drafters.build(values(**changes), target=target).exit.worths
    assert set(worths) == {1, 2}
    for layer, worth in worths.items():
        part = partial_model(model, block_parts(range(layer, 3)), "m")
        agreed = []
        for tokens in documents:
            passage = torch.tensor([tokens[10:16]])
            seen = torch.ones_like(passage)
            text = model.generate(passage, attention_mask=seen, max_new_tokens=6, do_sample=False)[0]
            laws = [part(input_ids=text[None, :place]).logits[0, -1] for place in range(6, 12)]
            agreed += [int(law.argmax()) == int(token) for law, token in zip(laws, text[6:], strict=True)]
        assert len(agreed) == 18 and worth["alpha"] == pytest.approx(sum(agreed) / 18, abs=1e-6)


def test_a_checkpoint_may_name_its_exit_layer(tiny_llama, sampling, values):
    model = tiny_llama(13, layers=4)
    model.generation_config.assistant_early_exit = 3
    drafter = drafters.build(values(exit_layer="auto"), target=Causal(model, sampling()))
    assert (drafter.exit.layer, drafter.exit.by) == (3, "checkpoint")
    model.generation_config.assistant_early_exit = 4
    with refused("names exit layer 4: the target has 4 layers; give a number from 1 to 3"):
        drafters.build(values(exit_layer="auto"), target=Causal(model, sampling()))


def test_bad_input_is_answered_with_a_sentence(tiny_llama, tiny_encoder_decoder, table, sampling, values, tmp_path):
    (tmp_path / "c.jsonl").write_text(f'{{"t": {[1] * 20}}}\n' * 5)
    few = {"exit_layer": "auto", "corpus": str(tmp_path / "c.jsonl"), "field": "t", "passages": 6}
    llama = Causal(tiny_llama(13), sampling())
    one = Causal(tiny_llama(13, layers=1), sampling())
    t5 = targets.get("encoder_decoder")(tiny_encoder_decoder("t5"), sampling())
    for target, changes, message in (
        (llama, {"exit_layer": 2}, "drafter.exit_layer=2: the target has 2 layers; give a number from 1 to 1, or auto"),
        (one, {"exit_layer": 1}, "the target has 1 layer, so there is nothing to skip"),
        (t5, {}, "the target is an encoder-decoder; use target=causal"),
        (table([[0.5, 0.5], [0.5, 0.5]]), {}, "the target has no network; use target=causal"),
        (llama, {"exit_layer": "auto", "context": 60}, "longer than the 64 tokens of the target's context"),
        (llama, {"exit_layer": "auto", "corpus": "nowhere.txt"}, "nowhere.txt does not exist"),
        (llama, few, "has 5 texts of drafter.context=6 tokens"),
    ):
        with refused(message):
            drafters.build(values(**changes), target=target)
