"""Serving configurations: a command for each drafter and shape, written out, with the names that the engines know."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from fixtures.small_parts import read_group_values

from specdec.analysis.engines.measured_drafter import Alone, Measured
from specdec.analysis.engines.recommendation import NO_METHOD, NOT_SERVED, SERVED, recommend
from specdec.analysis.engines.vllm_flags import batch_schedule
from specdec.analysis.intervals import Interval
from specdec.config import flattened
from specdec.drafters import drafters

PAYS = Interval(1.5, 1.4, 1.6)


def measured(
    drafter: str, structure: str = "chain", speedup: Interval = PAYS, *, nodes: int = 4, form: str = "", **changes: Any
) -> Measured:
    """Return a drafter of depth 4 with the values of its YAML and of the structure's; `drafter__model` sets a key."""
    values = {
        "drafter": read_group_values("drafter", drafter),
        "structure": read_group_values("structure", structure),
        "target": {"name": "causal", "model": "org/target"},
        "sampling": {"temperature": 0.0},
        "verifier": {"name": "speculative_sampling"},
    }
    values["structure"].setdefault("name", "tree")  # a file that builds on structure/tree.yaml
    params = {key: str(value) for key, value in flattened(values).items()}
    params |= {"drafter.model": "org/draft"} if "drafter.model" in params and drafter != "mtp" else {}
    params |= {"drafter.of.name": "small_model", "drafter.of.model": "org/draft"} if drafter == "adaptive" else {}
    params |= {"drafter.models": "['org/draft']"} if drafter == "spec_tree" else {}
    params |= {key.replace("__", "."): str(value) for key, value in changes.items()}
    return Measured(params, 4, nodes, speedup, form, machine="EPYC")


def commands(one: Measured) -> tuple[str, ...]:
    """Return the commands for vLLM, SGLang and llama.cpp, "" where an engine has no such method."""
    return tuple(each.command for each in recommend([one]).configurations)


def vllm(keys: str) -> str:
    return f"vllm serve org/target --speculative-config '{keys}'"


def sglang(flags: str) -> str:
    return f"python -m sglang.launch_server --model-path org/target --speculative-algorithm {flags}"


def llama(flags: str) -> str:
    return f"llama-server -m target.gguf {flags}"


