"""Leftovers of a kill on disk: torn lines, files that cannot be read, one half of a prompt, the same prompt twice."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specdec.experiment import results
from specdec.experiment.recovery import recovered_results
from specdec.experiment.results import DonePrompt, ResultsFolder, read_done

ROUNDS = 3  # of a generation


@pytest.fixture(autouse=True)
def each_prompt_at_once(monkeypatch):
    monkeypatch.setattr(results, "_KEPT_S", -1.0)


def rounds_of(prompt, method):
    lines = [{"method": method, "gamma": 1, "repeat": 0, "prompt": prompt, "round": each} for each in range(ROUNDS)]
    return pa.Table.from_pylist(lines, schema=results._SCHEMA)


def add(folder: ResultsFolder, place: int, *, done: bool = True) -> None:
    """Append a prompt that two methods have decoded."""
    prompt = f"p{place}"
    methods = ("baseline", "ngram")
    lines = [{"method": method, "gamma": 1, "repeat": 0, "prompt": prompt, "text": "…"} for method in methods]
    record = DonePrompt(prompt, 0, place, (1, 2), {"compared": ["ngram"]}) if done else None
    folder.append([rounds_of(prompt, method) for method in methods], lines, record)


def prompts_in(folder):
    """Return the prompts of rounds, generations and done lines, in their order; rounds once for each generation."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("rounds/part-*.parquet"))]
    if (folder / "rounds.parquet").is_file():
        tables.append(pq.read_table(folder / "rounds.parquet"))
    names = pa.concat_tables(tables)["prompt"].to_pylist()
    lines = (folder / "generations.jsonl").read_text().splitlines()
    return (
        names[::ROUNDS],
        [json.loads(line)["prompt"] for line in lines],
        [each.prompt for each in read_done(folder)[0]],
    )


@pytest.fixture
def folder(tmp_path):
    """Three prompts that are done."""
    made = ResultsFolder(tmp_path)
    for place in range(3):
        add(made, place)
    return tmp_path


def twice(*names):
    return [name for name in names for _ in range(2)]


def kept(folder):
    """Recover the folder, check that its files agree, and return the prompts that are kept and what was dropped."""
    found = recovered_results(folder)
    names = [done.prompt for done in found.prompts.values()]
    assert prompts_in(folder) == (twice(*names), twice(*names), names)
    again = recovered_results(folder)
    assert again.prompts == found.prompts and again.dropped == ()
    return names, found.dropped


def test_whole_prompts_stay(folder):
    assert kept(folder) == (["p0", "p1", "p2"], ())
    assert len(list(folder.glob("rounds/part-*"))) == 3, "nothing was written again"


@pytest.mark.parametrize("name", ["generations.jsonl", "part-done.jsonl"])
def test_a_torn_line_is_dropped_with_its_prompt(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-20])
    assert kept(folder) == (["p0", "p1"], (f"1 broken line of {name}", "the results of 1 unfinished prompt"))


def test_rounds_without_generations_are_dropped(folder):
    (folder / "generations.jsonl").write_text("".join((folder / "generations.jsonl").open().readlines()[:4]))
    assert kept(folder) == (["p0", "p1"], ("the results of 1 unfinished prompt",))


def test_a_part_that_cannot_be_read_is_dropped_with_its_prompt(folder):
    part = folder / "rounds/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:100])
    said = ("part-00001.parquet, which cannot be read", "the results of 1 unfinished prompt")
    assert kept(folder) == (["p0", "p2"], said)


def test_a_prompt_that_was_not_finished_is_dropped(folder):
    add(ResultsFolder(folder), 3, done=False)
    assert kept(folder) == (["p0", "p1", "p2"], ("the results of 1 unfinished prompt",))


def test_a_hole_is_filled_in_the_order_of_the_run(folder):
    (folder / "rounds/part-00001.parquet").unlink()
    assert kept(folder)[0] == ["p0", "p2"]
    made = ResultsFolder(folder)
    add(made, 3)
    add(made, 1)
    made.compact()
    assert prompts_in(folder) == (
        twice("p0", "p1", "p2", "p3"),
        twice("p0", "p1", "p2", "p3"),
        ["p0", "p1", "p2", "p3"],
    )


def test_a_kill_while_part_files_are_joined_doubles_nothing(folder):
    shutil.copytree(folder / "rounds", folder / "kept")
    ResultsFolder(folder).compact()
    shutil.copytree(folder / "kept", folder / "rounds")
    assert kept(folder) == (["p0", "p1", "p2"], ())


def test_an_ended_run_goes_on_from_its_joined_table(folder):
    ResultsFolder(folder).compact()
    assert kept(folder) == (["p0", "p1", "p2"], ())
    assert not (folder / "rounds.parquet").exists()
    made = ResultsFolder(folder)
    add(made, 3)
    made.compact()
    assert prompts_in(folder)[0] == twice("p0", "p1", "p2", "p3")


def write_together(folder):
    writers = [ResultsFolder(folder, "a"), ResultsFolder(folder, "b")]
    for place in (1, 0, 3, 2):
        add(writers[place % 2], place)
    for writer in writers:
        writer.close()


def test_several_writers_are_joined_in_the_order_of_the_run(tmp_path):
    write_together(tmp_path)
    ResultsFolder(tmp_path).compact()
    names = ["p0", "p1", "p2", "p3"]
    assert prompts_in(tmp_path) == (twice(*names), twice(*names), names)
    assert {path.name for path in tmp_path.iterdir()} == {"rounds.parquet", "generations.jsonl", "part-done.jsonl"}


def test_several_writers_that_were_killed_lose_their_last_prompt_only(tmp_path):
    write_together(tmp_path)
    (tmp_path / "part-done-b.jsonl").write_bytes((tmp_path / "part-done-b.jsonl").read_bytes()[:-5])
    found = recovered_results(tmp_path)
    assert [done.prompt for done in found.prompts.values()] == ["p0", "p1", "p2"]
    add(ResultsFolder(tmp_path), 3)
    ResultsFolder(tmp_path).compact()
    assert prompts_in(tmp_path)[0] == twice("p0", "p1", "p2", "p3")
