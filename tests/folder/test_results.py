"""A run's results on disk: part-files of some prompts, what a kill leaves of them, and the tables they make."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specdec.analysis.read.facts import RunStatus
from specdec.errors import UsageError
from specdec.folder import results
from specdec.folder.results import DonePrompt, ResultsFolder, drop_unreadable, finished_prompts
from specdec.folder.rounds_table import SCHEMA

ARMS = (("baseline", 0), ("ngram", 2), ("ngram", 4))
ROUNDS = 3  # of a generation
pytestmark = pytest.mark.usefixtures("each_prompt_at_once")


def rounds_of(prompt):
    lines = [
        {"method": method, "gamma": gamma, "repeat": 0, "prompt": prompt, "round": number}
        for method, gamma in ARMS
        for number in range(ROUNDS)
    ]
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def add(folder: ResultsFolder, place: int, *, done: bool = True) -> None:
    """Append a prompt that all methods have decoded, or that one of them failed at."""
    prompt = f"p{place}"
    lines = [{"method": method, "gamma": gamma, "repeat": 0, "prompt": prompt, "text": "…"} for method, gamma in ARMS]
    record = DonePrompt(prompt, 0, place, (1, 2), {"compared": ["ngram"]}) if done else None
    folder.append([rounds_of(prompt)], lines, record)


def joined(folder):
    """Return the prompts of the joined rounds and of the generations, in their order, each once for all methods."""
    ResultsFolder(folder).compact()
    rounds = pq.read_table(folder / "rounds.parquet")["prompt"].to_pylist()
    lines = [json.loads(line)["prompt"] for line in (folder / "generations.jsonl").read_text().splitlines()]
    assert rounds[::ROUNDS] == lines and lines == [prompt for prompt in lines[:: len(ARMS)] for _ in ARMS]
    return lines[:: len(ARMS)]


def finished(folder):
    return [done.prompt for done in finished_prompts(folder).values()]


@pytest.fixture
def folder(tmp_path):
    """Three prompts that are done."""
    made = ResultsFolder(tmp_path)
    for place in range(3):
        add(made, place)
    return tmp_path


@pytest.mark.parametrize("block", [10, 1_000])
def test_a_long_table_has_row_groups_of_one_arm_each(tmp_path, monkeypatch, block):
    monkeypatch.setattr(results, "_KEPT_S", 1_000)
    monkeypatch.setattr(results, "_PART", 5)
    monkeypatch.setattr(results, "_BLOCK", block)
    folder = ResultsFolder(tmp_path)
    for number in range(4):
        add(folder, number, done=False)
    folder.compact()
    folder.finish()
    file = pq.ParquetFile(tmp_path / "rounds.parquet")
    groups = [
        file.read_row_group(number).select(["method", "gamma"]).to_pylist() for number in range(file.num_row_groups)
    ]
    arms = [{(line["method"], line["gamma"]) for line in group} for group in groups]
    assert arms == ([{arm} for arm in ARMS] * 2 if block == 10 else [set(ARMS)])
    found = file.read().select(["method", "gamma", "prompt", "round"]).to_pylist()
    written = [line for number in range(4) for line in rounds_of(f"p{number}").select(list(found[0])).to_pylist()]
    assert sorted(map(str, found)) == sorted(map(str, written))
    assert not (tmp_path / "rounds").exists()


def test_prompts_of_the_same_second_share_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_KEPT_S", 1_000)
    made = ResultsFolder(tmp_path)
    for place in range(3):
        add(made, place)
    assert finished(tmp_path) == ["p0"], "the others wait"
    made.close()
    assert finished(tmp_path) == joined(tmp_path) == ["p0", "p1", "p2"]
    assert len(list(tmp_path.glob("rounds/part-*"))) == 2


def test_a_file_that_was_not_written_to_its_end_is_dropped(folder):
    part = folder / "rounds/part-00001.parquet"
    part.rename(part.with_suffix(".tmp"))
    assert finished(folder) == ["p0", "p2"] and drop_unreadable(folder) == []
    assert not list(folder.glob("rounds/*.tmp"))
    add(ResultsFolder(folder), 1)
    assert joined(folder) == ["p0", "p1", "p2"], "a hole is filled in the order of the run"


def test_a_file_that_the_disk_has_damaged_is_dropped_and_named(folder):
    part = folder / "rounds/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert drop_unreadable(folder) == ["part-00001.parquet"]
    assert finished(folder) == ["p0", "p2"]


def test_the_rounds_of_a_prompt_that_failed_stand_last_until_it_is_decoded_again(tmp_path):
    for _ in range(2):  # it fails twice
        made = ResultsFolder(tmp_path)
        add(made, 0, done=False)
        assert finished(tmp_path) == [] and joined(tmp_path) == ["p0"]
    add(made, 1)
    assert finished(tmp_path) == ["p1"] and joined(tmp_path) == ["p1", "p0"]
    add(ResultsFolder(tmp_path), 0)
    assert finished(tmp_path) == joined(tmp_path) == ["p0", "p1"]


def test_a_prompt_that_stands_in_two_files_is_taken_once(folder):
    shutil.copy(folder / "rounds/part-00001.parquet", folder / "rounds/part-00007.parquet")
    assert finished(folder) == joined(folder) == ["p0", "p1", "p2"]


def test_several_writers_are_joined_in_the_order_of_the_run(tmp_path):
    writers = [ResultsFolder(tmp_path, "a"), ResultsFolder(tmp_path, "b")]
    for place in (1, 0, 3, 2):
        add(writers[place % 2], place)
    for writer in writers:
        writer.close()
    assert finished(tmp_path) == joined(tmp_path) == ["p0", "p1", "p2", "p3"]
    assert {path.name for path in tmp_path.iterdir()} == {"rounds.parquet", "generations.jsonl", "rounds"}
    add(ResultsFolder(tmp_path, "a"), 4)
    assert joined(tmp_path)[-1] == "p4"


def test_a_part_of_an_earlier_version_is_left_to_that_version(tmp_path):
    ResultsFolder(tmp_path)
    pq.write_table(rounds_of("p0"), tmp_path / "rounds/part-00000.parquet")
    with pytest.raises(UsageError, match="is of an earlier version of specdec"):
        finished_prompts(tmp_path)
    assert drop_unreadable(tmp_path) == [] and (tmp_path / "rounds/part-00000.parquet").exists()


def test_the_status_is_read_back_and_replaced_as_a_whole(tmp_path):
    folder = ResultsFolder(tmp_path)
    assert RunStatus.read(tmp_path) is None
    folder.write_status("running", "", 3, 8)
    folder.write_status("killed", "Stopped by SIGTERM.", 4, 8)
    assert RunStatus.read(tmp_path) == RunStatus("killed", "Stopped by SIGTERM.", 4, 8)
    assert RunStatus.read(tmp_path).partial
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["status.json"]
    (tmp_path / "status.json").write_text('{"status": "run', encoding="utf-8")
    assert RunStatus.read(tmp_path) is None