FOUR = '"num_speculative_tokens": 4'
DRAFT_MODEL = f'"model": "org/draft", {FOUR}'
SMALL_MODEL = vllm(f'{{"method": "draft_model", {DRAFT_MODEL}}}')
LLAMA_MODEL = llama("-md draft.gguf --spec-type draft-simple --spec-draft-n-max 4")
STEPS = "--speculative-draft-model-path org/draft --speculative-num-steps 4"
CHAIN = f"{STEPS} --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
LOOKUP = "NGRAM --speculative-num-draft-tokens 5 --speculative-ngram-max-bfs-breadth 1"
CORPUS = "--speculative-ngram-external-corpus-path CORPUS.jsonl --speculative-ngram-external-sam-budget"
OF_SUFFIX = '"suffix_decoding_max_spec_factor": 1.0, "suffix_decoding_min_token_prob": 0.0'
EXPECTED = {  # drafter, structure, format: the commands of the three engines
    ("ngram", "chain", ""): (
        vllm('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}'),
        sglang(LOOKUP),
        llama("--spec-type ngram-simple --spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 4"),
    ),
    ("suffix", "chain", ""): (vllm(f'{{"method": "suffix", {FOUR}, {OF_SUFFIX}}}'), sglang(LOOKUP), ""),
    ("retrieval", "chain", ""): ("", sglang(f"{LOOKUP} {CORPUS} 4"), ""),
    ("retrieval", "tree", ""): ("", sglang(f"NGRAM --speculative-num-draft-tokens 9 {CORPUS} 8"), ""),
    ("small_model", "chain", ""): (SMALL_MODEL, sglang(f"STANDALONE {CHAIN}"), LLAMA_MODEL),
    ("small_model", "dynamic", ""): (
        SMALL_MODEL,
        sglang(f"STANDALONE {STEPS} --speculative-eagle-topk 6 --speculative-num-draft-tokens 9"),
        LLAMA_MODEL,
    ),
    ("spec_tree", "expansion", ""): (
        "",
        sglang(f"STANDALONE {STEPS} --speculative-eagle-topk 3 --speculative-num-draft-tokens 9"),
        "",
    ),
    ("adaptive", "chain", ""): ("", "", f"{LLAMA_MODEL} --spec-draft-p-min 0.3"),
    ("parallel", "chain", ""): (vllm(f'{{"method": "draft_model", {DRAFT_MODEL}, "parallel_drafting": true}}'), "", ""),
    ("eagle", "chain", "EAGLE-1"): (vllm(f'{{"method": "eagle", {DRAFT_MODEL}}}'), sglang(f"EAGLE {CHAIN}"), ""),
    ("eagle", "heads", "EAGLE-3"): (
        vllm(f'{{"method": "eagle3", {DRAFT_MODEL}}}'),
        sglang(f"EAGLE3 {STEPS} --speculative-eagle-topk 3 --speculative-num-draft-tokens 9"),
        llama("-md draft.gguf --spec-type draft-eagle3 --spec-draft-n-max 4"),
    ),
    ("eagle", "chain", "P-EAGLE"): (vllm(f'{{"method": "eagle3", {DRAFT_MODEL}, "parallel_drafting": true}}'), "", ""),
    ("eagle", "chain", "DFlash"): (
        vllm(f'{{"method": "dflash", {DRAFT_MODEL}}}'),
        sglang("DFLASH --speculative-draft-model-path org/draft --speculative-num-draft-tokens 5"),
        llama("-md draft.gguf --spec-type draft-dflash --spec-draft-n-max 4"),
    ),
    ("eagle", "chain", "DSpark"): (
        vllm(f'{{"method": "dspark", {DRAFT_MODEL}}}'),
        sglang("DSPARK --speculative-draft-model-path org/draft --speculative-dspark-block-size 4"),
        llama("-md draft.gguf --spec-type draft-dspark --spec-draft-n-max 4"),
    ),
    ("mtp", "chain", "MTP module"): (
        vllm(f'{{"method": "mtp", {FOUR}}}'),
        sglang("NEXTN --speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"),
        llama("--spec-type draft-mtp --spec-draft-n-max 4"),
    ),
    ("medusa", "chain", "Medusa-1"): (vllm(f'{{"method": "medusa", {DRAFT_MODEL}}}'), "", ""),
    ("mlp_speculator", "chain", "MLP speculator"): (vllm(f'{{"method": "mlp_speculator", {DRAFT_MODEL}}}'), "", ""),
}


@pytest.mark.parametrize("case", EXPECTED, ids="-".join)
def test_the_commands_of_a_drafter(case):
    drafter, structure, form = case
    nodes = 4 if structure == "chain" else 8
    assert commands(measured(drafter, structure, nodes=nodes, form=form)) == EXPECTED[case]


def test_every_drafter_is_decided_on():
    assert drafters.all_names() == sorted([*SERVED, *NOT_SERVED, *NO_METHOD])
    assert {name for name, _, _ in EXPECTED} == set(SERVED)
    for name in NOT_SERVED:
        found = recommend([measured(name)])
        assert found.verdict.startswith(f"No engine is known to offer {name}: ") and not found.configurations
        assert "It would pay: " in found.verdict
    assert all(recommend([measured(name)]).verdict.startswith("Nothing to serve: ") for name in NO_METHOD)
    unknown = Measured({"drafter.name": "mine", "target.model": "org/target"}, 4, 4, PAYS)
    assert recommend([unknown]).lines() == [
        "To serve it: No engine is known to offer mine. It would pay: mine with drafts of 4 tokens is 1.500 (1.400 to "
        "1.600) times as fast as plain decoding."
    ]


def test_names_with_quotes_and_braces_stay_one_word():
    how = {"target__model": "my model's", "drafter__model": 'a "b"/{c}'}
    of_vllm, of_sglang, _ = commands(measured("small_model", **how))
    *words, keys = shlex.split(of_vllm)
    assert words == ["vllm", "serve", "my model's", "--speculative-config"] and json.loads(keys)["model"] == 'a "b"/{c}'
    assert {"my model's", 'a "b"/{c}'} <= set(shlex.split(of_sglang))


