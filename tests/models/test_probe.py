"""Which models are trusted, with which calls: every family decodes in float64 what plain forward passes say, chains and
trees alike, or is refused in one sentence that names its type.
"""

import json
from functools import cache
from typing import Any

import pytest
import torch
from fixtures.decoding import decode
from fixtures.faulty_architecture import mask_of_another_layer_type, one_window_for_all_texts, toy
from fixtures.loaded_models import load, random_model
from fixtures.plain_laws import plain_greedy

from specdec import progress
from specdec.certification.greedy_identity import GREEDY, NEW_TOKENS, PROMPT, Scattered
from specdec.certification.tiny_models import ARCHITECTURES, VOCABULARY
from specdec.drafters.small_model import SmallModel
from specdec.errors import ModelLoadError, UsageError
from specdec.models import probe as probing
from specdec.models.cache import CACHE
from specdec.models.comparison import logit_error
from specdec.models.decoder import Decoder
from specdec.models.model_lengths import lengths_of, shortened
from specdec.models.probe import open_decoder, position_border, probe
from specdec.targets.base import targets
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder

SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
GROUPED = dict(SIZES, num_key_value_heads=2)
ENDLESS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
OF_BART = dict(
    vocab_size=VOCABULARY, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48,
    max_position_embeddings=128, is_decoder=True, is_encoder_decoder=False, **ENDLESS,
)  # fmt: skip
OF_GPT = dict(vocab_size=VOCABULARY, n_layer=2, n_positions=128, bos_token_id=None, eos_token_id=None)


def long_rope(length: int, factor: float = 4.0) -> dict[str, Any]:
    """Values of a Phi-3 whose positions change where a text has more than `length` tokens."""
    kind = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4, long_factor=[factor] * 4)
    original = dict(original_max_position_embeddings=length)
    return GROUPED | original | dict(rope_parameters=kind | original)


NOT_CAUSAL = "a later token changes its logits"
OF_GPT_NEO = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
    window_size=6, max_position_embeddings=128, intermediate_size=48, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
OF_BLOOM = dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
WINDOW = dict(GROUPED, head_dim=8, sliding_window=6)
KINDS = dict(layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=False)
DYNAMIC = dict(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e4))
# Name -> class of the configuration, its values, how drafts that branch are evaluated or why the model is refused.
# Other families that are packed are decoded in `contracts/test_greedy_identity.py`.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaConfig", GROUPED, "packed"),
    "llama_dynamic_rope": ("LlamaConfig", GROUPED | DYNAMIC, "packed"),
    "gemma3": ("Gemma3TextConfig", WINDOW | KINDS, "packed"),
    "phi3_long_rope": ("Phi3Config", long_rope(60), "packed"),
    "gpt2": ("GPT2Config", dict(OF_GPT, n_embd=32, n_head=4), "packed"),
    "bert_decoder": ("BertConfig", dict(SIZES, pad_token_id=0, is_decoder=True), "packed"),
    "gpt_neo": ("GPTNeoConfig", OF_GPT_NEO, "rows"),
    "mpt": ("MptConfig", dict(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=128), "rows"),
    "bart": ("BartConfig", OF_BART, "rows"),
    "bloom": ("BloomConfig", OF_BLOOM, "rows"),
    "falcon_alibi": ("FalconConfig", dict(SIZES, alibi=True), "rows"),
    "bert": ("BertConfig", dict(SIZES, pad_token_id=0), NOT_CAUSAL),
    "roberta": ("RobertaConfig", dict(SIZES, pad_token_id=1), NOT_CAUSAL),
    "roberta_decoder": ("RobertaConfig", dict(SIZES, pad_token_id=60, is_decoder=True), "packed"),
}


@cache
def model_of(family: str) -> Any:
    return random_model(*FAMILIES[family][:2])


SERVED = sorted(name for name, (_, _, how) in FAMILIES.items() if how in ("packed", "rows"))
REFUSED = sorted(FAMILIES.keys() - set(SERVED))


