"""The dtype that models compute in, on processors that compute in bfloat16 and on others: what is recorded of it, what
is said, and what makes two runs the same measurement.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.resumed_runs import config_of

from specdec.config import flattened
from specdec.folder.identity import differences
from specdec.plan.plan import plan
from specdec.session.identify import identify, run_facts
from specdec.session.kept_answers import key_of, keyed_by
from specdec.session.parts import Parts, open_parts

VOCABULARY = 11
EMULATED = "arithmetic and would emulate it slowly: float32 is used instead."


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_llama) -> Path:
    """A checkpoint in bfloat16."""
    path: Path = tmp_path_factory.mktemp("models") / "stored"
    tiny_llama(VOCABULARY).bfloat16().save_pretrained(path)
    return path


def made(folder: Path, *overrides: str, drafter: str = "small_model") -> Parts:
    model = f"drafter.of.model={folder}" if drafter == "staged" else f"drafter.models=[{folder},{folder}]"
    if drafter in ("small_model", "parallel", "model_bigram"):
        model = f"drafter.model={folder}"
    config = config_of(
        *(f"+drafter={drafter}", model, "target=causal", f"target.model={folder}", "target.device=cpu"),
        *("target.compile=false", "prompts=tokens", "prompts.tokens=[[1,2,3,1,2]]", *overrides),
    )
    return open_parts(plan(config))


def dtypes_of(described: dict[str, Any]) -> set[str]:
    return {value for name, value in flattened(described).items() if name.rpartition(".")[2] == "dtype"}


@pytest.mark.parametrize(
    ("drafter", "more", "native"),
    [
        ("small_model", (), True),
        ("small_model", (), False),
        ("spec_tree", (), False),
        ("staged", ("drafter.structure.gamma=2",), False),
        ("parallel", ("drafter.mask_token=0",), False),
        ("model_bigram", ("drafter.cache_dir=null", "structure=chain"), False),
    ],
)
def test_every_model_computes_in_the_arithmetic_of_the_processor(folder, processor, drafter, more, native):
    processor({"avx512_bf16": native})
    parts = made(folder, *more, drafter=drafter)
    used = "bfloat16" if native else "float32"
    assert dtypes_of(parts.target.describe()) == dtypes_of(parts.chosen.drafter.describe()) == {used}
    recorded = identify(parts)
    model = recorded.environment["model"]
    assert (model["dtype"], model["dtype_asked"]) == (used, "auto (bfloat16)")
    assert (recorded.params["target.dtype"], recorded.params["target.dtype_asked"]) == (used, "auto")
    assert recorded.params["target.device"] == "cpu" and recorded.params["target.attention"] in ("sdpa", "eager")
    (key,) = (name for name in recorded.params if name.startswith("drafter.") and name.endswith("dtype"))
    assert (recorded.params[key], recorded.params[f"{key}_asked"]) == (used, "auto")
    notes = [note for note in run_facts(parts).notes if "arithmetic" in note]
    assert notes == ([] if native else [f"Target and drafter: This processor has no bfloat16 {EMULATED}"])
    assert ("dtype_reason" in model) == (not native)


def test_a_dtype_that_is_named_is_obeyed_and_said_to_be_emulated(folder, processor):
    processor({"avx512_bf16": False})
    parts = made(folder, "target.dtype=bfloat16")
    assert parts.target.model.dtype == torch.bfloat16 and parts.chosen.drafter.describe()["dtype"] == "float32"
    emulates = "This processor has no bfloat16 arithmetic and emulates it slowly, as dtype=bfloat16 asks for"
    said = [note for note in run_facts(parts).notes if "arithmetic" in note]
    assert len(said) == 2 and said[0].startswith(f"Target: {emulates}") and said[1].endswith(EMULATED)
    assert identify(parts).environment["model"]["dtype_asked"] == "bfloat16"
    processor({"avx512_bf16": True})
    assert not [note for note in run_facts(made(folder, "target.dtype=bfloat16")).notes if "arithmetic" in note]


def test_another_processor_makes_another_measurement(folder, processor):
    """The same configuration: runs in bfloat16 and in float32 are not gone on with, nor taken for one another."""
    found = {}
    for native in (True, False):
        processor({"avx512_bf16": native})
        parts = made(folder)
        found[native] = identify(parts), key_of(keyed_by(parts))
    (first, first_key), (second, second_key) = found[True], found[False]
    assert first.cell != second.cell and first_key != second_key
    assert differences(first.environment["identity"], second.environment["identity"]) == [
        "content: drafter.dtype bfloat16 -> float32",
        "content: model.dtype bfloat16 -> float32",
    ]


def test_advice_does_not_depend_on_how_a_dtype_was_asked_for(folder, processor):
    processor({"avx512_bf16": False})
    keys = {key_of(keyed_by(made(folder, f"target.dtype={asked}"))) for asked in ("auto", "float32")}
    assert len(keys) == 1
