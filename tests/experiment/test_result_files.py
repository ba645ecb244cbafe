"""The rounds table on disk: part-files of some prompts, joined at the end, a long one in row groups of one arm each."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specdec.analysis.read.facts import RunStatus
from specdec.experiment import results
from specdec.experiment.results import ResultsFolder

ARMS = (("baseline", 0), ("ngram", 2), ("ngram", 4))


def rounds_of(prompt):
    lines = [
        {"method": method, "gamma": gamma, "prompt": prompt, "round": number}
        for method, gamma in ARMS
        for number in range(3)
    ]
    return pa.Table.from_pylist(lines, schema=results._SCHEMA)


@pytest.mark.parametrize("block", [10, 1_000])
def test_a_long_table_has_row_groups_of_one_arm_each(tmp_path, monkeypatch, block):
    monkeypatch.setattr(results, "_PART", 5)
    monkeypatch.setattr(results, "_BLOCK", block)
    folder = ResultsFolder(tmp_path)
    for number in range(4):
        folder.append([rounds_of(f"p{number}")], [])
    folder.compact()
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


def test_the_status_is_read_back_and_replaced_as_a_whole(tmp_path):
    folder = ResultsFolder(tmp_path)
    assert RunStatus.read(tmp_path) is None
    folder.write_status("running", "", 3, 8)
    folder.write_status("killed", "Stopped by SIGTERM.", 4, 8)
    assert RunStatus.read(tmp_path) == RunStatus("killed", "Stopped by SIGTERM.", 4, 8)
    assert RunStatus.read(tmp_path).partial
    assert not list(tmp_path.glob("*.tmp"))
    (tmp_path / "status.json").write_text('{"status": "run', encoding="utf-8")
    assert RunStatus.read(tmp_path) is None
