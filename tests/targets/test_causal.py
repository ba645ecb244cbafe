"""A model as a target: its prefill, its scores and laws against plain passes, what is read off it, what is refused.

Verification after verification stands beside that by rows in `test_rows_evaluation.py`.
"""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from fixtures.plain_laws import EXACT, PROMPT, VOCABULARY, assert_like_plain, plain
from transformers import AutoModelForCausalLM, DeepseekV4Config, GenerationConfig, RwkvConfig

from specdec.errors import ModelLoadError
from specdec.records import EMPTY, TextStart
from specdec.targets.base import targets
from specdec.targets.base.model_target import not_followed
from specdec.targets.causal import Causal


@pytest.mark.parametrize("chunk", [1, 4, 5, 512])
def test_states_of_a_prefill_in_chunks_are_those_of_one_pass(tiny_model, sampling, chunk):
    """Two readers of different layers each get theirs in the order that they asked for, as transformers has them."""
    model = tiny_model("llama")
    target = Causal(model, sampling(temperature=1.0), prefill_chunk=chunk)
    one, other = target.hidden.keep(1), target.hidden.keep(2, 0)
    target.start(TextStart(PROMPT, 64))
    layers = model(input_ids=torch.tensor([PROMPT]), use_cache=False, output_hidden_states=True).hidden_states
    layers = [layer[0, :-1] for layer in layers]  # the root is not evaluated yet
    torch.testing.assert_close(one(target.states), layers[-2], atol=1e-10, rtol=0)
    torch.testing.assert_close(other(target.states), torch.cat([layers[-3], layers[-1]], -1), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("name", "evaluation"), [("gemma2", "packed"), ("deepseek_v32", "packed"), ("gemma2", "rows"), ("t5", "rows")]
)
def test_a_verification_can_be_discarded(target_of, random_draft, name, evaluation):
    target = target_of(name, evaluation)
    target.start(TextStart(PROMPT, 64, branches=8))
    for draft in (random_draft(8, VOCABULARY, 0), EMPTY):
        target.verify(draft)
        target.discard()
    assert_like_plain(target, PROMPT, [], random_draft(6, VOCABULARY, 1))


def test_the_chunk_is_taken_from_the_configuration(tiny_model, tmp_path, group_values, sampling):
    tiny_model("mistral_window").save_pretrained(tmp_path)
    values = group_values("target", "causal", model=str(tmp_path), device="cpu", prefill_chunk=3)
    target = targets.build(values, sampling=sampling())
    rows: list[int] = []
    forward = target.model.forward
    target.model.forward = lambda **kwargs: rows.append(kwargs["input_ids"].shape[1]) or forward(**kwargs)
    target.start(TextStart(PROMPT, 32))
    assert rows == [3, 3, 3, 1]
    assert (target.verify(EMPTY)[0] - plain(tiny_model("mistral_window"), PROMPT)).abs().max() < EXACT


def test_p_is_standardised_as_was_last_asked_for(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=1.0))
    target.start(TextStart(PROMPT, 32))
    warm = target.verify(EMPTY)[0]
    target.discard()
    target.standardise(sampling(temperature=0.5))
    cool = target.verify(EMPTY)[0]
    assert (cool - warm**2 / (warm**2).sum()).abs().max() < EXACT


def test_scores_are_plain_logits(tiny_model, target_of):
    logits = target_of("llama").score(PROMPT[:4], PROMPT[4:])
    assert logits.shape == (len(PROMPT) - 3, VOCABULARY)
    for length in (4, 5, len(PROMPT)):
        assert (logits[length - 4].softmax(-1) - plain(tiny_model("llama"), PROMPT[:length])).abs().max() < EXACT


def test_flops_count_a_tied_embedding_once(tiny_model, target_of):
    """2 per weight that a token is multiplied with: looking up an embedding is none."""
    llama, gpt2 = tiny_model("llama"), tiny_model("gpt2")
    total = sum(weight.numel() for weight in llama.parameters())
    assert target_of("llama").flops_per_token == 2 * (total - llama.get_input_embeddings().weight.numel())
    assert target_of("gpt2").flops_per_token == 2 * sum(weight.numel() for weight in gpt2.parameters())


SMALL = dict(vocab_size=31, hidden_size=32, num_hidden_layers=2)
ATTENTION = dict(SMALL, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)
COMPRESSED = dict(ATTENTION, layer_types=["heavily_compressed_attention", "sliding_attention"])
OUTSIDE = dict(SMALL, attention_hidden_size=32, intermediate_size=64, context_length=64)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (DeepseekV4Config(**COMPRESSED), "heavily_compressed_attention layers.* rolled back"),
        # It names no layer types and keeps its state outside the cache: the trial when loading refuses it.
        (RwkvConfig(**OUTSIDE), "takes no cache"),
    ],
    ids=["a layer type", "a state outside the cache"],
)
def test_a_model_that_cannot_roll_back_is_refused(config, says, sampling):
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelLoadError, match=says) as refused:
        Causal(model, sampling())
    assert refused.value.exit_code == 2
    assert model.config.model_type.partition("_")[0] in str(refused.value).lower() and "\n" not in str(refused.value)


def test_a_model_without_finite_logits_is_refused_when_loaded(tiny_model, sampling):
    """Known before decoding: not the error of a run that breaks on its way."""
    model = deepcopy(tiny_model("llama"))
    model.get_output_embeddings().weight[7] = float("nan")
    with pytest.raises(ModelLoadError, match="its logits are not finite"):
        Causal(model, sampling())


@pytest.mark.parametrize(
    ("asked", "temperature", "told"),
    [
        (None, 1.0, None),
        ({}, 0.0, None),
        ({"eos_token_id": [1, 2], "max_length": 512, "pad_token_id": 0}, 0.0, None),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, 0.0, "do_sample=True, temperature=0.6, top_k=20"),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, 0.6, "top_k=20"),
        ({"do_sample": True, "temperature": 0.6}, 0.6, None),
        ({"temperature": 0.6, "repetition_penalty": 1.05}, 0.0, "repetition_penalty=1.05"),  # greedy, as it says
        ({"num_beams": 4, "no_repeat_ngram_size": 3}, 1.0, "no_repeat_ngram_size=3, num_beams=4"),
    ],
)
def test_only_what_is_not_followed_is_said(sampling, asked, temperature, told):
    model = SimpleNamespace(generation_config=None if asked is None else GenerationConfig(**asked))
    found = not_followed(model, sampling(temperature=temperature))
    assert len(found) == (told is not None)
    assert told is None or f"generation_config.json asks for {told}, which is not followed" in found[0]
