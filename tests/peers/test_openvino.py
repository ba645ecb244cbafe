"""OpenVINO: with a stand-in for its modules, what it is asked for; without it, the function that its model is made
from; where it is installed, that it writes our text.
"""

import copy
import sys
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace

import pytest
import torch
from peers.peers_at_work import GAMMA, KINDS, LIMIT, LONGEST, PROMPT, ours, work

from specdec.models.decoder import attention_windows
from specdec.models.load import POCKET, load_tokenizer, model_path
from specdec.peers import openvino as engine
from specdec.peers.base.contract import LeftOut
from specdec.peers.openvino import OpenVino, _example, _Graph
from specdec.targets.causal import Causal


@pytest.fixture
def float_model(tiny_model):
    return lambda name: copy.deepcopy(tiny_model(name)).float()


@pytest.fixture
def target(float_model, sampling):
    return Causal(float_model("llama"), sampling(temperature=0.0), load_tokenizer(model_path(POCKET)))


class StandIn:
    """OpenVINO's modules as far as they are used; `text` is what every pipeline writes."""

    def __init__(self, monkeypatch):
        self.text, self.natively = (1,), ["FP32", "BF16"]
        self.pipelines, self.open, self.asked, self.saved, self.written = [], 0, [], [], []
        genai, core, tokenizers = map(ModuleType, ("openvino_genai", "openvino", "openvino_tokenizers"))
        genai.TokenizedInputs = lambda ids, mask: SimpleNamespace(input_ids=ids, attention_mask=mask)
        genai.GenerationConfig = lambda **fields: fields
        genai.SchedulerConfig = lambda: SimpleNamespace(enable_prefix_caching=True, max_num_batched_tokens=256)
        genai.draft_model = lambda folder, device, **properties: (folder, properties)
        genai.LLMPipeline = self._pipeline
        core.Tensor = lambda array: array
        core.Core = lambda: SimpleNamespace(get_property=lambda device, name: self.natively)
        core.save_model = lambda model, path: self.saved.append((model, path))
        tokenizers.convert_tokenizer = lambda tokenizer: tokenizer
        for module in (genai, core, tokenizers):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(engine, "write_openvino", lambda model, kinds, folder: self.written.append((model, folder)))

    def _pipeline(self, folder, device, **properties):
        stand_in = self

        class Pipeline:
            def __init__(self):
                stand_in.open += 1
                assert stand_in.open == 1, "two pipelines of one peer hold the weights twice"
                stand_in.pipelines.append(SimpleNamespace(folder=folder, calls=0, **properties))
                self._record = stand_in.pipelines[-1]

            def __del__(self):
                stand_in.open -= 1

            def generate(self, inputs, config):
                self._record.calls += 1
                stand_in.asked.append((inputs, config))
                return SimpleNamespace(tokens=[list(stand_in.text)])

        return Pipeline()


@pytest.fixture
def stand_in(monkeypatch):
    return StandIn(monkeypatch)


@pytest.fixture
def held():
    with ExitStack() as stack:
        yield stack


def made(work, held):
    peers = OpenVino("openvino").peers(work, held)
    for peer in peers:
        peer.prepare()
    return peers


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "f32"), (torch.bfloat16, "bf16")])
def test_a_pipeline_computes_as_we_do(target, stand_in, held, dtype, precision):
    """The dtype of the arithmetic and of the cache, which has 8 bits otherwise, and the threads."""
    target.model.to(dtype)
    (peer,) = made(work(target), held)
    stand_in.text = ours(target)
    peer.tune(PROMPT)
    assert not peer.failure
    for pipeline in stand_in.pipelines:
        assert pipeline.INFERENCE_PRECISION_HINT == pipeline.KV_CACHE_PRECISION == precision
        assert pipeline.INFERENCE_NUM_THREADS == torch.get_num_threads()
    (inputs, config), *_ = stand_in.asked
    assert inputs.input_ids.tolist() == [list(PROMPT.tokens)] and inputs.attention_mask.all()
    assert config["max_new_tokens"] == LIMIT and not config["do_sample"]


def test_the_paged_cache_keeps_no_earlier_prompt(target, stand_in, held):
    """A second generation from the same prompt would be timed without its prefill. The text fits, and the prompt goes
    in one call.
    """
    (peer,) = made(work(target, longest=1000), held)
    peer.tune(PROMPT)
    paged = [each for each in stand_in.pipelines if each.ATTENTION_BACKEND == "PA"]
    assert len(paged) == 2
    for pipeline in paged:
        scheduler = pipeline.scheduler_config
        assert not scheduler.enable_prefix_caching
        assert scheduler.max_num_batched_tokens >= 1000 and 16 * scheduler.num_kv_blocks >= 1000
    assert not hasattr(stand_in.pipelines[-1], "scheduler_config")


