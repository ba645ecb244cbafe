"""Models whose layers keep a state: what a rejection brings back is the state of the committed text, and every family
writes its own greedy text.
"""

import importlib.util
import sys
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fixtures.decoding import decode, seeded
from fixtures.plain_laws import plain_greedy
from fixtures.recurrent_families import recurrent_model

from specdec import hub
from specdec.batching.batch_parts import batch_target
from specdec.certification.greedy_identity import GREEDY, NEW_TOKENS, PROMPT, Scattered
from specdec.drafters import drafters
from specdec.drafters.small_model import SmallModel
from specdec.errors import ModelLoadError, UsageError
from specdec.models import decoder as decoders
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import path_batch
from specdec.models.probe import missing_kernels
from specdec.records import Tree, chain_tree
from specdec.targets.causal import Causal

# Each with the drafter that it is tried with besides. Of the first tier are those whose states are recorded, stepped
# and replayed (no recurrence, only steps, a delta rule); qwen3_5 and lfm2_moe keep the states of others.
FIRST = {"lfm2": "medusa", "mamba": "small_model", "qwen3_next": "medusa"}
SECOND = {"nemotron_h": "small_model", "granite_hybrid": "ngram", "jamba": "medusa", "mamba2": "medusa"}
SECOND |= {"falcon_h1": "ngram", "kimi_linear": "small_model"}
FAMILIES = [*FIRST.items(), *(pytest.param(*family, marks=pytest.mark.slow) for family in SECOND.items())]
WAYS = [  # those of Mamba begin a call on several tokens from an empty state, which the probe refuses
    # The state of falcon_h1 stands beside slots.
    pytest.param(name, stepping, marks=[] if name in (*FIRST, "falcon_h1") else pytest.mark.slow)
    for name in (*FIRST, *SECOND)
    for stepping in ([True] if name in ("mamba", "jamba") else [False, True])
]


@cache
def target_of(family):
    return Causal(recurrent_model(family), GREEDY)


@pytest.mark.parametrize(("family", "besides"), FAMILIES)
def test_a_family_writes_its_own_greedy_text(family, besides, make_structure, drafter_values):
    target = target_of(family)
    own = plain_greedy(target.model, PROMPT, NEW_TOKENS)
    assert len(set(own)) > 1 and target.evaluation == "rows"
    for name, shape in (("scattered", "chain"), ("scattered", "tree"), (besides, "chain")):
        made = (
            Scattered(own) if name == "scattered" else drafters.build(drafter_values(name, 61, target), target=target)
        )
        found = decode(target, made, make_structure(shape, 4), PROMPT, NEW_TOKENS, **seeded())
        assert found.tokens == own, (name, shape)
        assert all(row.marks.accepted <= row.marks.restored <= row.marks.committed for row in found.rounds)
        if name == "scattered":
            assert any(row.accepted for row in found.rounds) and any(row.rejected for row in found.rounds)


def states_of(decoder):
    """All states of a decoder's cache, as one vector."""
    kept = [layer.state() for layer in decoder.cache.layers if hasattr(layer, "state")]
    return torch.cat([part[number].flatten().double() for state in kept for part in state[:2] for number in part
                      if part[number] is not None])  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize(("family", "stepping"), WAYS)