def test_files_of_llama_cpp_are_made_first():
    *_, found = recommend([measured("eagle", form="EAGLE-3", target__model="/m/the target")]).configurations
    convert = ["python", "convert_hf_to_gguf.py"]
    assert [shlex.split(command) for command in found.before] == [
        [*convert, "/m/the target", "--outfile", "target.gguf"],
        [*convert, "org/draft", "--target-model-dir", "/m/the target", "--outfile", "draft.gguf"],
    ]


EAGLE3 = {"drafter": "eagle", "form": "EAGLE-3"}
SAMPLED = {"sampling__temperature": 0.8}


@pytest.mark.parametrize(
    ("changes", "engine", "holds", "lacks"),
    [
        ({**EAGLE3, **SAMPLED}, 0, '"draft_sample_method": "probabilistic"', "\n"),
        ({**EAGLE3, **SAMPLED}, 1, " --speculative-use-rejection-sampling", "\n"),
        ({**EAGLE3, **SAMPLED, "drafter__drafts": "greedy"}, 0, "", "draft_sample_method"),
        ({**EAGLE3, **SAMPLED, "drafter__drafts": "greedy"}, 1, "", "rejection"),
        ({**EAGLE3, **SAMPLED, "verifier__name": "block"}, 0, '"rejection_sample_method": "block"', "\n"),
        ({**EAGLE3, **SAMPLED, "verifier__name": "block"}, 1, " --speculative-use-block-verification", "\n"),
        ({"drafter": "ngram", "drafter__q": 3}, 0, '"prompt_lookup_max": 3, "prompt_lookup_min": 3', "\n"),
        ({"drafter": "ngram", "drafter__q": 3}, 2, "size-n 3", "\n"),
        ({"drafter": "ngram", "drafter__order_max": 6, "drafter__order_min": 2}, 0, '6, "prompt_lookup_min": 2', "\n"),
        ({"drafter": "ngram", "drafter__order_max": 6, "drafter__order_min": 2}, 2, "size-n 6", "\n"),
        ({"drafter": "small_model", "drafter__translate": True}, 0, '"use_heterogeneous_vocab": true', "\n"),
        ({"drafter": "small_model", "drafter__translate": True}, 1, "", "python"),  # another vocabulary
        ({"drafter": "small_model", "drafter__translate": True}, 2, "", "llama"),
    ],
)
def test_settings_go_to_the_engines_that_can(changes, engine, holds, lacks):
    command = commands(measured(**changes))[engine]
    assert holds in command and lacks not in command


def test_draft_tokens_by_batch_as_vllm_takes_them():
    """Ranges begin at 1 and follow on one another, as vLLM demands; its last one holds for every larger batch."""
    for tokens, ranges in (
        ({1: 4, 2: 4, 8: 2, 16: 0}, [[1, 2, 4], [3, 8, 2], [9, 65536, 0]]),
        ({4: 3}, [[1, 4, 3], [5, 65536, 0]]),
        ({1: 0, 4: 3}, [[1, 1, 0], [2, 4, 3], [5, 65536, 0]]),
    ):
        assert batch_schedule(tokens) == ranges


def test_weights_in_a_file_of_our_own_are_read_by_no_engine():
    for drafter in ("eagle", "medusa", "mlp_speculator"):
        found = recommend([measured(drafter)])
        assert found.verdict.startswith(f"No engine offers {drafter} as it was measured. It would pay: ")
        assert "specdec's own file, which nothing exports" in found.configurations[0].line
    other = recommend([measured("eagle", form="speculators eagle")]).configurations[0]
    assert "the checkpoint has the format speculators eagle, and this engine reads EAGLE-1, EAGLE-3" in other.line


