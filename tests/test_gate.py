"""`python -m specdec.gate` on folders of runs and of imports: verdicts, exit codes, the golden folder, bad input."""

import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from fixtures.imported_folders import folder_of

from specdec import gate
from specdec.analysis.findings.drops import READ_FILES
from specdec.analysis.read.imported import ImportedText, imported

PROMPTS = [f"p{number:02}" for number in range(12)]
TIMES = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.02}
MACHINE = {"cpu": {"model": "AMD EPYC", "usable_cores": 2, "torch_threads": 2}}


@pytest.fixture
def written(make_rounds, tmp_path):
    """`written("later", chance=0.5)` is the folder of a run whose draft tokens are accepted with this chance."""

    def write(name, chance=0.8, seconds=0.02, prompts=PROMPTS, gamma=2, machine=MACHINE, seed=0):
        generator = np.random.default_rng(seed)
        uniform = {prompt: generator.random((30, gamma)) for prompt in prompts}
        accepted = {prompt: np.cumprod(u < chance, axis=1).sum(axis=1).tolist() for prompt, u in uniform.items()}
        drafted = make_rounds(accepted, gamma, durations=TIMES | {"round_s": seconds})
        plain = make_rounds({prompt: [0] * 30 for prompt in prompts}, 0, method="baseline", durations=TIMES)
        folder = tmp_path / name
        folder.mkdir()
        pd.concat([drafted, plain], ignore_index=True).to_parquet(folder / "rounds.parquet")
        config = f"drafter: {{name: ngram}}\nstructure: {{gamma: {gamma}}}\n"
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        (folder / "environment.json").write_text(json.dumps(machine), encoding="utf-8")
        (folder / "calibration.json").write_text("{}", encoding="utf-8")
        (folder / "report.md").write_text("what the gate does not read", encoding="utf-8")
        return folder

    return write


@pytest.fixture
def command(in_process, tmp_path):
    """`command(folder, ...)` runs specdec.gate; it gives exit code, both streams, and JUnit's outcome by figure."""

    def call(*arguments):
        ended = in_process(gate, *arguments, "--junit", tmp_path / "junit.xml")
        outcomes = {}
        if (tmp_path / "junit.xml").exists():
            suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
            outcomes = {case.get("name"): case[0].tag for case in suite}
            assert (suite.get("failures"), suite.get("tests")) == (str([*outcomes.values()].count("failure")), "2")
        return *ended, outcomes

    return call


def test_fewer_accepted_tokens_are_a_loss_of_both_figures_and_more_are_none(command, written):
    earlier, later = written("earlier"), written("later", chance=0.6)
    code, said, error, outcomes = command(earlier, later)
    assert code == 8 and error.startswith("specdec: Loss found after 1 of 1 candidate. Tokens per round: 2.353 before")
    assert outcomes == {"tokens per round": "failure", "speedup": "failure"} and "Paired on 12 prompts." in said
    code, _, error, outcomes = command(later, earlier)
    assert (code, error) == (0, "") and set(outcomes.values()) == {"system-out"}


def test_slower_rounds_are_a_loss_of_the_speedup_alone_and_only_on_one_machine(command, written):
    earlier = written("earlier")
    slow = command(earlier, written("slow", seconds=0.025))
    assert slow[0] == 8 and slow[3] == {"tokens per round": "system-out", "speedup": "failure"}
    elsewhere = {"cpu": {"model": "another", "usable_cores": 2, "torch_threads": 2}}
    code, said, _, outcomes = command(earlier, written("elsewhere", seconds=0.025, machine=elsewhere))
    assert code == 0 and outcomes["speedup"] == "skipped"
    assert "different machines (AMD EPYC with 2 cores, 2 threads; another with 2 cores, 2 threads)" in said


