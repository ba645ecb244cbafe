"""transformers on tiny models: the same tokens as our baseline, no model left changed, failures told in a sentence."""

from contextlib import ExitStack

import pytest
import torch
from peers.peers_at_work import CHAIN, GAMMA, KINDS, LIMIT, PROMPT, ours, work

from specdec.peers import Setting
from specdec.peers.transformers import Transformers, TransformersPeer, settings
from specdec.structures import structures
from specdec.targets.causal import Causal

SMALL = "mistral_window"  # another model over the same vocabulary


@pytest.fixture
def target(tiny_model, sampling):
    return Causal(tiny_model("llama"), sampling(temperature=0.0))


def made(target, name, model=None, mode=None, structure=CHAIN):
    target.compilation = mode
    return Transformers("transformers").peers(work(target, name, model, structure), ExitStack())


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_peer_writes_our_greedy_text(target, tiny_model, name):
    text = ours(target)
    found = made(target, name, tiny_model(SMALL))
    assert {peer.name: peer.ours for peer in found} == KINDS[name]
    for peer in found:
        peer.tune(PROMPT)
        row = peer(PROMPT)
        assert not peer.failure and row["seconds"] > 0
        assert (row["generated_token_ids"], row["tokens"]) == (list(text), len(text) == LIMIT and LIMIT)
        assert peer.describe()["setting"] == "dynamic cache, eager"


@pytest.mark.parametrize("name", ["ngram", "small_model"])
def test_rows_are_not_set_against_the_chains_of_transformers(target, tiny_model, name):
    rows = structures.build({"name": "rows", "k": 2, "w": GAMMA, "budget": 100})
    assert [peer.name for peer in made(target, name, tiny_model(SMALL), structure=rows)] == ["generate"]


def test_the_end_token_counts_and_nothing_after_it(target):
    text = ours(target)
    target.end_tokens = frozenset({text[4]})
    for peer in made(target, "ngram"):
        row = peer(PROMPT)
        assert row["generated_token_ids"] == list(text[: text.index(text[4]) + 1])


def test_assistant_offers_gamma_tokens_in_every_round(target, tiny_model, monkeypatch):
    """Of the widths that the target sees after the prefill, none but the ends of the text is another than gamma + 1."""
    widths = []
    forward = target.model.forward

    def watched(*args, **kwargs):
        widths.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    (_, peer) = made(target, "small_model", tiny_model(SMALL))
    monkeypatch.setattr(target.model, "forward", watched)
    peer(PROMPT)
    assert len(widths) > 5 and set(widths[1:-GAMMA]) == {GAMMA + 1}
    assert widths[0] == len(PROMPT.tokens) + GAMMA


