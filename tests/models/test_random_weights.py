"""Random weights from a shape: the same for the same seed, in the wanted dtype, and refused with one sentence."""

import pytest
import torch

from specdec.errors import UsageError
from specdec.models.random_weights import random_model, shape_hash
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.targets.base import targets

CPU = torch.device("cpu")
SHAPE = dict(model_type="llama", seed=0, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
SHAPE |= dict(intermediate_size=48, vocab_size=61, max_position_embeddings=128, eos_token_id=None)


def weights(dtype=torch.float32, **changes):
    model = random_model(SHAPE | changes, dtype=dtype, device=CPU, attention="auto")
    return dict(model.named_parameters())


def test_the_seed_decides_the_weights_and_nothing_else_is_disturbed():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = weights(), weights(), weights(seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert all(weight.isfinite().all() and not weight.requires_grad for weight in first.values())
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert shape_hash(SHAPE) == shape_hash(dict(reversed(SHAPE.items()))) != shape_hash(SHAPE | {"seed": 1})


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_a_target_of_random_weights_decodes(group_values, sampling, kind):
    values = group_values("target", "causal", model="random", shape=SHAPE | {"model_type": kind}, dtype="bfloat16")
    target = targets.build(values, sampling=sampling(temperature=0.0))
    assert target.tokenizer is None and target.vocab_size == 61 and target.end_tokens == frozenset()
    described = target.describe()
    assert described["dtype"] == "bfloat16" and described["sha256"] == shape_hash(values["shape"])
    logits = target.score((1, 2, 3), (4,))
    assert logits.shape == (2, 61) and torch.isfinite(logits).all() and logits.std() > 0.01
    prompt = torch.randint(61, (20,), generator=generator_for(0, "p", "prompt")).tolist()
    target.start(TextStart(prompt, 30))
    assert target.cache_bytes > 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "lama"}, "target.shape: transformers refuses it: Unrecognized"),
        ({"model_type": "t5"}, "target.shape"),  # no decoder, and its keys have other names
        ({"hidden_sise": 64}, "Unknown key target.shape.hidden_sise: llama models have no such key. Did you mean"),
        ({"hidden_size": "wide"}, "target.shape: transformers refuses it"),
        ({"hidden_size": 31}, "target.shape: transformers refuses it"),
        ({"vocab_size": -4}, "target.shape: transformers refuses it"),
        ({"model_type": None}, "target.shape: it should have a model_type"),
        ({"seed": None}, "target.shape: it should have a model_type, such as llama, and a seed"),
    ],
)
def test_a_bad_shape_is_one_sentence(changes, says):
    with pytest.raises(UsageError) as raised:
        weights(**changes)
    assert says in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(("name", "millions"), [("random_110m", 109.53), ("random_7b", 6738.42)])
def test_the_shapes_of_the_configuration_have_the_size_they_say(group_values, name, millions):
    """Without any memory, on torch's meta device."""
    shape = group_values("target", name)["shape"]
    model = random_model(shape, dtype=torch.bfloat16, device=torch.device("meta"), attention="auto")
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_a_shape_may_have_a_dtype_of_its_own(monkeypatch, native):
    monkeypatch.setattr(
        "specdec.models.arithmetic.computes_natively", lambda dtype, _: native or dtype == torch.float32
    )
    how = {"device": torch.device("meta"), "attention": "auto"}
    own = random_model({**SHAPE, "dtype": "bfloat16"}, dtype=None, **how)
    assert own.dtype == (torch.bfloat16 if native else torch.float32)
    assert random_model({**SHAPE, "dtype": "bfloat16"}, dtype=torch.float64, **how).dtype == torch.float64
    assert random_model(SHAPE, dtype=None, **how).dtype == torch.float32