@pytest.mark.parametrize("family", [name for name in SERVED if name not in ARCHITECTURES])
def test_a_family_that_is_served_decodes_what_plain_passes_say(family, make_structure, caplog):
    model = model_of(family)
    target = Causal(model, GREEDY)
    assert target.evaluation == target.describe()["evaluation"] == FAMILIES[family][2]
    assert (target.evaluation == "rows") == any("by rows" in message for message in caplog.messages)
    if target.evaluation == "rows":
        found = target.decoder.probed
        assert found.errors["rows"] < 1e-5
        assert found.own_masks or found.errors["packed"] > 0.05, "it would be wrong under a tree mask"
        assert target.describe()["probe"]["packed"] is False and target.capabilities.evaluations == ("rows",)
        assert target.tags == {"evaluation": "rows"} and Causal(model_of("llama"), GREEDY).tags == {}
        (sentence,) = target.remarks
        assert model.config.model_type in sentence and "by rows only" in sentence
    own = plain_greedy(model, PROMPT, NEW_TOKENS)
    for shape in ("chain", "tree"):
        found = decode(target, Scattered(own), make_structure(shape, 4), PROMPT, NEW_TOKENS)
        assert found.tokens == own, shape
        assert any(row.accepted for row in found.rounds) and any(row.rejected for row in found.rounds)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_be_served_is_refused_in_one_sentence(family):
    with pytest.raises(ModelLoadError, match=FAMILIES[family][2]) as raised:
        Causal(model_of(family), GREEDY)
    sentence = str(raised.value)
    assert f"({FAMILIES[family][0].removesuffix('Config').lower()}, " in sentence and "\n" not in sentence
    assert "use " in sentence and sentence.endswith(".")


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["gemma3", "mpt", "bert"])
def test_rounding_refuses_no_good_model_and_hides_no_fault(family, dtype):
    kind, values, expected = FAMILIES[family]
    decoder = Decoder(random_model(kind, values).to(dtype), family, 512)
    if expected == NOT_CAUSAL:
        with pytest.raises(ModelLoadError, match=NOT_CAUSAL):
            probe(decoder)
    else:
        found = probe(decoder)
        packed = expected == "packed"
        assert (found.packed, found.batch, found.rows, found.pieces) == (packed, packed, True, True)


def test_long_rope_is_kept_within_its_original_length():
    """A text that crosses it would mix keys of both kinds. A length too long to be tried is taken from the
    configuration.
    """
    target = Causal(model_of("phi3_long_rope"), GREEDY)
    assert target.context_length == target.decoder.context_length == 60 < SIZES["max_position_embeddings"]
    assert target.decoder.probed.errors["crossing"] > 0.05
    assert "60 tokens" in target.remarks[0] and "(phi3, " in target.remarks[0]
    found = probe(Decoder(random_model("Phi3Config", long_rope(150)), "far", 512))
    assert found.context == 150 and "crossing" not in found.errors


def test_positions_that_do_not_change_need_no_border():
    found = probe(Decoder(random_model("Phi3Config", long_rope(40, factor=1.0)), "same", 512))
    assert found.context is None and found.errors["crossing"] < 1e-5
    dynamic = model_of("llama_dynamic_rope")
    assert position_border(dynamic.config) == 256
    assert probe(Decoder(dynamic, "dynamic", 512)).context is None  # the context ends there anyway
    assert position_border(model_of("llama").config) is None


def test_a_mask_that_follows_the_number_of_keys_is_refused():
    """Doge masks all but so many keys once there are more, in pairs of what is cached and what is not."""
    doge = {name: value for name, value in GROUPED.items() if name != "max_position_embeddings"}
    for window in (100, 12):
        with pytest.raises(ModelLoadError, match=rf"\(keep_window_size={window}\)"):
            Causal(random_model("DogeConfig", doge | {"keep_window_size": window}), GREEDY)
    assert Causal(random_model("DogeConfig", doge), GREEDY).evaluation == "packed"  # its context is as long


def test_a_later_token_may_change_nothing_at_all():
    """With weights as small as those that it begins with, what BERT takes from later tokens is a thousandth."""
    with pytest.raises(ModelLoadError, match=NOT_CAUSAL):
        Causal(random_model("BertConfig", dict(SIZES, pad_token_id=0), 0, 0.5, 1.0).float(), GREEDY)


def test_every_integer_that_may_be_a_length_counts():
    from transformers import LlamaConfig

    nested = dict(local=dict(span=40, heads=8), windows=[None, 24, 24], image_size=500, vision_config=dict(window=50))
    others = dict(query_pre_attn_scalar=30, mamba_expand=2, mamba_d_ssm=32)  # a scale and two widths
    config = LlamaConfig(**GROUPED, **nested, **others, attention_chunk=300, keep=12)
    found = lengths_of(config, 256)
    assert sorted(set(found.values())) == [12, 24, 40]
    assert found[("local", "span")] == 40 and found[("windows", 1)] == found[("windows", 2)] == 24
    assert 300 in lengths_of(config, 1000).values()
    assert not lengths_of(model_of("llama").config, 256)