def test_the_state_after_a_commit_is_that_of_the_committed_text(family, stepping):
    """Whatever was accepted, of a chain and of any path of a batch, behind a prompt of one token too."""
    decoder, tree = Decoder(recurrent_model(family), family, 512, states=True), Tree((-1, -1, 0, 1, 3, 1))
    decoder.stepping = stepping
    tokens = torch.tensor([0, *range(20, 26)])
    for prompt in (PROMPT[:1], PROMPT):
        for path in ((), (1, 5), (1, 3, 4)):
            for chain in (True, False):
                tokens[0] = decoder.start(prompt, 64, 1 if chain else 4)
                before = decoder.length
                if chain:
                    drafted = [tokens[0], *(tokens[node + 1] for node in path), 7, 8][:5]
                    decoder.forward(torch.tensor(drafted), chain_tree(len(drafted) - 1))
                else:
                    decoder.forward_paths(tokens, tree)
                sequence = 0 if chain else path_batch(tree).sequence_of(path)
                decoder.cache.commit(before, range(before, before + 1 + len(path)), sequence)
                found = states_of(decoder)
                whole = [*prompt, *(int(tokens[node + 1]) for node in path), 0]
                decoder.start(whole, 64)
                plain = states_of(decoder)
                assert (found - plain).norm() < 1e-5 * plain.norm(), (len(prompt), path, chain)
    decoder.start(PROMPT, 64)
    kept = states_of(decoder)
    decoder.forward(torch.tensor([9]), chain_tree(0))  # kernels for one token write into what they are given
    decoder.length = len(PROMPT) - 1
    assert torch.equal(states_of(decoder), kept), "a call is forgotten"


def test_a_state_from_before_the_last_call_is_not_made_up():
    decoder = target_of("qwen3_next").decoder
    decoder.start(PROMPT, 64)
    with pytest.raises(RuntimeError, match="is not kept"):
        decoder.length = 4


def test_what_needs_slots_is_refused_in_one_sentence():
    target = target_of("lfm2")
    remark, _ = target.remarks
    assert "by rows only" in remark and "one path" in remark
    with pytest.raises(UsageError, match=r"batch_size=4: .*keep a state"):
        batch_target(target, 4)
    with pytest.raises(ModelLoadError, match="has conv layers, whose state cannot be rolled back"):
        SmallModel(recurrent_model("lfm2"), target)


@pytest.mark.parametrize(("release", "served"), [("5.23.1", False), ("5.24.0", True)])
def test_states_are_kept_from_the_release_on_that_hands_them_over(monkeypatch, release, served):
    monkeypatch.setattr(decoders.transformers, "__version__", release)
    config = recurrent_model("lfm2").config
    if served:
        assert [kind.name for kind in decoders.recurrent_kinds(config, "lfm2")] == ["conv", "full_attention"]
    else:
        with pytest.raises(ModelLoadError, match=r"^Model lfm2 has conv layers, .*5\.24 on, and 5\.23\.1 is installed"):
            decoders.recurrent_kinds(config, "lfm2")


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("lfm2", "causal-conv1d is"),
        ("mamba", "causal-conv1d and mamba-ssm are"),
        ("qwen3_next", "causal-conv1d and flash-linear-attention are"),
    ],
)
def test_kernels_that_are_not_installed_are_said_once(caplog, capfd, name, lacking):
    """The sentence names the packages and what follows; nothing of transformers' own reaches the reader beside it."""
    target_of(name)  # which is probed
    hub.quiet_loading()
    caplog.clear()
    with caplog.at_level("WARNING"):
        target = Causal(recurrent_model(name), GREEDY)
    assert "falling back" not in capfd.readouterr().err
    said = [record.getMessage() for record in caplog.records if "not installed" in record.getMessage()]
    assert len(said) == 1 and f"because {lacking} not installed: the results are the same; its calls" in said[0]
    assert said[0] in target.remarks


def test_kernels_that_are_installed_are_not_said(monkeypatch, tiny_llama):
    assert missing_kernels(tiny_llama(9)) == ()
    layer = recurrent_model("lfm2").model.layers[0].conv
    module = sys.modules[type(layer).__module__]
    kernels = SimpleNamespace(causal_conv1d_fn=lambda x: x, causal_conv1d_update=lambda x: x)
    monkeypatch.setitem(sys.modules, "causal_conv1d", kernels)
    spec = importlib.util.spec_from_file_location(module.__name__ + "_again", module.__file__)
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, again)
    spec.loader.exec_module(again)
    assert missing_kernels(layer) == ("causal-conv1d",)
    assert missing_kernels(type("Layer", (torch.nn.Module,), {"__module__": spec.name})()) == ()
