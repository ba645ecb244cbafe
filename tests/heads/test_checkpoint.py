"""Heads on disk: what is read is what was written, for the target that it was written for and for no other."""

import pytest
import torch
from safetensors.torch import save_file

from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_HEADS
from specdec.targets.base import targets
from specdec.targets.causal import Causal
from specdec.text.streams import Stream, write_streams

TRAINING = {"recipe": "test", "steps": 3, "accuracy": [0.5, 0.25]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "heads.safetensors"


def test_what_is_read_is_what_was_written(target, random_heads, make, path):
    heads = random_heads(target, **make)
    TRAINED_HEADS.write(heads, path, target.hidden.identity, TRAINING)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no part of a file is left"
    stored = TRAINED_HEADS.read(path)
    assert (stored.config, stored.target, stored.training) == (heads.config, target.hidden.identity, TRAINING)
    before = torch.get_rng_state()
    loaded = TRAINED_HEADS.load(path, target)
    assert torch.equal(before, torch.get_rng_state()), "nothing is drawn"
    assert loaded.config == heads.config and not loaded.training
    assert not any(weight.requires_grad for weight in loaded.parameters())
    tokens = torch.tensor([[5, 1, 4, 1, 5, 9, 2, 6]])
    states, _ = target.hidden.sequence(tokens, 0)
    features = zip(heads.features(states, tokens), loaded.features(states, tokens), strict=True)
    for k, (one, other) in enumerate(features, 1):
        assert torch.equal(heads.logits(k, one), loaded.logits(k, other))


def test_heads_get_the_targets_dtype(target, random_heads, path):
    TRAINED_HEADS.write(random_heads(target, output="own").bfloat16(), path, target.hidden.identity, {})
    assert {weight.dtype for weight in TRAINED_HEADS.read(path).weights.values()} == {torch.bfloat16}
    assert {weight.dtype for weight in TRAINED_HEADS.load(path, target).parameters()} == {torch.float64}


def test_heads_of_other_weights_are_refused_and_both_are_named(target, random_heads, tiny_llama, sampling, path):
    TRAINED_HEADS.write(random_heads(target), path, target.hidden.identity, {})
    other = Causal(tiny_llama(23, seed=1), sampling(temperature=0.0))
    assert other.hidden.identity != target.hidden.identity
    assert Causal(tiny_llama(23), sampling(temperature=1.0)).hidden.identity == target.hidden.identity
    with pytest.raises(UsageError, match=f"{path}.*{target.hidden.identity[:16]}.*{other.hidden.identity[:16]}"):
        TRAINED_HEADS.load(path, other)


@pytest.mark.parametrize("content", [None, b"", b"not safetensors", "other tensors", "other config"])
def test_what_is_no_file_of_heads_is_named(target, tmp_path, content):
    path = tmp_path / "x.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        about = {"specdec.heads": '{"config": {"count": 3}, "target": "", "training": {}}'}
        save_file({"a": torch.ones(2)}, path, metadata=None if content == "other tensors" else about)
    with pytest.raises(UsageError, match="drafter.model=.*x.safetensors") as raised:
        TRAINED_HEADS.load(path, target)
    assert ("not exist" in str(raised.value)) == (content is None) and "\n" not in str(raised.value)


def test_a_target_without_a_model_has_none(group_values, random_heads, target, sampling, path):
    TRAINED_HEADS.write(random_heads(target), path, target.hidden.identity, {})
    write_streams(path.with_name("s.jsonl"), [Stream("0", "c", (1, 2), (3, 4))])
    values = group_values("target", "replay", path=str(path.with_name("s.jsonl")), vocab_size=23)
    with pytest.raises(UsageError, match="target=causal"):
        TRAINED_HEADS.load(path, targets.build(values, sampling=sampling(temperature=0.0)))