def test_prompt_lookup_gets_gamma_and_match_length(target, stand_in, held):
    found = made(work(target, "ngram"), held)
    assert {peer.name.removeprefix("openvino."): peer.ours for peer in found} == KINDS["ngram"]
    found[1].tune(PROMPT)
    assert stand_in.pipelines and all(each.prompt_lookup for each in stand_in.pipelines)
    assert {each.ATTENTION_BACKEND for each in stand_in.pipelines} == {"PA"}
    _, config = stand_in.asked[-1]
    assert (config["num_assistant_tokens"], config["max_ngram_size"]) == (GAMMA, 7)


def test_the_small_model_drafts_gamma_tokens_in_its_own_dtype(target, stand_in, held, float_model):
    small = float_model("gpt2").bfloat16()
    _, peer = made(work(target, "small_model", small), held)
    assert (peer.name, peer.ours) == ("openvino.assisted", ("small_model", GAMMA))
    (own, folder), (other, drafter) = stand_in.written
    assert own is target.model and other is small
    assert stand_in.saved == [(target.tokenizer, each / "openvino_tokenizer.xml") for each in (folder, drafter)]
    peer.tune(PROMPT)
    for pipeline in stand_in.pipelines:
        opened, properties = pipeline.draft_model
        assert pipeline.folder == folder and opened == drafter and not hasattr(pipeline, "prompt_lookup")
        assert properties["INFERENCE_PRECISION_HINT"] == properties["KV_CACHE_PRECISION"] == "bf16"
    _, config = stand_in.asked[-1]
    assert config["num_assistant_tokens"] == GAMMA and "max_ngram_size" not in config


def test_every_setting_is_tried_and_only_one_pipeline_is_open(target, stand_in, held):
    """The first call of each is not timed. After tuning, the fastest is opened again, with an untimed call, too."""
    (peer,) = made(work(target), held)
    stand_in.text = ours(target)
    peer.tune(PROMPT)
    tried = [(each.ATTENTION_BACKEND, each.ENABLE_CPU_PINNING) for each in stand_in.pipelines]
    assert tried == [("PA", True), ("PA", False), ("SDPA", True), ("SDPA", False)]
    assert {each.calls for each in stand_in.pipelines} == {5}  # untimed, checked, and three for the choice
    peer._chosen = peer._settings[0]
    row = peer(PROMPT)
    assert row["generated_token_ids"] == list(stand_in.text) and stand_in.pipelines[-1].calls == 2
    peer(PROMPT)
    assert len(stand_in.pipelines) == 5 and stand_in.pipelines[-1].calls == 3
    assert stand_in.open == 1
    peer.close()
    assert stand_in.open == 0


def test_the_end_token_counts_and_one_that_never_comes_stands_for_none(target, stand_in, held):
    text = ours(target)
    target.end_tokens = frozenset({text[4], -1})
    (peer,) = made(work(target), held)
    stand_in.text = text  # longer than asked for, as some engines answer
    assert peer(PROMPT)["generated_token_ids"] == list(text[: text.index(text[4]) + 1])
    _, config = stand_in.asked[-1]
    assert config["eos_token_id"] == text[4] and config["stop_token_ids"] == {text[4]}
    target.end_tokens = frozenset()
    assert peer(PROMPT)["tokens"] == LIMIT
    assert stand_in.asked[-1][1]["stop_token_ids"] == {target.vocab_size}


def test_a_text_that_is_not_the_targets_is_left_out(target, stand_in, held):
    text = list(ours(target))
    stand_in.text = [*text[:5], (text[5] + 1) % target.vocab_size, *text[6:]]
    (peer,) = made(work(target), held)
    peer.tune(PROMPT)
    assert "its greedy text is not the target's: the logit of token 6" in peer.failure
    assert peer(PROMPT) is None


def test_sampling_gets_our_temperature_and_cuts(float_model, sampling, stand_in, held):
    target = Causal(float_model("llama"), sampling(temperature=0.5, top_p=0.9))
    (peer,) = made(work(target), held)
    peer(PROMPT)
    _, config = stand_in.asked[-1]
    assert {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "rng_seed": 5}.items() <= config.items()
    assert "min_p" not in config and "top_k" not in config


