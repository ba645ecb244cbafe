"""Ratios of other engines to ours, and how pages and notes tell them."""

from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.analysis.findings.run_metrics import peer_metrics
from specdec.analysis.findings.side_by_side import peer_notes, peers_section
from specdec.analysis.intervals import Interval


def test_ratios_are_over_the_arm_that_does_the_same():
    """Six prompts; the peer takes 3 s for 10 tokens of half of them and 1 s of the others, our ngram arm 1 s each with
    prefill.
    """
    lines = [
        (method, gamma, prompt, decode_s, [prompt in "def"] * 10)
        for method, gamma, decode_s in (("baseline", 0, 99.0), ("ngram", 4, 0.75), ("ngram", 2, 55.0))
        for prompt in "abcdef"
    ]
    generations = pd.DataFrame(lines, columns=["method", "gamma", "prompt", "decode_s", "generated_token_ids"])
    generations = generations.assign(repeat=0, tokens=10, prefill_s=0.25)
    row = {"peer": "prompt_lookup", "ours_method": "ngram", "ours_gamma": 4, "repeat": 0, "tokens": 10}
    rows = [
        {**row, "prompt": prompt, "seconds": 3.0 if prompt in "abc" else 1.0, "generated_token_ids": [False] * 10}
        for prompt in "abcdef"
    ]
    metrics = peer_metrics(rows, lambda: generations, True, 500)
    assert metrics["peer/prompt_lookup.ratio"] == pytest.approx(2.0)
    assert metrics["peer/prompt_lookup.ratio.ci_low"] <= 2.0 <= metrics["peer/prompt_lookup.ratio.ci_high"]
    assert metrics["peer/prompt_lookup.identical"] == 0.5
    assert "peer/prompt_lookup.identical" not in peer_metrics(rows, lambda: generations, False, 500)
    assert peer_metrics([], lambda: generations, True, 500) == {}


PEER = {
    "peer": "llama_cpp.generate",
    "engine": "llama_cpp",
    "version": "llama-cpp-python 0.3",
    "setting": "flash attention",
    "tried": [{"setting": "flash attention", "seconds": 1.0}, {"setting": "plain", "failed": "LeftOut: no"}],
    "failure": "",
    "ours": {"method": "baseline", "gamma": 0, "setting": "traced, float32, 2 threads"},
}
SECOND = {**PEER, "peer": "llama_cpp.prompt_lookup", "ours": {"method": "ngram", "gamma": 4, "setting": "traced"}}
DESCRIBED = {"peers": [PEER, SECOND], "left_out": [{"peer": "openvino", "reason": "it is not installed."}]}
METRICS = {
    "peer/llama_cpp.generate.identical": 0.75,
    **Interval(0.8, 0.7, 0.9).as_metrics("peer/llama_cpp.generate.ratio"),
    **Interval(1.5, 1.2, 1.7).as_metrics("peer/llama_cpp.prompt_lookup.ratio"),
}


def test_the_section_has_every_peer_with_both_settings_and_who_was_left_out():
    section = peers_section(SimpleNamespace(metrics=METRICS, peers=lambda: DESCRIBED))
    (text,), ((_, table),) = section.text, section.tables
    assert "Slower than ours: llama_cpp.prompt_lookup.**" in text and "Faster than ours: llama_cpp.generate.**" in text
    assert table["its time per token over ours"][0] == "0.80 (0.70 to 0.90)"
    assert table.loc[0, ["its setting", "our setting"]].tolist() == ["flash attention", "traced, float32, 2 threads"]
    assert table["set against"].tolist()[:2] == ["the baseline", "ngram at gamma 4"]
    assert table.loc[2, ["peer", "left out or failed"]].tolist() == ["openvino", "it is not installed."]
    section = peers_section(SimpleNamespace(metrics={}, peers=lambda: {**DESCRIBED, "peers": []}))
    assert section.tables[0][1]["left out or failed"].tolist() == ["it is not installed."]


def test_notes_say_ratio_settings_and_failures():
    broken = {**SECOND, "failure": "at prompt p: ValueError: no"}
    never = {**PEER, "peer": "generate", "failure": "no luck"}
    first, second, third, absent = peer_notes({**DESCRIBED, "peers": [PEER, broken, never]}, METRICS)
    for words in (
        "Peer llama_cpp.generate (llama-cpp-python 0.3, flash attention) takes 0.80 (0.70 to 0.90) times our time per",
        "the baseline (traced, float32, 2 threads), prefill included. 75% of its outputs are our baseline's, token for",
        "Tried on the longest prompt: flash attention 1.000 s, plain failed (LeftOut: no).",
    ):
        assert words in first
    assert "ngram at gamma 4 (traced)" in second
    assert second.endswith("It failed and is compared as far as it came: at prompt p: ValueError: no")
    assert (third, absent) == ("Peer generate failed: no luck", "Peer openvino is left out: it is not installed.")