def test_candidates_are_pooled_until_a_loss_is_found_and_no_further(command, written):
    earlier, alike, worse = written("earlier"), written("alike", seed=1), written("worse", chance=0.4, seed=2)
    assert command(earlier, alike)[0] == 0
    unread = written("unread")
    (unread / "rounds.parquet").unlink()
    code, _, error, _ = command(earlier, alike, worse, unread)
    assert code == 8 and "Loss found after 2 of 3 candidates." in error
    assert command(earlier, alike, unread)[0] == 2


def test_other_prompts_are_compared_unpaired_and_it_is_said(command, written):
    others = [f"other {name}" for name in PROMPTS]
    code, said, _, _ = command(written("earlier"), written("later", prompts=others, seed=1))
    assert code == 0 and "Unpaired: none of the prompts is in both" in said


def test_a_golden_folder_has_what_the_gate_reads_and_nothing_else(command, written, tmp_path):
    run, golden = written("run"), tmp_path / "golden"
    assert "--update` makes it of a run" in command(golden, run)[2]
    assert command(golden, run, "--update")[0] == 0
    assert {path.name for path in golden.iterdir()} == {path.name for path in run.iterdir()} & {*READ_FILES}
    worse = written("worse", chance=0.5)
    code, said, _, outcomes = command(golden, run)
    assert code == 0 and outcomes["speedup"] == "skipped" and "both folders are of one run" in said
    assert command(golden, worse)[0] == 8
    assert command(golden, worse, "--update")[0] == 0 and command(golden, worse)[0] == 0
    code, _, error, _ = command(run, worse, "--update")
    assert code == 2 and "is no golden folder (report.md is there)" in error and (run / "report.md").exists()


@pytest.mark.parametrize("sums", [False, True])
def test_imports_are_judged_by_their_tokens_and_rounds(command, tmp_path, sums):
    def texts(chance, seed):
        generator = np.random.default_rng(seed)
        for prompt in PROMPTS:
            accepted = generator.binomial(3, chance, 40)
            whole = {"tokens": float(accepted.sum() + 40), "rounds": 40.0}
            yield ImportedText(prompt, "", **(whole if sums else {"accepted": accepted, "offered": [3] * 40}))

    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, chance in zip(folders, (0.7, 0.7, 0.4), strict=True):
        folder_of(imported(tmp_path / "log", "vllm", 3, [*texts(chance, len(folder.name))], ()), folder)
    code, said, _, outcomes = command(*folders[:2])
    assert code == 0 and outcomes == {"tokens per round": "system-out", "speedup": "skipped"}
    assert "has no timed plain decoding beside the drafter" in said
    assert command(folders[0], folders[2])[0] == 8


def test_refuted_outputs_are_no_candidate(command, finished_run, tmp_path):
    run = shutil.copytree(finished_run("chain"), tmp_path / "run")
    session = json.loads((run / "session.json").read_text(encoding="utf-8"))
    (run / "session.json").write_text(json.dumps(session | {"unexplained": 1}), encoding="utf-8")
    code, _, error, _ = command(run, run)
    assert code == 6 and "Outputs refuted" in error


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({"prompts": PROMPTS[:3]}, (), "3 prompts are too few for a verdict, which needs 5; run both on more prompts."),
        ({"gamma": 3}, (), "do not compare: give --gamma"),
        ({}, ("--gamma", "5"), "has no drafts of 5 tokens: leave --gamma out for those of 2."),
        ({}, ("--false-alarms", "1"), "--false-alarms is a chance"),
        ({}, ("--tolerance", "-0.1"), "--tolerance is a share"),
        ({}, ("later", "--update"), "--update keeps one run"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(command, written, change, options, sentence):
    code, _, error, outcomes = command(written("earlier"), written("later", **change), *options)
    assert (code, outcomes) == (2, {}) and sentence in error and error.count("\n") == 1


def test_a_file_is_to_be_imported_first(command, written, tmp_path):
    (tmp_path / "log.json").write_text("{}", encoding="utf-8")
    code, _, error, _ = command(written("earlier"), tmp_path / "log.json")
    assert code == 2 and "`python -m specdec.report --import auto" in error
