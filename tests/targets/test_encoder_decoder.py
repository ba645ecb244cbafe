"""Chains over our own cache against plain forward passes of tiny random encoder-decoders, in float64."""

from copy import deepcopy

import pytest
import torch
from fixtures.plain_laws import EXACT, PROMPT, VOCABULARY, assert_like_plain, check_slots, plain_logits, random_chain
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from specdec.errors import ModelLoadError, UsageError
from specdec.records import EMPTY, Draft, TextStart, Tree, chain_tree
from specdec.targets.base import targets
from specdec.targets.encoder_decoder import EncoderDecoder


def decode(target, prompt, kept):
    """Rounds on random chains of 4, each keeping so many nodes, behind a verification that is discarded; returns the
    text, checking every round on the way.
    """
    text: list[int] = []
    target.start(TextStart(prompt, len(prompt) + 40))
    for seed, keep in enumerate(kept):
        target.verify(random_chain(6, 100 + seed))
        target.discard()
        draft = random_chain(4, seed)
        assert_like_plain(target, prompt, text, draft)
        target.commit(range(keep), next_token=(11 * seed + 1) % VOCABULARY)
        text += [*draft.tokens[:keep].tolist(), (11 * seed + 1) % VOCABULARY]
    return text


def test_rejections_leave_no_trace(encoder_decoder, target_of):
    """None, some and all of a chain accepted, several times over, behind texts with prompts of other lengths; the slots
    hold what a fresh text would write.
    """
    target = target_of(encoder_decoder)
    for prompt in (PROMPT[:1], [*PROMPT, *PROMPT]):
        decode(target, prompt, (2, 0))
    text = decode(target, PROMPT, (0, 4, 2, 0, 3))
    assert_like_plain(target, PROMPT, text, EMPTY)
    used = target.decoder.cache
    assert used.length == len(text) + 1  # and what was just verified
    target.start(TextStart(PROMPT, len(PROMPT) + 40))
    target.verify(Draft(torch.tensor(text), chain_tree(len(text))))
    check_slots(used, target.decoder.cache, EXACT)


def test_scores_are_plain_logits(encoder_decoder, target_of):
    target, text = target_of(encoder_decoder), [3, 1, 4, 1, 5]
    assert target.disagreement(10_000) is None, "no length is left to cross, before a run and after it"
    logits = target.score(PROMPT, text)
    assert logits.shape == (6, VOCABULARY)
    assert (logits - plain_logits(target, PROMPT, text)[0]).abs().max() == 0
    assert target.score(PROMPT, []).shape == (1, VOCABULARY)


@pytest.fixture(scope="module")
def deep():
    """A decoder deeper than its encoder, whose positions are told apart up to 8 tokens, so that few are compared."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCABULARY, d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=1, num_decoder_layers=3)
    sizes |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=8, decoder_start_token_id=0)
    return T5ForConditionalGeneration(T5Config(**sizes)).double().requires_grad_(False)


def test_a_decoder_deeper_than_its_encoder(deep, sampling):
    target = EncoderDecoder(deep, sampling())
    decode(target, PROMPT, (2, 0, 4))
    assert target.end_tokens == {1} and target.context_length >= 1 << 20


def test_16_bit_divergences_are_scored_in_float32(deep, sampling):
    target = EncoderDecoder(deepcopy(deep).bfloat16(), sampling())
    assert target.score(PROMPT, [1]).dtype == torch.float32
    assert target.score_as_decoded(PROMPT, [1]).dtype == torch.bfloat16 == target.model.dtype
    target.start(TextStart(PROMPT, 40))
    assert target.verify(random_chain(3, 0)).isfinite().all()  # the mask's smallest number has to fit in 16 bits


def test_the_prompt_is_worked_on_in_start_alone(encoder_decoder, target_of):
    """Encoder and cross-attention keys belong to the prefill's time, not to the first round's."""
    target = target_of(encoder_decoder)
    keys = [block.layer[1].EncDecAttention.k for block in target.model.decoder.block]
    work, calls = [target.model.get_encoder(), *keys], []
    handles = [module.register_forward_hook(lambda module, *_: calls.append(module)) for module in work]
    target.start(TextStart(PROMPT, 40))
    assert calls == work and target.decoder.length == 0
    target.verify(random_chain(3, 0))
    target.commit([0], 1)
    target.verify(random_chain(3, 1))
    assert calls == work
    for handle in handles:
        handle.remove()


def test_what_branches_does_not_go_into_one_row(target_of):
    target = target_of("t5")
    target.start(TextStart(PROMPT, len(PROMPT) + 7))
    assert target.decoder.cache.capacity == 7, "no slots for the prompt"
    with pytest.raises(ValueError, match="chains only"):
        target.decoder.forward(torch.tensor([0, 1, 2]), Tree((-1, -1)))
    assert target.verify(Draft(torch.tensor([1, 2]), Tree((-1, -1)))).shape == (3, VOCABULARY)


def test_flops_are_those_of_a_generated_token(tiny_encoder_decoder, target_of):
    """The decoder's matrices and the output head; not the encoder, nor the keys and values of the prompt."""
    width, inner, hidden = 32, 4 * 8, 48
    attention = 4 * width * inner + 2 * width * inner
    assert target_of("t5").flops_per_token == 2 * (2 * (attention + 2 * width * hidden) + VOCABULARY * width)
    assert target_of("t5_v1_1").flops_per_token == 2 * (2 * (attention + 3 * width * hidden) + VOCABULARY * width)
    assert target_of("t5").products() == []


