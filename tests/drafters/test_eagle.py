"""The EAGLE drafter drafts what the equations say of every path, from the features that the target really had."""

import pytest
import torch
from fixtures.drafting import assert_drafted_from, begun, decoded
from fixtures.slow_eagle import SlowBlock, SlowEagle, assert_chances_are_those_of_drafts, features_of, random_rounds

from specdec.drafters.base import drafters
from specdec.drafters.eagle import Eagle
from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_EAGLE
from specdec.records import TextStart
from specdec.targets.causal import Causal

FORMS = {
    "eagle1": dict(form="eagle1", boundaries=[], own_output=False),
    "eagle3": dict(draft_vocabulary=11),
    "eagle1-biases": dict(form="eagle1", boundaries=[], own_output=False, fc_bias=True, attention_bias="qkv"),
    "eagle3-narrow": dict(
        own_embedding=True,
        hidden=12,
        rope_scaling={"kind": "linear", "factor": 2.0},
        attention_bias="qkvo",
        qk_norm=True,
    ),
    "eagle3-norms": dict(norm_before_fc=True, norm_before_residual=True, fc_bias=True, rope_theta=500.0),
    "p-eagle": dict(mask_token=22, own_embedding=True, layers=2, fc_norm=True),
    "eagle3.1": dict(norm_output=True, layers=2, boundaries=[0, 1]),
    "dspark": dict(
        form="dflash", own_output=False, mask_token=2, block=3, shifted=True, markov="vanilla", markov_rank=4
    ),
    "dspark-gated": dict(
        form="dflash", draft_vocabulary=11, mask_token=22, block=4, layers=2, markov="gated", markov_rank=3
    ),
    "dspark-rnn": dict(form="dflash", own_output=False, mask_token=2, block=4, markov="rnn", markov_rank=2),
}


@pytest.fixture(scope="module")
def target_at(tiny_llama, sampling):
    model = tiny_llama(23, context=256)
    return lambda temperature=0.0, **how: Causal(model, sampling(temperature=temperature, **how))


# Every form on a tree, which has chains and siblings; each other shape, and greedy drafts, on one form.
DRAFTED = [(form, "tree", 0.7) for form in FORMS]
DRAFTED += [("eagle3", "rows", 0.7), ("dspark-rnn", "chain", 0.7), ("eagle3", "tree", 0.0), ("dspark", "tree", 0.0)]


@pytest.mark.parametrize(("form", "shape", "temperature"), DRAFTED)
def test_q_is_the_networks_law_as_the_target_standardises(
    target_at, random_eagle, make_structure, form, shape, temperature
):
    """A node of rank j is the network's next best choice where the target is greedy."""
    target = target_at(temperature, top_k=9)
    network = random_eagle(target, **FORMS[form])
    slow_network = SlowEagle if network.config.block is None else SlowBlock
    slow = slow_network(network.state_dict(), network.config, target.hidden.embedding, target.hidden.output_layer)
    for text, drafts in random_rounds(Eagle(network, target), target, make_structure(shape, 3), 2, 2):
        rows = slow.text_rows(text, features_of(target.model, text, network.config.boundaries))
        for length, draft in drafts:
            assert sorted(draft.tree.depths) == sorted(make_structure(shape, 3).tree.depths)
            assert (draft.q is None) == (temperature == 0)
            seen = rows[: length - 1]
            assert_drafted_from(
                draft,
                lambda node, above, seen=seen: network.over_target(slow.logits_after(seen, above)),
                target.sampling,
                close=1e-9,
            )


ALONG = ("eagle1", "eagle3", "p-eagle", "dspark-gated", "dspark-rnn")


@pytest.mark.parametrize(("form", "temperature"), [("dspark", 0.0), *((form, 1.0) for form in ALONG)])
def test_chances_along_a_text_are_those_of_drafts_at_every_position(
    target_at, random_eagle, make_structure, monkeypatch, form, temperature
):
    """Whatever the pieces are; a chain that drafts the text's tokens gives the q that it would draw them from."""
    monkeypatch.setattr("specdec.drafters.eagle._POSITIONS", 4)
    target = target_at(temperature)
    drafter = Eagle(random_eagle(target, **FORMS[form]), target)
    for prompt in ([20], [6, 11, 3, 19, 0, 8]):
        assert_chances_are_those_of_drafts(drafter, target, prompt, [5, 1, 4, 1, 5, 9, 2], 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_threshold_ends_the_draft_and_changes_no_token(target_at, random_eagle, make_structure, temperature):
    target = target_at(temperature)
    drafter = Eagle(random_eagle(target), target)
    whole = begun(drafter, target, [5, 1, 4, 1, 5]).draft(make_structure("chain", 6))
    sizes = set()
    for threshold in (0.9, 0.3, 0.1, 0.03, 0.001):
        draft = begun(drafter, target, [5, 1, 4, 1, 5]).draft(make_structure("chain", 6).until(threshold))
        assert torch.equal(draft.tokens, whole.tokens[: len(draft)])
        sizes.add(len(draft))
    assert 1 in sizes and len(sizes) > 2


def test_nothing_is_offered_before_the_first_feature(target_at, random_eagle, make_structure):
    target = target_at()
    drafter = Eagle(random_eagle(target), target)
    rounds = decoded(target, drafter, make_structure("tree", 2), [5], 9, rule="greedy").rounds
    assert [len(row.tree) for row in rounds][:2] == [0, 4]
    drafter.start(TextStart([5, 1, 4], 100))
    assert len(drafter.draft(make_structure("chain", 2))) == 0, "nobody gave the states"


def test_what_a_drafter_is_made_of_is_recorded(target_at, random_eagle, group_values, tmp_path):
    target = target_at()
    network, path = random_eagle(target), tmp_path / "eagle.safetensors"
    TRAINED_EAGLE.write(network, path, target.hidden.identity, {"tokens": 8, "seconds": 3.0, "seed": 1})
    drafter = drafters.build(group_values("drafter", "eagle", model=str(tmp_path)), target=target)
    described, parameters = drafter.describe(), sum(weight.numel() for weight in network.parameters())
    assert described["training"] == {"tokens": 8.0, "seconds": 3.0} and len(described["sha256"]) == 64
    assert described["parameters"] == parameters and described["weight_bytes"] == 8 * parameters
    assert drafter.flops_per_token == 2 * (parameters - network.fc.weight.numel() - 16)
    with pytest.raises(UsageError, match=r"drafter\.layers: .* records its layers"):
        drafters.build(group_values("drafter", "eagle", model=str(path), layers=[1, 2]), target=target)
