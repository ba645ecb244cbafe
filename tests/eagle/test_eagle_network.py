"""An EAGLE network before its training, the tokens that it drafts, and its files; its drafters have its equations."""

import math
import warnings

import pytest
import torch

from specdec.config import validated
from specdec.drafters.eagle import Eagle
from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.eagle_network import EagleNetwork
from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_EAGLE
from specdec.targets.causal import Causal

SHAPE = dict(name="test", hidden=16, intermediate=24, heads=4, kv_heads=2, head_dim=8, target_hidden=16)
EAGLE1 = dict(SHAPE, form="eagle1", boundaries=[], own_output=False)
EAGLE3 = dict(SHAPE, form="eagle3", boundaries=[0, 1, 1])
TOKENS, KEPT = [5, 1, 4, 1, 5, 9, 2, 6], [0, 3, 4, 7, 8, 11, 15, 20, 22]
REDUCED = dict(EAGLE3, draft_vocabulary=9, fc_norm=True, attention_bias="qkvo")


@pytest.fixture(scope="module")
def target(tiny_llama, sampling):
    return Causal(tiny_llama(23), sampling(temperature=0.0))


@pytest.fixture(scope="module")
def network_of(target):
    def make(values) -> EagleNetwork:
        config = validated(EagleConfig, values)
        torch.manual_seed(0)
        network = EagleNetwork.for_target(config, target.hidden, KEPT if config.draft_vocabulary else None)
        network.eval().requires_grad_(False)
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.4)
        return network

    return make


def quick_rows(network, target):
    text = torch.tensor([TOKENS])
    features = target.hidden.sequence(text, *network.config.offsets(target.hidden.layers))[0][:, :-1]
    return network(text[:, 1:], network.fuse(features), torch.arange(len(TOKENS) - 1)), network.fuse(features)


def test_a_llama3_scaling_keeps_high_frequencies_and_slows_low_ones(network_of):
    scaling = {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 64}
    plain = network_of(dict(EAGLE3, head_dim=16))._frequencies
    scaled = network_of(dict(EAGLE3, head_dim=16, rope_scaling=scaling))._frequencies
    turns = 64 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns >= 4], plain[turns >= 4]) and (turns >= 4).any()
    torch.testing.assert_close(scaled[turns <= 1], plain[turns <= 1] / 8)


def test_a_training_in_bfloat16_gets_no_warning_of_torch(network_of):
    network = network_of(dict(EAGLE3, qk_norm=True)).float()
    features, places = torch.randn(1, len(TOKENS), 3 * 16), torch.arange(len(TOKENS))
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        _, logits, _ = network(torch.tensor([TOKENS]), network.fuse(features), places)
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


def test_draft_tokens_are_offsets_and_scattered(network_of):
    network = network_of(REDUCED)
    kept = KEPT
    assert network.drafted_ids.tolist() == kept and network.d2t.tolist() == [k - i for i, k in enumerate(kept)]
    assert network.t2d.nonzero().flatten().tolist() == kept
    wide = network.over_target(torch.arange(9.0).expand(2, 9))
    assert wide.shape == (2, 23) and wide[0, kept].tolist() == list(range(9)) and wide[0].isfinite().sum() == 9
    for wrong in ([*kept[:-1], 23], kept[::-1], kept[:-1]):
        with pytest.raises(ValueError, match="9 ascending ids below 23"):
            network.draft_only(wrong)


def test_a_drafter_gathers_the_rows_of_the_targets_output_layer_once(network_of, target):
    network = network_of(dict(REDUCED, own_output=False))
    rows, logits = network.output_layer, quick_rows(network, target)[0][1]
    assert network.output_layer is not rows and torch.equal(rows, target.hidden.output_layer[KEPT])
    Eagle(network, target)
    assert network.output_layer is network.output_layer
    assert torch.equal(quick_rows(network, target)[0][1], logits)


@pytest.mark.parametrize("form", ["eagle1", "eagle3"])
def test_an_untrained_network_begins_with_a_law_of_one_token_earlier(target, form):
    """EAGLE-1 repeats the target's logits; EAGLE-3 reads states from before the target's last norm."""
    values = EAGLE1 if form == "eagle1" else dict(EAGLE3, boundaries=[0, 0, 1])
    network = EagleNetwork.for_target(validated(EagleConfig, values), target.hidden).requires_grad_(False)
    (carried, logits, _), states = quick_rows(network, target)
    torch.testing.assert_close(carried, states)
    if form == "eagle1":
        torch.testing.assert_close(logits, target.hidden.sequence(torch.tensor([TOKENS]), 0)[1][:, :-1])


def test_values_that_do_not_fit_are_refused():
    for changes, sentence in (
        (dict(heads=3), "not a multiple of kv_heads"),
        (dict(form="eagle1"), r"set boundaries to \[\]"),
        (dict(form="eagle1", boundaries=[], mask_token=3), "set mask_token to null"),
        (dict(boundaries=[]), "give their boundaries"),
        (dict(block=4), "no other form has a block"),
        (dict(form="dflash", mask_token=3), "needs block and mask_token"),
        (dict(form="dflash", mask_token=3, block=4, fc_norm=True), "none of the norms of eagle3"),
        (dict(norm_before_fc=True, fc_norm=True), "exclude each other"),
        (dict(hidden=12), "set own_embedding to true"),
        (dict(hidden=12, own_embedding=True, own_output=False), "set own_output to true"),
    ):
        with pytest.raises(UsageError, match=sentence):
            validated(EagleConfig, dict(EAGLE3, **changes))


def test_a_missing_file_names_the_recipe(tmp_path):
    with pytest.raises(UsageError, match=r"specdec\.train \+eagle=small makes it"):
        TRAINED_EAGLE.read(tmp_path / "models" / "eagle" / "small" / "eagle.safetensors")
    (tmp_path / "x").write_text("no tensors")
    with pytest.raises(UsageError, match="is not a file of such a network"):
        TRAINED_EAGLE.read(tmp_path / "x")