@pytest.mark.parametrize(
    ("speedup", "says"),
    [
        (Interval(1.1, 0.9, 1.3), "Leave speculation off, unless more prompts show that it is faster: ngram with"),
        (Interval(0.9, 0.8, 0.95), "Leave speculation off: ngram with drafts of 4 tokens is 0.900 (0.800 to 0.950)"),
        (Interval(2.0), "No recommendation: ngram with drafts of 4 tokens is 2.000 times as fast as plain decoding, a"),
    ],
)
def test_what_is_not_shown_to_pay_is_left_off(speedup, says):
    found = recommend([measured("ngram", speedup=speedup)])
    assert found.verdict.startswith(says) and f"{speedup} times" in found.verdict
    assert not found.configurations and len(found.lines()) == 1
    lower, sure = (measured("ngram", speedup=Interval(*each)) for each in ((1.15, 1.12, 1.2), (1.2, 1.1, 1.3)))
    best = recommend([measured("ngram", speedup=speedup), lower, sure]).verdict
    assert "1.200 (1.100 to 1.300)" in best and ", the best of 3 depths, is" in best
    table = measured("ngram", target__name="table")
    assert recommend([table]).verdict == "No recommendation: no engine is known to speculate with such a target."
    simulated = Measured(table.params, 4, 4, PAYS, simulated=True)
    assert recommend([simulated]).verdict == "No recommendation: time was simulated by a cost model."


def test_what_was_measured_otherwise_is_said():
    def remarks(one: Measured) -> str:
        return " ".join(recommend([one]).section().text)

    lossy = remarks(replace(measured("ngram", verifier__name="typical"), lossless=False))
    assert "`verifier=typical` was measured, which changes the text" in lossy
    assert "specdec measured this in its own loop on EPYC, not in these engines" in lossy
    assert "one sequence at a time" in lossy and "temperature" not in lossy
    several = remarks(measured("ngram", measurement__batch_size=8, sampling__temperature=0.7))
    assert "with up to 8 sequences at once" in several and "at temperature 0.7" in several
    pocket = measured("small_model", target__model="pocket", drafter__model="pocket")
    found = recommend([pocket])
    assert shlex.split(found.configurations[0].command)[2] == "MODEL"
    assert '"model": "DRAFT_MODEL"' in found.configurations[0].command and "pocket" not in "".join(found.lines())
    assert "**A demonstration of the tool, evidence of nothing else**" in remarks(pocket)
    assert "demonstration" not in remarks(measured("small_model"))
    tree = recommend([measured("small_model", "dynamic", nodes=8, **SAMPLED)]).configurations
    assert any("sampled ones were measured" in remark for remark in tree[1].remarks)
    assert any("verifies chains only; trees of 8 nodes and 4 levels" in remark for remark in tree[0].remarks)


@pytest.mark.parametrize(
    ("tile", "slots", "says"),
    [
        # A step of B requests with drafts takes the 5 B tokens of a call and a draft of 0.2, for 3 B tokens.
        (1000, None, "it pays with up to 64 requests at once, the most that they tell of; memory is taken to limit"),
        (16, None, "it pays with up to 8 requests at once; memory is taken"),  # 5 B / 16 + 0.2 = 3 at B = 9
        (4, None, "it pays with up to 2 requests at once"),  # 5 B / 4 + 0.2 = 3 at B = 2.2
        # 500 / (100 / 2 + 5) run, at 2.5 times the pace of plain requests, of which 10,000 / 51 run
        (1000, [10000, 500], "it pays with up to 22 requests at once; memory admits 9 requests with the drafter, 196"),
        (1000, [500, 500], "it pays with up to 64 requests at once, the most that they tell of; memory admits 9"),
    ],
)
def test_load_and_memory_are_those_of_the_forecast(tile, slots, says):
    calls = {n: max(1.0, n / tile) for n in (*range(1, 17), 32, 64)}
    one = measured("ngram", speedup=Interval(2.5 if tile > 4 else 3 / 1.45, 1.4, 3.0), measurement__server_slots=slots)
    found = recommend([replace(one, alone=Alone(calls, tokens=3.0, offered=4.0, prompt=0.0, output=100.0))])
    assert f"By the times of calls on one sequence {says}" in found.lines()[0] and found.load in found.section().text
    (line, *_), again = found.lines(said=True), found.lines()[0]
    assert "Speculate" not in line and found.load in line and "Speculate" in again
    narrow = replace(one, alone=Alone({1: 1.0, 5: 1.1}, tokens=3.0, offered=4.0, prompt=200.0, output=100.0))
    assert recommend([narrow]).load.startswith("For one request at a time: ")
    if slots is None:
        assert "measurement.server_slots=[WITHOUT,WITH]" in found.load
