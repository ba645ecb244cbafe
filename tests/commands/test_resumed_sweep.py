"""Sweeps that were interrupted and go on: what is kept, what runs again, what is refused. The cells are real, on the
table target; trainings have a stand-in.
"""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.resumed_runs import found

from specdec import run, train
from specdec.analysis.figures import style
from specdec.commands import sweep
from specdec.errors import Interrupted, Terminated, UsageError
from specdec.session.session import Session
from specdec.training import loop

PROMPTS = 2
SWEEP = (
    *("-m", "+drafter=ngram", "+debug=tiny", "measurement.bootstrap=20", "measurement.gammas=[]"),
    *("measurement.max_new_tokens=12", f"prompts.limit={PROMPTS}", "tracking.enabled=false"),
)


@pytest.fixture(autouse=True)
def light(monkeypatch, logging_as_before, each_prompt_at_once):
    """Every prompt at once on disk, no pictures, and handlers and signals as they were."""
    monkeypatch.setattr(style, "save", lambda *args, **keys: None)


@pytest.fixture
def decoded(monkeypatch):
    """Gamma of the cell and prompt of all that is decoded, in order; at `decoded.stop` of them a signal comes."""

    class Decoded(list):
        stop = None

    seen = Decoded()
    decode = Session.run_prompt

    def watched(session, prompt, *rest):
        if len(seen) == seen.stop:
            raise Terminated("Stopped by SIGTERM.")
        seen.append((session.parts.primary.gamma, prompt.id))
        return decode(session, prompt, *rest)

    monkeypatch.setattr(Session, "run_prompt", watched)
    return seen


def last(folder: Path) -> Path:
    return max(folder.glob("multirun/*/*"))


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "sweep.csv").open(encoding="utf-8")))


@pytest.mark.slow
def test_a_resumed_sweep_equals_an_uninterrupted_one_cell_for_cell(in_process, decoded, tmp_path):
    """Interrupted in its second cell; the same command goes on there."""
    arguments = (*SWEEP, "structure.gamma=1,2")
    assert in_process(run, *arguments, "hydra.sweep.dir=whole").code == 0
    whole, decoded[:] = list(decoded), []
    decoded.stop = PROMPTS + 1
    assert in_process(run, *arguments).code == 143
    killed = last(tmp_path)
    assert [line["exit code"] for line in table(killed)] == ["0", "143"]
    decoded.stop = None
    ended = in_process(run, *arguments)
    assert ended.code == 0 and f"Going on with the sweep in {killed}" in ended.error
    assert decoded == whole, "no prompt was decoded twice"
    assert last(tmp_path) == killed
    for cell in "01":
        assert found(killed / cell) == found(tmp_path / "whole" / cell)
    assert [line["fault"] for line in table(killed)] == ["kept: finished before", ""]
    same = [{key: line[key] for key in ("cell", "overrides", "tokens_per_round")} for line in table(killed)]
    assert same == [{key: line[key] for key in same[0]} for line in table(tmp_path / "whole")]
    # Who repeats a finished sweep wants a new one.
    decoded.stop = len(decoded)
    assert in_process(run, *arguments).code == 143 and last(tmp_path) != killed


@pytest.mark.slow
def test_a_sweep_of_other_cells_keeps_those_that_it_shares(in_process, decoded, tmp_path):
    """Hydra numbers the cells anew: gamma 1 was cell 0, and is cell 1 here."""
    assert in_process(run, *SWEEP, "structure.gamma=1,2", "hydra.sweep.dir=first").code == 0
    decoded.clear()
    before = {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()}
    assert in_process(run, *SWEEP, "structure.gamma=3,1", "resume=first").code == 0
    assert {gamma for gamma, _ in decoded} == {3}
    again = tmp_path / "first" / "again-2"
    assert [line["fault"] for line in table(again)] == ["", "kept: finished before"]
    outcome = json.loads((again / "1" / "cell.json").read_text())
    assert outcome["kept"] == str(tmp_path / "first" / "0") and outcome["results"]["tokens_per_round"] > 0
    assert before == {path: path.read_bytes() for path in before}, "nothing of the first sweep was touched"