def test_a_shortened_copy_shares_the_weights_of_the_first_layers():
    values = GROUPED | dict(num_hidden_layers=9, head_dim=8, sliding_window=200)
    values |= dict(layer_types=["sliding_attention"] * 3 + ["full_attention"] * 6)
    model = random_model("Gemma3TextConfig", values)
    copied, short = shortened(model, lengths_of(model.config, 256))
    assert short == {200: 8} and copied.config.sliding_window == 8 and model.config.sliding_window == 200
    assert copied.config.num_hidden_layers == 4 and len(copied.model.layers) == 4
    mine, theirs = (each.model.layers[3].mlp.up_proj.weight for each in (copied, model))
    assert mine.data_ptr() == theirs.data_ptr() and mine.dtype == torch.float64


def test_lengths_that_take_long_are_crossed_later(monkeypatch):
    monkeypatch.setattr(probing, "_CHEAP", 0.0)  # nothing is compared far behind the beginning
    monkeypatch.setattr(probing, "_SECONDS", 0.0)
    monkeypatch.setattr(probing, "shortened", lambda *given: None)  # no copy is compared: it would tell at once
    timed, seconds = set(), probing._Pace._seconds
    monkeypatch.setattr(probing._Pace, "_seconds", lambda pace, count: timed.add(count) or seconds(pace, count))
    target = Causal(toy(window=66, chunk=90), GREEDY)
    assert target.decoder.probed.pending == (66, 90)
    assert target.disagreement(50) is None and target.decoder.probed.pending == (66, 90)
    assert target.disagreement(110, seconds=0.0) is None and target.decoder.probed.pending == (66, 90)
    assert target.disagreement(80) is None and target.decoder.probed.pending == (90,)
    assert target.disagreement(110) is None and target.decoder.probed.pending == ()
    of_batches = Causal(toy(one_window_for_all_texts, window=66, chunk=90), GREEDY)
    assert of_batches.decoder.probed.batch
    assert "texts decoded in one call differ" in of_batches.disagreement(80, batched=True)
    assert of_batches.disagreement(80) is None and not of_batches.decoder.probed.batch, "asked for by no other run"
    wrong = Causal(toy(mask_of_another_layer_type, window=66, chunk=90), GREEDY)
    said = wrong.disagreement(110)
    assert said is not None and "more than 66 tokens" in said and "differ from plain" in said and said.endswith(".")
    assert wrong.disagreement(110) == said
    assert timed == {256}, "no pass over more tokens than these texts have is timed"


def test_eager_attention_is_tried_before_a_model_is_refused(altered, monkeypatch):
    """The refusal of another implementation may come from a view that a tensor does not allow."""

    def change(inputs, cache):
        if model.config._attn_implementation != "eager":
            raise RuntimeError("view size is not compatible with input tensor's size and stride")
        return inputs

    model = altered(change)
    target = Causal(model, GREEDY)
    assert target.decoder.probed.attention == "eager" == target.describe()["attention"]
    assert target.evaluation == "packed" and "computes with target.attention=eager" in target.remarks[0]
    assert Causal(model, GREEDY).remarks == target.remarks  # what is known of a model is known of its new attention
    monkeypatch.setattr(model, "set_attn_implementation", lambda name: None)
    model.config._attn_implementation = "sdpa"
    with pytest.raises(ModelLoadError, match="does not take the mask and the positions") as raised:
        Causal(model, GREEDY)
    assert "stride" not in str(raised.value)


@pytest.fixture
def altered(monkeypatch):
    """`altered(change)` is a Llama whose forward pass `change` may spoil: it gets the arguments and the cache."""

    def make(change):
        model = random_model("LlamaConfig", GROUPED)
        forward = model.forward

        def call(**inputs):
            cache = inputs.get(CACHE)
            return forward(**(inputs if cache is None else change(inputs, cache)))

        monkeypatch.setattr(model, "forward", call)
        return model

    return make


