"""The shipped model that drafts in parallel is what its card says, and is the default of its drafter."""

import json
from pathlib import Path

import pytest
import torch
from fixtures.trainings import beginnings
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec.drafters.base import drafters
from specdec.models.load import load_model, model_path
from specdec.targets import targets
from specdec.training.recipes import SubtasksConfig
from specdec.training.students.parallel_student import DraftAccuracy, mask_rows, row_losses

FOLDER = Path(model_path("pocket", "parallel"))
SUMMARY = json.loads((FOLDER.parent / "summary_parallel.json").read_text(encoding="utf-8"))


def test_it_is_the_pocket_drafter_with_other_weights():
    first, second = (AutoModelForCausalLM.from_pretrained(FOLDER.parent / name, dtype="auto") for name in
                     ("drafter", "parallel"))  # fmt: skip
    assert second.dtype == torch.bfloat16 and second.config.vocab_size == first.config.vocab_size
    shapes = [{name: weight.shape for name, weight in model.state_dict().items()} for model in (first, second)]
    assert shapes[0] == shapes[1]
    assert sum(weight.numel() for weight in second.parameters()) == SUMMARY["parameters"]
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 3e6


def test_it_is_what_the_drafter_takes_by_default(group_values, sampling):
    target = targets.build(group_values("target", "causal", compile=False), sampling=sampling())
    drafter = drafters.build(group_values("drafter", "parallel"), target=target)
    told = drafter.describe()
    assert told["mask_token"] == SUMMARY["mask_token"] == SUMMARY["recipe"]["parallel"]["mask_token"]
    assert told["training"] == {name: float(SUMMARY[name]) for name in ("tokens", "seconds")}
    assert target.tokenizer.decode([told["mask_token"]]) == "\ufffd", "a byte that is no text"


@pytest.mark.slow
@torch.no_grad()
def test_accuracies_are_those_of_the_card():
    model = load_model(str(FOLDER), dtype=torch.float32, device=torch.device("cpu"), attention="auto", kind="causal")
    from_text = beginnings(AutoTokenizer.from_pretrained(model_path("pocket")), 16)
    config = SubtasksConfig(**SUMMARY["recipe"]["parallel"])
    generator = torch.Generator().manual_seed(0)
    accuracy = DraftAccuracy(config.ahead)
    for sequences in from_text.split(8):
        scored = torch.ones_like(sequences, dtype=torch.bool)
        rows = mask_rows(sequences, scored, config, SUMMARY["mask_token"], generator)
        mask = rows.attention({"full_attention": None}, model.dtype)
        nats, right = row_losses(model, rows.tokens, mask, rows.positions, rows.targets)
        accuracy.add(right, nats, rows)
    found = accuracy.metrics()
    for k in (1, 2, 3, 8):
        name = f"heldout/token_{k}.top1"
        # The beginnings of the files of another Python are not the whole text of the card's.
        assert found[name] == pytest.approx(SUMMARY["heldout"][name], abs=0.07), name
    tops = [found[f"heldout/token_{k}.top1"] for k in (1, 2, 4, 8)]
    assert tops == sorted(tops, reverse=True)
