"""Heads of every published format draft what the format's equations say, round by round, rejections included; and
nothing loads that does not fit exactly.
"""

import json
import re
from functools import partial

import pytest
import torch
from fixtures.drafting import assert_drafted_from, begun
from fixtures.refusals import refused
from fixtures.slow_eagle import random_rounds
from fixtures.tiny_checkpoints import PUBLISHED, Published, medusa, slow_medusa, write_checkpoint
from safetensors.torch import load_file, save_file

from specdec.drafters.base import drafters
from specdec.structures.base import structures
from specdec.targets.base import targets
from specdec.targets.causal import Causal

WIDTH, VOCABULARY = 16, 40
PROMPT = [7, 3, 19, 34, 3, 19, 22, 7, 3]
PARENTS = [-1, -1, -1, 0, 0, 1, 2, 3, 3, 5]


@pytest.fixture(scope="module")
def model(tiny_llama):
    return tiny_llama(VOCABULARY, context=128)


@pytest.fixture(scope="module")
def target(model, sampling):
    return Causal(model, sampling(temperature=0.0))


@pytest.fixture(scope="module")
def tree(group_values):
    return structures.build(group_values("structure", "tree", parents=PARENTS, nodes=len(PARENTS), depth=3))


@pytest.fixture(scope="module")
def drafter_of(group_values, target):
    def build(folder, name, target=target):
        return drafters.build(group_values("drafter", name, model=str(folder)), target=target)

    return build


def rounds_follow(target, drafter, structure, slow) -> None:
    """Every node of every round is the next best choice of `slow(states, t, path)`, whatever was accepted before."""
    for text, drafts in random_rounds(drafter, target, structure, 3, 5):
        output = target.model(input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True)
        states = [layer[0] for layer in output.hidden_states]
        for length, draft in drafts:
            assert len(draft) and draft.q is None
            there = partial(slow, states, length - 2)
            assert_drafted_from(draft, lambda node, above, there=there, root=text[length - 1]: there([root, *above]))


@pytest.mark.parametrize("kind", PUBLISHED)
def test_drafts_are_those_of_the_formats_equations(model, target, drafter_of, tree, tmp_path, kind):
    published = PUBLISHED[kind]
    weights = write_checkpoint(tmp_path, published, WIDTH, VOCABULARY)
    embedding = model.get_input_embeddings().weight
    drafter = drafter_of(tmp_path, published.drafter)
    structure = tree.clamped(len(drafter.heads))
    rounds_follow(
        target, drafter, structure, lambda states, t, path: published.slow(weights, states, embedding, t, path)
    )


