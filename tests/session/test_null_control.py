"""`measurement.null`: plain decoding measured twice, in turn with all else, and when it is so by itself."""

import json

import pandas as pd
import pytest

from specdec import run

CONTROL = "measurement.null"


@pytest.fixture
def command(in_process, undrawn_pictures, tmp_path):
    """`command(...)` runs specdec.run on the pocket target without a store; it gives the end and the folder."""

    def call(*arguments: str):
        quick = ("tracking.enabled=false", "measurement.bootstrap=100", f"hydra.run.dir={tmp_path / 'run'}")
        return in_process(run, "+drafter=ngram", *quick, *arguments), tmp_path / "run"

    return call


SMALL = ("+debug=tiny", "measurement.max_new_tokens=6", "structure.gamma=2")


@pytest.mark.slow
def test_a_control_writes_the_baselines_texts_and_one_sentence_says_its_speedup(command):
    prompts = [[number % 3, (number + 1) % 3, number % 2] for number in range(5)]
    ended, folder = command(*SMALL, "-v", f"{CONTROL}=true", f"prompts.tokens={prompts}".replace(" ", ""))
    assert ended.code == 0, ended.error
    lines = [json.loads(line) for line in (folder / "generations.jsonl").read_text().splitlines()]
    assert all(line["gamma"] == 0 and line["rounds"] == line["tokens"] for line in lines if line["method"] == "null")
    texts = {method: [] for method in ("baseline", "null", "ngram")}
    for line in lines:
        texts[line["method"]].append((line["prompt"], line["generated_token_ids"]))
    assert texts["null"] == texts["baseline"] and len(texts["null"]) == 5
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["null/floor"] >= 0 and summary["metrics"]["null/speedup"] > 0
    (note,) = [note for note in summary["notes"] if note.startswith("Null control")]
    assert " ".join(note.split()) in " ".join(ended.output.split())
    assert [arm["gamma"] for arm in summary["arms"]] == [1, 2]  # the control is no arm of the drafter


@pytest.mark.parametrize(("prompts", "controlled"), [(1, 1), (15, 2)])
def test_by_itself_it_takes_a_tenth_of_the_calls_at_most_and_leaves_no_prompt_out(command, prompts, controlled):
    """For a token the others make 1 + 1/3 calls at least, so that one of 7 prompts may have a control of one call."""
    texts = str([[number % 3, number // 3 % 3, number // 9] for number in range(prompts)]).replace(" ", "")
    ended, folder = command(*SMALL, "measurement.gammas=[]", "prompts.limit=null", f"prompts.tokens={texts}")
    assert ended.code == 0, ended.error
    lines = pd.DataFrame(map(json.loads, (folder / "generations.jsonl").read_text().splitlines()))
    assert lines["method"].value_counts().to_dict() == {"baseline": prompts, "null": controlled, "ngram": prompts}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["null/prompts"] == controlled and summary["metrics"]["prompts/done"] == prompts
    said = " ".join(summary["notes"])
    assert f"a second time on {controlled} prompt" in said and "too few prompts to say how large the noise is" in said
    if prompts > 1:
        calls = lines.groupby("method")["rounds"].sum()
        assert calls["null"] <= 0.1 * calls.sum()


def test_a_control_decodes_without_a_drafter(finished_run):
    rounds = pd.read_parquet(finished_run("sampled") / "rounds.parquet").set_index("method")
    assert (rounds.loc["null", ["gamma", "offered", "accepted"]] == 0).all(axis=None)
    assert (rounds.loc["null", "committed"] == 1).all() and rounds.loc["ngram", "offered"].any()


def test_time_that_is_simulated_has_no_control(command, tmp_path):
    record = {"prompt_token_ids": [1, 2], "generated_token_ids": [1, 2, 1, 2, 1, 2]}
    (tmp_path / "streams.jsonl").write_text(json.dumps(record) + "\n")
    ended, _ = command("target=replay", f"target.path={tmp_path / 'streams.jsonl'}", f"{CONTROL}=true")
    assert ended.code == 2 and "measurement.null=true" in ended.error and "no noise" in " ".join(ended.error.split())
