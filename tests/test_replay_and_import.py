"""One file of accepted lengths, replayed and imported: the same capped geometric, gap and verdict, intervals included;
and what a replay must not claim.
"""

import json

import numpy as np
import pytest
from fixtures.imported_folders import folder_of

from specdec.analysis.acceptance import model_sections as models
from specdec.analysis.acceptance.model_sections import model_sections
from specdec.analysis.account.run_account import account_sums
from specdec.analysis.account.verdicts import formula_verdict
from specdec.analysis.findings.foreign_sections import foreign_findings
from specdec.analysis.pages.report_chapters import run_chapters
from specdec.analysis.read.foreign.accepted_lengths import read as accepted_lengths
from specdec.analysis.read.imported import ImportChoices
from specdec.analysis.read.runs import open_folder

GAMMA = 3
QUICK = ("measurement.warmup_tokens=0", "measurement.bootstrap=50", "measurement.calibration_calls=1", "seed=0")


@pytest.fixture
def trace(tmp_path):
    """Twelve texts, easy and hard ones in turn, two closed by an end token, with lengths at every position."""
    generator = np.random.default_rng(5)
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        for number in range(12):
            size = int(generator.integers(15, 60))
            line = {
                "id": f"t{number:02}",
                "prompt_token_ids": [number, 1, 2],
                "generated_token_ids": generator.integers(0, 19, size).tolist() + [19],
                "finish": "end_token" if number < 2 else "length",
                "acc_x": {"acc_len": np.minimum(generator.geometric(0.15 + 0.7 * (number % 2), size + 1), 6).tolist()},
            }
            file.write(json.dumps(line) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_pictures")
def test_a_replay_and_an_import_of_one_file_say_the_same(command, trace, monkeypatch, tmp_path):
    arguments = ("+drafter=recorded", "target=replay", f"target.path={trace}", f"structure.gamma={GAMMA}", *QUICK)
    code, error = command(*arguments, "measurement.gammas=[1]", "measurement.max_new_tokens=100", "hydra.run.dir=out")
    assert code == 0, error
    replayed = open_folder(tmp_path / "out")
    monkeypatch.setattr(models, "REPLICATES", 50)
    monkeypatch.setattr(models, "REFITS", 5)
    (source,) = accepted_lengths(trace, ImportChoices(gamma=GAMMA))
    imported = foreign_findings(folder_of(source, tmp_path / "run", replicates=50))
    sentence = formula_verdict(account_sums(replayed).account())
    assert imported.sections[0].text[0] == f"**{sentence}**"
    assert "alpha 0." in sentence and "by more than chance" in sentence and "(" in sentence.split("error of")[1]
    assert sentence in replayed.summary()["notes"]
    curves = next(section for section in imported.sections if section.title == "Curves over gamma").tables[0][1]
    theirs = {line["gamma"].strip("*"): line["capped geometric"] for line in curves.to_dict("records")}
    for gamma, value in replayed.curves["curve/capped_geometric"].items():
        assert theirs[str(gamma)] == f"{value:.3f}"

    # Simulated figures say so wherever they stand, and nothing is claimed that recorded text cannot but give.
    (chapter,) = run_chapters([replayed])
    assert chapter.title.startswith("Simulated time (h100_llama31_8b)")
    titles = [section.title for section in chapter.sections]
    assert "Summary (simulated time)" in titles and "The gap, explained (simulated time)" in titles
    captions = [caption for section in chapter.sections for caption, _ in section.tables]
    assert captions and all(caption.startswith("Simulated: ") for caption in captions)
    assert "Simulated speedup" in chapter.sections[0].text[0]
    notes = " ".join(replayed.summary()["notes"])
    assert "recorded text can only be reproduced" in notes and "identical" not in notes
    assert not [name for name in replayed.metrics if name.startswith("lossless/")]
    assert "curve/replay" not in replayed.curves
    tests, _, prediction = model_sections(replayed)
    implementation = tests.tables[0][1].iloc[-1]
    assert "itself a replay of recorded text" in implementation["reading"]
    assert not any("replay" in str(model) for model in prediction.tables[0][1]["model"])