@pytest.mark.parametrize("version", ["1", "2"])
def test_layers_are_read_in_their_order_and_heads_of_version_2_share_the_targets_output_layer(
    model, drafter_of, tmp_path, version
):
    """The reference makes the layers of a head alike; a file of others need not."""
    output = model.get_output_embeddings().weight
    if version == "1":
        published = Published("medusa", medusa(3, 2, repeated=False), slow_medusa(2))
    else:
        published = Published("medusa", medusa(3, 2, outputs=False), slow_medusa(2, tied=lambda: output))
    weights = write_checkpoint(tmp_path, published, WIDTH, VOCABULARY, version=version)
    heads = drafter_of(tmp_path, "medusa").heads
    state = torch.randn(WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for k in range(1, 4):
        path = list(range(k))
        logits = heads.logits(k, heads.draft_features(k, state, torch.tensor([path])))[0]
        torch.testing.assert_close(logits, published.slow(weights, [state[None]], None, 0, path))


def test_heads_and_their_target_in_one_checkpoint(model, drafter_of, group_values, sampling, tree, tmp_path, caplog):
    """One folder is `target.model` and `drafter.model`; each reads its part."""
    model.save_pretrained(tmp_path)
    published = Published("medusa", medusa(3, 1, "medusa_head."), slow_medusa(1, "medusa_head."))
    config = json.loads((tmp_path / "config.json").read_text())
    base = load_file(tmp_path / "model.safetensors")
    weights = write_checkpoint(tmp_path, published, WIDTH, VOCABULARY, **config, medusa_num_heads=3)
    save_file({**weights, **base}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    values = group_values("target", "causal", model=str(tmp_path), device="cpu")
    target = targets.build(values, sampling=sampling(temperature=0.0))
    drafter = drafter_of(tmp_path, "medusa", target)
    assert drafter.describe()["format"] == "Medusa-2"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    rounds_follow(target, drafter, tree, lambda states, t, path: published.slow(weights, states, base, t, path))
    elsewhere = tmp_path / "other"
    model.save_pretrained(elsewhere)
    drafter_of(tmp_path, "medusa", targets.build(values | {"model": str(elsewhere)}, sampling=target.sampling))
    assert f"use target.model={tmp_path}" in caplog.text


def test_tokens_outside_a_reduced_vocabulary_are_never_drawn(model, sampling, drafter_of, make_structure, tmp_path):
    weights = write_checkpoint(tmp_path, PUBLISHED["medusa_vllm_some_tokens"], WIDTH, VOCABULARY)
    target = Causal(model, sampling(temperature=1.0))
    draft = begun(drafter_of(tmp_path, "medusa", target), target, PROMPT).draft(make_structure("rows", 3))
    inside = set(weights["token_map"].tolist())
    assert set(draft.tokens.tolist()) <= inside
    assert draft.q[:, [token for token in range(VOCABULARY) if token not in inside]].eq(0).all()
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(len(draft), dtype=torch.float64))


FORMATS = ("medusa_1", "medusa_vllm", "hydra", "hydra_prefix", "accelerator_tied")


@pytest.mark.parametrize("kind", FORMATS)
def test_tensors_beside_the_formats_own_are_refused(drafter_of, tmp_path, kind):
    published = PUBLISHED[kind]
    weights = write_checkpoint(tmp_path, published, WIDTH, VOCABULARY)
    optional = ("input_embed_fn", "embed_tokens", "token_map", "emb.1", "ln.1", "head.1", "proj.2")
    needed = sorted(name for name in weights if not any(part in name for part in optional))
    dropped = needed[len(needed) // 2]
    weights = {name: value.clone() for name, value in weights.items()}
    for changed, said in (
        ({name: value for name, value in weights.items() if name != dropped}, dropped),
        (weights | {"unknown.weight": torch.ones(1)}, "unknown.weight too many"),
        (weights | {needed[-1]: torch.ones(3, 3, 3)}, needed[-1]),
    ):
        save_file(changed, tmp_path / published.file)
        with refused(f"drafter.model=.*{re.escape(said)}"):
            drafter_of(tmp_path, published.drafter)


@pytest.mark.parametrize("kind", FORMATS)
def test_another_target_is_refused(drafter_of, tmp_path, kind):
    for width, vocabulary, told in ((24, VOCABULARY, "width 24"), (WIDTH, 41, "vocabulary 41")):
        write_checkpoint(tmp_path, PUBLISHED[kind], width, vocabulary)
        with refused(f"target of {told}, and this one has"):
            drafter_of(tmp_path, PUBLISHED[kind].drafter)


def test_the_name_of_another_target_is_warned_of_and_recorded(model, drafter_of, tmp_path, caplog, monkeypatch):
    write_checkpoint(tmp_path, PUBLISHED["medusa_1"], WIDTH, VOCABULARY)
    monkeypatch.setattr(model.config, "name_or_path", "/models/vicuna-7B-v1.3")
    drafter = drafter_of(tmp_path, "medusa")
    assert not caplog.records
    monkeypatch.setattr(model.config, "name_or_path", "/models/vicuna-13b-v1.3")
    drafter_of(tmp_path, "medusa")
    assert caplog.records[0].levelname == "WARNING"
    assert "lmsys/vicuna-7b-v1.3" in caplog.text and "/models/vicuna-13b-v1.3" in caplog.text
    described = drafter.describe()
    assert (described["format"], described["made_for"]) == ("Medusa-1", "lmsys/vicuna-7b-v1.3")
    assert described["heads"]["count"] == 5 and len(described["sha256"]) == 64


@pytest.mark.parametrize("kind", ["medusa_1", "hydra", "hydra_not_grounded", "accelerator"])
def test_the_right_drafter_is_named(drafter_of, tmp_path, kind):
    right = PUBLISHED[kind].drafter
    write_checkpoint(tmp_path, PUBLISHED[kind], WIDTH, VOCABULARY)
    for asked in ("medusa", "blockwise", "grounded", "mlp_speculator"):
        if asked == right or (asked, right) == ("blockwise", "medusa"):
            assert drafter_of(tmp_path, asked).strategy == asked
        else:
            with refused(rf"use \+drafter={right}\."):
                drafter_of(tmp_path, asked)


def test_what_is_not_read_is_said(drafter_of, tmp_path):
    for kind, changes, told in (
        ("hydra", {"hydra_head_arch": "cross-attn"}, "which is not read: only its MLP heads"),
        ("medusa_vllm", {"logit_scale": 0.5}, "logit_scale"),
        ("medusa_vllm", {"truncated_vocab_size": 12}, "lacks the token_map"),
        ("accelerator", {"n_predict": None}, "no n_predict"),
        ("accelerator", {"emb_dim": 16.5}, "emb_dim=16.5"),
        ("accelerator", {"speculators_model_type": "mlp", "model_type": None}, "speculators MLP, which is not read"),
    ):
        write_checkpoint(tmp_path, PUBLISHED[kind], WIDTH, VOCABULARY, **changes)
        with refused(told):
            drafter_of(tmp_path, PUBLISHED[kind].drafter)


def test_copies_that_differ_are_refused(drafter_of, tmp_path):
    weights = write_checkpoint(tmp_path, PUBLISHED["accelerator_tied_copies"], WIDTH, VOCABULARY)
    changed = {**{name: value.clone() for name, value in weights.items()}, "speculator.ln.2.bias": torch.ones(WIDTH)}
    save_file(changed, tmp_path / "model.safetensors")
    with refused(r"ln\.2\.bias differs from its ln\.0\.bias"):
        drafter_of(tmp_path, "mlp_speculator")


def test_a_target_or_a_checkpoint_that_is_missing_is_asked_for(drafter_of, group_values, table, random_law, tmp_path):
    write_checkpoint(tmp_path, PUBLISHED["hydra_prefix"], 5, 5)
    plain = table(random_law(5, 0))
    with refused("a Llama; this target is no transformers model"):
        drafter_of(tmp_path, "grounded", plain)
    with refused(r"Missing value drafter\.model: give the folder or hub id"):
        drafters.build(group_values("drafter", "mlp_speculator"), target=plain)


@pytest.mark.parametrize("kind", ["hydra_prefix", "accelerator_tied", "medusa_vllm_some_tokens"])
def test_a_whole_text_at_once_has_the_features_of_each_position(target, drafter_of, tmp_path, kind):
    write_checkpoint(tmp_path, PUBLISHED[kind], WIDTH, VOCABULARY)
    heads = drafter_of(tmp_path, PUBLISHED[kind].drafter).heads
    tokens = torch.tensor([PROMPT, PROMPT[::-1]])
    states, _ = target.hidden.sequence(tokens, heads.offset(target.hidden.layers))
    with torch.inference_mode():
        together = heads.features(states, tokens)
        for line in range(2):
            contextual, _ = heads.contextual(states[line : line + 1, :4])
            for k, features in enumerate(together, 1):
                alone = heads.draft_features(k, contextual[0, 3], tokens[line : line + 1, 4 : 4 + k])
                torch.testing.assert_close(features[line, 3], alone[0])
    assert heads.flops_per_token > 2 * WIDTH * 12 and heads.describe()["count"] == len(heads) == len(together)