def test_what_is_asked_for_is_our_method_and_our_law(target, tiny_model, sampling, monkeypatch):
    """Gamma and the length of a match; temperature and cuts."""
    seen = {}
    monkeypatch.setattr(type(target.model), "generate", lambda self, ids, **how: seen.update(how) or ids.repeat(1, 2))
    (_, peer) = made(target, "ngram")
    peer(PROMPT)
    assert (seen["prompt_lookup_num_tokens"], seen["max_matching_ngram_size"]) == (GAMMA, 7)
    assert seen["do_sample"] is False
    drawn = Causal(tiny_model("llama"), sampling(temperature=0.5, top_k=3, top_p=0.9, typical_p=0.4))
    made(drawn, "none")[0](PROMPT)
    expected = {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": None, "typical_p": 0.4}
    assert expected.items() <= seen.items()


def test_no_generation_config_is_left_changed(target, tiny_model):
    """A checkpoint's own penalty is not applied to the peer, and comes back, after a failure too."""
    assistant = tiny_model(SMALL)
    text = ours(target)
    models = (target.model, assistant)
    own = [(model.generation_config, model.generation_config.to_dict()) for model in models]
    target.model.generation_config.repetition_penalty = 5.0
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    try:
        for peer in made(target, "small_model", assistant):
            assert peer(PROMPT)["generated_token_ids"] == list(text)
        failing = TransformersPeer("generate", work(target), [Setting("s", {"num_beams": -1})])
        assert failing(PROMPT) is None
        assert target.model.generation_config.repetition_penalty == 5.0
        assert assistant.generation_config.num_assistant_tokens is None
    finally:
        target.model.generation_config.repetition_penalty = None
        assistant.generation_config.num_assistant_tokens_schedule = None
    for model, (config, values) in zip(models, own, strict=True):
        assert model.generation_config is config
        after = config.to_dict()
        assert {key: value for key, value in after.items() if value != values.get(key)} == {}


def test_the_fastest_setting_is_kept_and_both_times_are_told(target, monkeypatch):
    slow, fast = Setting("slow", {"use_cache": False}), Setting("fast", {})
    peer = TransformersPeer("generate", work(target), [slow, fast])
    seconds = {"slow": 2.0, "fast": 1.0}
    monkeypatch.setattr(peer, "generate", lambda prompt, setting, sampling: ((1,), seconds[setting.name]))
    peer.tune(PROMPT)
    assert peer.describe()["tried"] == [{"setting": "slow", "seconds": 2.0}, {"setting": "fast", "seconds": 1.0}]
    assert peer.describe()["setting"] == "fast"


@pytest.mark.slow
def test_a_setting_that_fails_is_told_and_the_other_is_used(target, tiny_model):
    """transformers refuses a kind of cache that it does not know: its reason is kept."""
    for name in ("small_model", "ngram"):
        peer = made(target, name, tiny_model(SMALL))[1]
        peer._settings.append(Setting("strange", {"cache_implementation": "strange"}))
        peer.tune(PROMPT)
        assert not peer.failure and peer.describe()["setting"] == "dynamic cache, eager"
        assert "strange" in peer.describe()["tried"][1]["failed"]


def test_a_peer_that_fails_says_so_and_stops(target, monkeypatch):
    peer = made(target, "none")[0]
    peer.tune(PROMPT)
    calls = []

    def broken(self, *args, **kwargs):
        calls.append(1)
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(type(target.model), "generate", broken)
    assert peer(PROMPT) is None and peer(PROMPT) is None and len(calls) == 1
    assert peer.failure == "at prompt p/0: RuntimeError: no luck"
    fresh = made(target, "none")[0]
    fresh.tune(PROMPT)
    assert fresh.failure == "RuntimeError: no luck" and fresh(PROMPT) is None


def test_a_peer_that_writes_no_token_is_left_out(target, monkeypatch):
    peer = made(target, "none")[0]
    monkeypatch.setattr(type(peer), "generate", lambda *_: ((), 0.5))
    peer.tune(PROMPT)
    assert peer.failure == "it wrote no token" and peer(PROMPT) is None


def test_compiled_runs_try_a_static_cache_too_but_not_for_drafts(target, tiny_model):
    """A draft that reaches past its end would end the process."""
    for name in ("small_model", "ngram"):
        plain, drafting = made(target, name, tiny_model(SMALL), mode="inductor")
        assert (len(plain._settings), len(drafting._settings)) == (2, 1)
    assert len(settings(torch.device("cpu"), mode=None)) == 1
    for device in ("cpu", "cuda"):
        _, static = settings(torch.device(device), mode="inductor")
        how = static.options["compile_config"]
        assert static.options["cache_implementation"] == "static"
        assert how.mode == ("reduce-overhead" if device == "cuda" else None)
        assert bool(how._compile_all_devices) == (device == "cpu")


@pytest.mark.slow
def test_a_compiled_peer_writes_the_same_text(tiny_llama, sampling):
    """The compiler has to be there; on one without it the setting fails and says so."""
    target = Causal(tiny_llama(61, layers=1), sampling(temperature=0.0))
    text = ours(target)
    peer = made(target, "none", mode="inductor")[0]
    peer.tune(PROMPT)
    assert peer(PROMPT)["generated_token_ids"] == list(text)
    tried = peer.describe()["tried"]
    if "failed" in tried[1]:
        pytest.skip(f"no compiler here: {tried[1]['failed']}")
    peer._chosen = peer._settings[1]
    assert peer(PROMPT)["generated_token_ids"] == list(text)