def test_learned_positions_limit_the_context(sampling):
    """BART: the same code, and another start token, other module names, positions from the cache's length."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "attention_heads": 2, "ffn_dim": 16}
    sides = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in sizes.items()}
    config = BartConfig(vocab_size=VOCABULARY, d_model=16, max_position_embeddings=64, **sides)
    model = BartForConditionalGeneration(config).double()
    for weight in model.parameters():
        weight.data.mul_(5.0)
    target = EncoderDecoder(model, sampling())
    decode(target, PROMPT, (2, 0, 4))
    assert target.context_length == 64
    linear = sum(module.weight.numel() for module in model.get_decoder().modules() if isinstance(module, nn.Linear))
    assert target.flops_per_token == 2 * (linear - 2 * 2 * 16 * 16 + VOCABULARY * 16)


def test_a_model_without_a_start_token_is_refused(tiny_encoder_decoder, sampling):
    model = deepcopy(tiny_encoder_decoder("t5"))
    model.generation_config.decoder_start_token_id = model.config.decoder_start_token_id = None
    with pytest.raises(ModelLoadError, match="decoder_start_token_id"):
        EncoderDecoder(model, sampling())


@pytest.fixture(scope="module")
def folder(tiny_encoder_decoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("t5_v1_1")
    tiny_encoder_decoder("t5_v1_1").save_pretrained(path)
    return path


def test_it_is_built_from_its_configuration(folder, group_values, sampling, tiny_encoder_decoder):
    values = group_values("target", "encoder_decoder", model=str(folder), device="cpu")
    target = targets.build(values, sampling=sampling())
    assert isinstance(target, EncoderDecoder) and target.tokenizer is None
    expected = plain_logits(tiny_encoder_decoder("t5_v1_1"), PROMPT, [1, 2])[0]
    assert torch.equal(target.score(PROMPT, [1, 2]), expected)
    described = target.describe()
    assert described["class"] == "T5ForConditionalGeneration" and len(described["sha256"]) == 64
    assert (described["dtype"], described["attention"], target.evaluation) == ("float64", "sdpa", "rows")
    with pytest.raises(UsageError, match=r"target\.evaluation='packed'.*'rows'"):
        targets.build({**values, "evaluation": "packed"}, sampling=sampling())


def test_each_kind_of_model_has_its_target(folder, tiny_model, tmp_path, group_values, sampling):
    """Both are known from config.json alone, before any weight is read."""
    says = r"encoder-decoder model \(t5\): use it with target=encoder_decoder"
    with pytest.raises(ModelLoadError, match=says) as one:
        targets.build(group_values("target", "causal", model=str(folder), device="cpu"), sampling=sampling())
    tiny_model("llama").save_pretrained(tmp_path)
    values = group_values("target", "encoder_decoder", model=str(tmp_path), device="cpu")
    with pytest.raises(ModelLoadError, match=r"no encoder-decoder model \(llama\): use it with target=causal") as other:
        targets.build(values, sampling=sampling())
    for raised, path in ((one, folder), (other, tmp_path)):
        assert raised.value.exit_code == 2 and str(path) in str(raised.value) and "\n" not in str(raised.value)
