"""Finished trainings are copied to where they ship: the shipped files, published once more, are the same."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

import specdec
from specdec.errors import UsageError
from specdec.training.pocket.publish import publish

POCKET = Path(specdec.__file__).parent / "pocket"


@pytest.fixture
def training(tmp_path):
    """`training("heads", "medusa")`: a folder as the training of what ships under this name left it."""

    def make(below: str, name: str) -> Path:
        folder, source = tmp_path / f"training_{name}", POCKET / below
        folder.mkdir()
        for record in ("summary.json", "history.csv"):
            shutil.copy(source / record.replace(".", f"_{name}."), folder / record)
        if below:
            kind = "eagle" if name == "eagle" else "heads"
            shutil.copy(source / f"{name}.safetensors", folder / f"{kind}.safetensors")
        else:
            shutil.copytree(POCKET / {"unlikelihood": "target"}.get(name, name), folder / "model")
            shutil.copy(POCKET / "corpus.json", folder)
        return folder

    return make


def test_heads_and_a_feature_drafter_ship_together(training, tmp_path):
    publish([training("heads", name) for name in ("medusa", "grounded", "eagle")], tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        assert file.read_bytes() == (POCKET / "heads" / file.name).read_bytes(), file.name
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3


def test_models_ship_in_turn(training, tmp_path):
    out = tmp_path / "out"
    publish([training("", "target"), training("", "drafter")], out)
    assert "against the loops" not in (out / "MODEL_CARD.md").read_text(encoding="utf-8")
    for name in ("unlikelihood", "parallel"):
        publish([training("", name)], out)
    for place in (".", "parallel"):
        assert (out / place / "MODEL_CARD.md").read_bytes() == (POCKET / place / "MODEL_CARD.md").read_bytes()
    weights = {path.relative_to(out) for path in out.rglob("*.safetensors")}
    assert weights == {Path(role) / "model.safetensors" for role in ("target", "drafter", "parallel")}


def test_what_is_not_finished_or_does_not_belong_together_is_refused(training, tmp_path):
    with pytest.raises(UsageError, match=r"has no summary.json, so the training is not finished"):
        publish([tmp_path], tmp_path / "out")
    target, drafter = training("", "target"), training("", "drafter")
    with pytest.raises(UsageError, match="target do not ship together"):
        publish([target], tmp_path / "out")
    summary = json.loads((drafter / "summary.json").read_text(encoding="utf-8")) | {"corpus_sha256": "0" * 64}
    (drafter / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    with pytest.raises(UsageError, match="target, drafter differ in their text or target"):
        publish([target, drafter], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_its_command_refuses_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["publish", str(tmp_path / "unfinished"), str(tmp_path / "shipped")])
    monkeypatch.delitem(sys.modules, publish.__module__)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(publish.__module__, run_name="__main__")
    assert ended.value.code == 2 and not (tmp_path / "shipped").exists()
    assert capsys.readouterr().err.startswith(f"specdec: {tmp_path / 'unfinished'} has no summary.json")
