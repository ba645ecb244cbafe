"""The shipped heads and feature drafter are what their card says, and belong to the shipped target."""

import csv
import json

import pytest
import torch
from fixtures.trainings import beginnings

from specdec.published.network_files import TRAINED_EAGLE, TRAINED_HEADS, shipped_file
from specdec.targets import targets
from specdec.training.pocket.publish import shipped_name
from specdec.training.students.accuracy import HeadAccuracy
from specdec.training.students.eagle_student import EagleStudent
from specdec.training.students.head_student import HeadStudent

NAMES = ("medusa", "grounded")
SHIPPED = (*NAMES, "eagle")
FOLDER = shipped_file("medusa").parent


@pytest.fixture(scope="module")
def target(group_values, sampling):
    config = group_values("target", "causal", dtype="float32", compile=False)
    return targets.build(config, sampling=sampling(temperature=0.0))


def summary(name: str) -> dict:
    return json.loads((FOLDER / f"summary_{name}.json").read_text(encoding="utf-8"))


def test_together_at_most_16_megabytes():
    assert {file.stem for file in FOLDER.glob("*.safetensors")} == set(SHIPPED)
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 16e6
    assert shipped_file("eagle").stat().st_size <= 4e6


@pytest.mark.parametrize("name", SHIPPED)
def test_card_history_and_file_agree_with_the_summary(name):
    told = summary(name)
    stored = TRAINED_EAGLE.read(shipped_file("eagle")) if name == "eagle" else TRAINED_HEADS.read(shipped_file(name))
    assert told["recipe"]["eagle" if name == "eagle" else "heads"]["name"] == stored.config.name
    assert shipped_name(told) == name
    assert told["target"] == stored.target
    assert told["bytes"] == shipped_file(name).stat().st_size
    assert name == "eagle" or told["seconds"] < 20 * 60, "a head is to be trained in under 20 minutes"
    rows = list(csv.DictReader((FOLDER / f"history_{name}.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(1, told["steps"] + 1))


@pytest.mark.slow
def test_accuracies_are_those_of_the_card(target):
    tokens = beginnings(target.tokenizer, 40)
    states = target.hidden.sequence(tokens, 0)[0].clone()
    scored = torch.ones_like(tokens, dtype=torch.bool)
    first = {}
    for name in NAMES:
        heads = TRAINED_HEADS.load(shipped_file(name), target)
        counted = HeadAccuracy(len(heads))
        HeadStudent.count(counted, heads, states, tokens, scored)
        found = counted.metrics()
        for head in range(1, len(heads) + 1):
            key = f"heldout/head_{head}.top1"
            # The beginnings of the files of another Python are not the whole text of the card's.
            assert found[key] == pytest.approx(summary(name)["heldout"][key], abs=0.07), (name, key)
        first[name] = found["heldout/head_1.top1"]
    assert first["grounded"] > first["medusa"] + 0.03, "the token between makes a difference"

    network = TRAINED_EAGLE.load(shipped_file("eagle"), target)
    counted = HeadAccuracy(3, "step")
    features = target.hidden.sequence(tokens, *network.config.offsets(target.hidden.layers))[0]
    EagleStudent.count(counted, network, features, tokens, scored)
    for step in (1, 2, 3):
        key = f"heldout/step_{step}.top1"
        # Attention copies what it has read, and the beginning of a file leaves it less to copy than the card's text.
        assert counted.metrics()[key] == pytest.approx(summary("eagle")["heldout"][key], abs=0.1), key
    assert counted.metrics()["heldout/step_1.top1"] > first["grounded"] + 0.03, "the tokens before make a difference"
