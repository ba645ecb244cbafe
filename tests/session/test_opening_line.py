"""The first line of a run: each fact that it names, and the reason for the number format."""

import json
from dataclasses import replace

import pytest
import torch
from fixtures.gguf_files import write_gguf_model
from fixtures.resumed_runs import config_of
from fixtures.small_parts import composed

from specdec.plan.plan import plan
from specdec.session.experiment import opening_line


def line(*overrides: str, budget: float | None = None) -> str:
    return opening_line(replace(plan(composed("+drafter=ngram", *overrides)), budget_seconds=budget))


@pytest.fixture
def native(processor, monkeypatch):
    """`native(*names)` makes a processor of one thread that computes in these formats besides float32 and float64."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return lambda *names: processor({"avx512_bf16": "bfloat16" in names, "avx512_fp16": "float16" in names})


def test_the_default_command_in_one_line(native):
    native("bfloat16")
    assert line("target.device=cpu", budget=90.0) == (
        "ngram on pocket in bfloat16 (the model's own, in which this machine computes), on cpu (1 thread); at most 18 "
        "prompts of stdlib_mix, 128 tokens each; gamma 1, 2, 3, 4, 6, 8; time budget 90 s until the last prompt is "
        "decoded (measurement.budget_seconds; null: no bound)."
    )


def test_the_threads_are_those_that_the_run_will_set(native):
    native()
    assert "on cpu (3 threads)" in line("target.device=cpu", "measurement.threads=3")


@pytest.mark.parametrize(
    ("formats", "overrides", "said"),
    [
        ((), (), "pocket in float32 (this machine would emulate bfloat16, the model's own), on"),
        ((), ("target.dtype=bfloat16",), "pocket in bfloat16 (as target.dtype says), on"),
        (("bfloat16",), ("target.model=some/model",), "some/model in the model's own number format (float32 where"),
    ],
)
def test_the_number_format_has_its_reason(native, formats, overrides, said):
    native(*formats)
    assert said in line("target.device=cpu", *overrides)


def test_a_folder_says_its_own_format_by_either_key(native, tmp_path):
    native("bfloat16", "float16")
    (tmp_path / "tokenizer.json").touch()  # looked for, and not read, before a model is loaded
    for key in ("dtype", "torch_dtype"):
        (tmp_path / "config.json").write_text(json.dumps({key: "float16"}))
        assert f"{tmp_path} in float16 (the model's own" in line("target.device=cpu", f"target.model={tmp_path}")
    for broken in ("[1]", "{", '{"dtype": "half-baked"}', '{"dtype": "nn"}'):
        (tmp_path / "config.json").write_text(broken)
        assert "in the model's own number format (" in line("target.device=cpu", f"target.model={tmp_path}")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("Q4_1", "float32 (to which the Q4_1 weights of its file are dequantised)"),
        ("F16", "float16 (the model's own, in"),
    ],
)
def test_a_gguf_file_says_what_its_weights_become(native, gguf_llama, tmp_path, form, said):
    pytest.importorskip("gguf", reason="GGUF files are read with gguf: pip install -e '.[gguf]'")
    native("float16")
    path = write_gguf_model(tmp_path / "m.gguf", gguf_llama(), form)
    assert f"m.gguf in {said}" in line("target.device=cpu", f"target.model={path}")


def test_other_shapes_lengths_and_drafters_are_named():
    said = line(
        "structure=rows", "structure.w=5", "measurement.gammas=[2]", "measurement.repeats=3", "prompts.limit=null",
        "measurement.drafters=[suffix,ngram]", "measurement.max_new_tokens=7",
    )  # fmt: skip
    assert said.startswith("ngram, suffix on pocket in ")
    assert said.endswith("; all prompts of stdlib_mix, 3 times, 7 tokens each; rows, depth 2, 5; no time budget.")


def test_a_target_without_a_model_is_named_by_its_kind():
    assert opening_line(plan(config_of("+drafter=ngram"))).startswith("ngram on table; ")