def test_a_prefill_that_fails_in_pieces_is_made_in_one_call(altered, make_structure):
    """Between 1 and 7 cached tokens there is only a prefill in pieces."""

    def change(inputs, cache):
        late = 0 < cache.length < 8 and inputs["position_ids"].shape[-1] > 1
        return inputs | ({"position_ids": inputs["position_ids"].flip(-1)} if late else {})

    model = altered(change)
    target = Causal(model, GREEDY, prefill_chunk=5)
    assert not target.decoder.probed.pieces and target.decoder.probed.packed
    assert "prefilled in one call" in target.remarks[0] and "(llama, " in target.remarks[0]
    own = plain_greedy(model, PROMPT, NEW_TOKENS)
    found = decode(target, Scattered(own), make_structure("tree", 4), PROMPT, NEW_TOKENS)
    assert found.tokens == own


def test_rows_that_fail_are_not_asked_for(altered):
    def change(inputs, cache):
        if len(inputs["input_ids"]) > 1:
            raise ValueError("one sequence at a time")
        return inputs

    model = altered(change)
    assert Causal(model, GREEDY).capabilities.evaluations == ("packed",)
    with pytest.raises(UsageError, match=r"target\.evaluation=rows.*llama"):
        Causal(model, GREEDY, evaluation="rows")


def test_a_model_that_takes_chains_only_is_no_target(altered):
    def change(inputs, cache):
        places = inputs["position_ids"][0]
        if len(inputs["input_ids"]) > 1 or (places.diff() != 1).any():
            raise ValueError("chains only")
        return inputs

    model = altered(change)
    with pytest.raises(ModelLoadError, match=r"\(llama\) takes chains only"):
        Causal(model, GREEDY)


def test_calls_of_fixed_shape_are_not_made_on_a_model_that_counts_for_itself():
    """A captured loop tells the cache its length only at the end: positions taken from it stand still."""
    found = probe(Decoder(model_of("bart"), "bart", 512))
    assert not found.static and found.errors["static"] > 0.05
    decoder = Decoder(model_of("bart"), "bart", 512)
    open_decoder(decoder)
    assert not decoder.probed.static and probe(Decoder(model_of("mpt"), "mpt", 512)).static


def test_a_drafter_by_rows_drafts_chains(make_structure):
    target = Causal(model_of("llama"), GREEDY)
    drafter = SmallModel(model_of("mpt"), target)
    own = plain_greedy(target.model, PROMPT, NEW_TOKENS)
    assert decode(target, drafter, make_structure("chain", 3), PROMPT, NEW_TOKENS).tokens == own
    assert drafter.batched(2) is None and "by rows only" in drafter.notes[0]
    with pytest.raises(UsageError, match=r"structure=tree: with a mpt model.*structure=chain"):
        decode(target, drafter, make_structure("tree", 3), PROMPT, NEW_TOKENS)


WIDE = 20  # tokens


def t5gemma() -> Any:
    """A random T5Gemma: its encoder and its decoder have a layer with a window, and one without."""
    from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration, T5GemmaModuleConfig

    ends = dict(bos_token_id=2, pad_token_id=0, eos_token_id=None, tie_word_embeddings=False)
    sizes = GROUPED | ends | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=WIDE)
    parts = {part: T5GemmaModuleConfig(**sizes) for part in ("encoder", "decoder")}
    config = T5GemmaConfig(**parts, vocab_size=VOCABULARY, decoder_start_token_id=2, **ends)
    torch.manual_seed(0)
    model = T5GemmaForConditionalGeneration(config).double().eval().requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(5.0 if weight.dim() > 1 else 1.0)
    return model


def test_windows_of_an_encoder_decoder_are_crossed(make_structure):
    model = t5gemma()
    target = EncoderDecoder(model, GREEDY)
    assert not target.decoder.probed.pending and {"causal", "chain", "rows"} <= target.decoder.probed.errors.keys()
    own = tuple(model.generate(torch.tensor([PROMPT * 3]), max_new_tokens=NEW_TOKENS, do_sample=False)[0, 1:].tolist())
    assert len(PROMPT) * 3 > WIDE < len(own) and len(set(own)) > 3
    for shape in ("chain", "tree"):
        found = decode(target, Scattered(own), make_structure(shape, 4), PROMPT * 3, NEW_TOKENS)
        assert found.tokens == own, shape


def no_window_behind_a_cache(inputs: dict[str, Any]) -> None:
    """The layers with a window get the mask of those without, once there are more tokens."""
    masks = inputs["decoder_attention_mask"]
    if inputs[CACHE].get_seq_length() > WIDE:
        inputs["decoder_attention_mask"] = masks | {"sliding_attention": masks["full_attention"]}