def test_a_full_disk_is_told(float_model, sampling, stand_in, held, monkeypatch):
    monkeypatch.setattr(engine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(LeftOut, match=r"has 0 MB free.*TMPDIR"):
        made(work(Causal(float_model("llama"), sampling(temperature=0.0))), held)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda target: target.model.double(), "does not compute in float64 on this processor"),
        (lambda target: target.model.half(), "does not compute in float16 on this processor"),
        (lambda target: setattr(target, "in_one_piece", False), "in one piece on a CPU only"),
        (lambda target: setattr(target.model.config, "sliding_window", LONGEST - 1), f"sees {LONGEST - 1} tokens back"),
    ],
)
def test_a_target_that_it_cannot_run_is_left_out_with_the_reason(target, stand_in, held, change, reason):
    made(work(target), held)
    change(target)
    with pytest.raises(LeftOut, match=reason):
        made(work(target), held)


@pytest.mark.parametrize("cuts", [{"typical_p": 0.4}, {"top_k": 3, "top_p": 0.9}])
def test_another_law_is_not_sampled_from(float_model, sampling, stand_in, held, cuts):
    with pytest.raises(LeftOut, match="sample from another law"):
        made(work(Causal(float_model("llama"), sampling(temperature=0.5, **cuts))), held)
    assert made(work(Causal(float_model("llama"), sampling(temperature=0.0, **cuts))), held)


def test_a_small_model_that_it_cannot_use_is_left_out(target, stand_in, held, float_model):
    small = float_model("gpt2")
    plain, assisted = OpenVino("openvino").peers(work(target, "small_model", small, translation=object()), held)
    plain.prepare()
    with pytest.raises(LeftOut, match="with a small model of the same tokenizer only"):
        assisted.prepare()
    target.tokenizer = None
    with pytest.raises(LeftOut, match="only where the target has a tokenizer"):
        made(work(target, "small_model", small), held)


def test_its_files_are_deleted_after_the_run(target, stand_in):
    with ExitStack() as held:
        made(work(target), held)
        ((_, folder),) = stand_in.written
        assert folder.is_dir()
    assert not folder.parent.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_openvino_writes_our_greedy_text(float_model, sampling, held, name):
    """Grouped-query heads and rotary positions; learned positions. Every kind of peer, at its first setting of each
    cache.
    """
    pytest.importorskip("openvino_genai", reason="openvino-genai is not installed: pip install -e '.[openvino]'")
    pytest.importorskip("openvino_tokenizers")
    target = Causal(float_model(name), sampling(temperature=0.0), load_tokenizer(model_path(POCKET)))
    text = ours(target)
    found = made(work(target, "ngram"), held) + made(work(target, "small_model", float_model("opt")), held)[1:]
    assert [peer.name.removeprefix("openvino.") for peer in found] == ["generate", "prompt_lookup", "assisted"]
    for peer in found:
        peer._settings = peer._settings[::2]
        peer.tune(PROMPT)
        assert all("seconds" in each for each in peer.describe()["tried"]), peer.describe()
        assert peer(PROMPT)["generated_token_ids"] == list(text)
    target.end_tokens = frozenset({text[4]})
    for peer in found:
        assert peer(PROMPT)["generated_token_ids"] == list(text[: text.index(text[4]) + 1])


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_a_call_behind_keys_and_values_is_a_plain_forward(tiny_model, name):
    """Two calls, of 4 and 3 tokens: in between the two sequences swap places, as `beam_idx` says."""
    model = tiny_model(name)
    graph = _Graph(model, attention_windows(model.config, name))
    shapes = graph.state_shapes()
    tokens = torch.arange(14).view(2, 7) + 1
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        places = torch.arange(7).expand(2, -1)
        ones, same = torch.ones(2, 7, dtype=torch.long), torch.tensor([0, 1], dtype=torch.int32)
        empty = (torch.zeros(2, heads, 0, size, dtype=torch.float64) for heads, size in shapes)
        first, *past = graph(tokens[:, :4], ones[:, :4], places[:, :4], same, *empty)
        assert [(each.shape[1], each.shape[3]) for each in past] == shapes
        second, *_ = graph(tokens.flip(0)[:, 4:], ones, places[:, 4:], same.flip(0), *past)
    assert torch.allclose(first, expected[:, :4], atol=1e-9)
    assert torch.allclose(second.flip(0), expected[:, 4:], atol=1e-9)


def test_the_example_has_no_two_sizes_that_are_equal():
    """Tracing would take them for one."""
    tokens, mask, places, beams, keys, *_ = _example([(2, 8)])
    assert tokens.shape == places.shape and mask.shape[1] == tokens.shape[1] + keys.shape[2]
    assert len({tokens.shape[0], tokens.shape[1], keys.shape[2], mask.shape[1]}) == 4
    assert (len(beams), keys.shape[0]) == (2, 2) and places[0].tolist() == list(range(3, 8))