@pytest.mark.slow
def test_failed_cells_run_again_and_died_ones_are_told_apart(in_process, decoded, tmp_path, monkeypatch):
    arguments = (*SWEEP, "structure.gamma=1,2")
    decode = Session.finish
    broken = [True]

    def finish(session, left_out):
        if broken[0] and session.parts.primary.gamma == 2:
            raise UsageError("The disk of this cell is gone.")
        decode(session, left_out)

    monkeypatch.setattr(Session, "finish", finish)
    assert in_process(run, *arguments).code == 3
    assert [line["fault"] for line in table(last(tmp_path))] == ["", "The disk of this cell is gone."]
    broken[0] = False
    decoded.clear()
    assert in_process(run, *arguments).code == 0
    assert decoded == [] and [line["exit code"] for line in table(last(tmp_path))] == ["0", "0"]


@pytest.mark.slow
def test_other_code_is_refused_with_what_differs(in_process, decoded, tmp_path, monkeypatch):
    decoded.stop = 1
    arguments = (*SWEEP, "structure.gamma=1,2")
    assert in_process(run, *arguments).code == 143
    killed = last(tmp_path)
    monkeypatch.setattr(sweep, "code_hash", lambda: "f" * 64)
    ended = in_process(run, *arguments, f"resume={killed}")
    assert ended.code == 2 and "was begun by other code" in ended.error and "-> ffffffffffff" in ended.error
    decoded.stop = len(decoded)
    ended = in_process(run, *arguments)
    assert ended.code == 143 and "was begun by other code" in ended.error and last(tmp_path) != killed


@pytest.mark.slow
def test_a_sweeps_folder_is_used_once(in_process, decoded, tmp_path):
    decoded.stop = 0
    arguments = (*SWEEP, "structure.gamma=1,2", "hydra.sweep.dir=here")
    assert in_process(run, *arguments).code == 143
    for more in (("resume=never",), ("seed=1",)):
        ended = in_process(run, *arguments, *more)
        assert ended.code == 2 and "here holds an unfinished sweep" in ended.error
    ended = in_process(run, *arguments, "resume=nowhere")
    assert ended.code == 2 and "Bad value resume=nowhere: there is no sweep in this folder" in ended.error


@pytest.fixture
def training(monkeypatch) -> Callable[[str, BaseException], None]:
    """A stand-in for training heads, which only makes its folder; `training("2", error)` lets heads.count=2 fail."""
    faults: dict[int, BaseException] = {}

    def trained(kind, values):
        folder = Path(values["output_dir"] or "models/heads/medusa")
        if values["heads"]["count"] in faults:
            raise faults[values["heads"]["count"]]
        assert not folder.exists(), "two cells write to one folder"
        folder.mkdir(parents=True)
        return loop.FinishedTraining(folder, {}, {"heldout/nats_per_token": 2.5}, "", "")

    monkeypatch.setattr(loop, "run", trained)
    return faults.__setitem__


TRAIN = ("-m", "+heads=medusa", "tracking.enabled=false")


@pytest.mark.slow
def test_cells_of_a_training_sweep_have_folders_of_their_own(in_process, training, tmp_path):
    assert in_process(train, *TRAIN, "heads.count=1,2").code == 0
    folders = tmp_path / "models" / "heads" / "medusa"
    assert {path.name for path in folders.iterdir()} == {"heads.count=1", "heads.count=2"}
    assert in_process(train, *TRAIN, "heads.count=3,4", "output_dir=own").code == 0
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"heads.count=3", "heads.count=4"}
    assert [line["heldout/nats_per_token"] for line in table(last(tmp_path))] == ["2.500", "2.500"]


@pytest.mark.slow
def test_a_signal_ends_a_training_sweep_with_its_own_code(in_process, training, tmp_path):
    training(2, Interrupted("Stopped at step 3."))
    ended = in_process(train, *TRAIN, "heads.count=1,2,3")
    assert ended.code == 130 and ended.error.endswith("specdec: Stopped at step 3.\n")
    assert [line["exit code"] for line in table(last(tmp_path))] == ["0", "130"]


def test_a_single_training_stays_in_its_usual_folder(in_process, training, tmp_path):
    assert in_process(train, *TRAIN[1:]).code == 0
    assert (tmp_path / "models/heads/medusa").is_dir()
    shutil.rmtree(tmp_path / "models")