def prompts_are_cut_to_the_window(inputs: dict[str, Any]) -> None:
    """The cache of the cross-attention is made with the window of the configuration."""
    for layer in inputs[CACHE].cross_attention_cache.layers:
        if layer.is_initialized:
            layer.keys, layer.values = layer.keys[:, :, -WIDE:], layer.values[:, :, -WIDE:]


@pytest.mark.parametrize("fault", [no_window_behind_a_cache, prompts_are_cut_to_the_window])
def test_a_fault_behind_a_window_of_an_encoder_decoder_is_found(fault, monkeypatch):
    model = t5gemma()
    forward = model.forward

    def call(**inputs):
        if CACHE in inputs:
            fault(inputs)
        return forward(**inputs)

    monkeypatch.setattr(model, "forward", call)
    monkeypatch.setattr(probing, "shortened", lambda *given: None)  # a copy has not the fault
    monkeypatch.setattr(probing, "_CHEAP", 0.0)  # far behind the beginning it would be met by chance
    with pytest.raises(ModelLoadError, match=r"sliding_window=20\), its logits differ from those of a plain") as raised:
        EncoderDecoder(model, GREEDY)
    assert "(t5gemma, " in str(raised.value) and "\n" not in str(raised.value)


def test_errors_are_shares_of_the_spread_whatever_the_level():
    plain = torch.tensor([[1.0, 2.0, 3.0, -torch.inf], [0.0, 0.0, 6.0, -torch.inf]])
    assert logit_error(plain + 5.0, plain).max() < 1e-12
    twice = torch.tensor([[2.0, 4.0, 6.0, 0.0], [0.0, 0.0, 6.0, 0.0]])
    torch.testing.assert_close(logit_error(twice, plain), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert logit_error(plain * torch.nan, plain).isinf().all()


@pytest.fixture
def folder(tmp_path):
    model_of("bart").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def opened(folder, tmp_path, monkeypatch, group_values):
    """`opened(**changes)` opens the model in the folder as a target and returns it with how often it was probed."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    asked = []
    whole = probing.probe
    monkeypatch.setattr(probing, "probe", lambda decoder: asked.append(decoder) or whole(decoder))

    def open_it(**changes):
        asked.clear()
        values = group_values("target", "causal", model=str(folder), device="cpu", **changes)
        return targets.build(values, sampling=GREEDY), len(asked)

    return open_it


def kept(tmp_path):
    return sorted((tmp_path / "cache" / "probes").iterdir())


def test_a_probe_tells_as_many_comparisons_as_it_said_that_it_would_make(tiny_llama, monkeypatch):
    seen = []
    monkeypatch.setattr(progress.Stage, "advance", lambda stage: seen.append((stage.name, stage.total)))
    probe(Decoder(tiny_llama(3), "tiny", 64))
    assert set(seen) == {("Compare with plain passes", len(seen))} and len(seen) > 10


def test_what_was_found_is_kept_for_the_next_run(opened, folder, tmp_path):
    first, asked = opened(dtype="float32")
    assert asked == 1 and first.evaluation == "rows" and len(kept(tmp_path)) == 1
    second, asked = opened(dtype="float32")
    assert asked == 0 and second.evaluation == "rows" and second.remarks == first.remarks
    assert second.decoder.probed == first.decoder.probed
    assert opened(dtype="float64")[1] == 1 and len(kept(tmp_path)) == 2
    model = load(folder)
    model.get_input_embeddings().weight.mul_(1.5)
    model.save_pretrained(folder)
    assert opened(dtype="float32")[1] == 1 and len(kept(tmp_path)) == 3, "of other weights"


@pytest.mark.slow
def test_a_damaged_file_is_made_again(opened, tmp_path):
    opened(dtype="float32")
    (path,) = kept(tmp_path)
    for content in ("", "[]", '{"packed": true, "unknown": 1}'):
        path.write_text(content)
        target, asked = opened(dtype="float32")
        assert asked == 1 and target.evaluation == "rows" and json.loads(path.read_text())["packed"] is False


def test_a_cache_that_cannot_be_written_costs_time_alone(opened, tmp_path):
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        target, asked = opened(dtype="float32")
        assert asked == 1 and target.evaluation == "rows"
