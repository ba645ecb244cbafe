"""The study end to end on the table target: candidates, choices on one half, and what may be wrong."""

import json
from pathlib import Path

import pandas as pd
import pytest
from fixtures.small_parts import composed_values
from omegaconf import OmegaConf

from specdec.analysis.pages import notebook
from specdec.analysis.read.studies import finished_study, latest_study
from specdec.config import config_dir
from specdec.structures import structures
from specdec.text.streams import Stream, write_streams

SMALL = ("~study.drafters.mixed", "study.budgets=[2,6]", "study.depths=[2,4]", "study.calls=1", "study.probe_tokens=8")
TINY = ("equal_budget", "measurement.workers=1", "+debug=tiny", *SMALL)


@pytest.fixture
def recording(tmp_path):
    """Texts with a motif that comes again and again, and something else between."""
    path = tmp_path / "recorded.jsonl"
    motif = (1, 2, 3, 4, 5, 6)
    texts = [
        Stream(f"s{n}", "", (15 - n, *motif), sum(((*motif, 7 + (n + i) % 5) for i in range(6)), ()), ended=False)
        for n in range(5)
    ]
    write_streams(path, texts)
    return path


def tables_of(tmp_path):
    (folder,) = tmp_path.glob("outputs/*/*")
    return folder, {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}


@pytest.mark.slow
@pytest.mark.usefixtures("unwritten_pictures")
def test_recorded_streams_in_simulated_time(command, tmp_path, recording):
    target = ("target=replay", f"target.path={recording}", "prompts=recorded", "target.vocab_size=16")
    code, printed = command(*TINY, *target)
    assert code == 0, printed
    folder, tables = tables_of(tmp_path)
    replay = tables["replay"]
    rows = replay[(replay["shape"] == "rows") & (replay["budget"] == 6)]
    assert set(rows["variant"]) == {"2 x 3", "3 x 2", "6 x 1"}
    assert set(replay[replay["shape"] == "tree"]["made_on"]) == {0, 1}
    # Halves by turns, and the structures chosen on them: `test_candidates.py` has how.
    assert replay.groupby("prompt")["half"].first().to_dict() == {f"s{n}": n % 2 for n in range(5)}
    for row in tables["choices"].itertuples():
        shape = structures.build(json.loads(row.structure))
        assert shape.nodes == row.budget and shape.name == row.shape
    opened = finished_study(folder).findings()
    assert "simulated speedup" in opened.sections[1].text[0]
    chain = replay[(replay["shape"] == "chain") & (replay["budget"] == 6)]
    assert opened.metrics["budget/ngram.chain.tokens_per_call.6"] == pytest.approx(
        chain["tokens"].sum() / chain["rounds"].sum()
    )
    again = latest_study(f"sqlite:///{tmp_path / 'mlflow.db'}", "specdec", "equal_budget")
    assert again.metrics == opened.metrics
    (missing,) = notebook.study(f"sqlite:///{tmp_path / 'mlflow.db'}", "specdec", "grid")
    assert "no finished study 'grid'" in missing.text[0] and "+experiment=ngrammys_grid" in missing.text[0]


def test_the_live_overlay_compares_equal_budgets():
    overlay = OmegaConf.load(Path(config_dir()) / "experiment" / "chain_rows_tree.yaml")
    choices = [f"structure={name}" for name in overlay.hydra.sweeper.params.structure.split(",")]
    cells = [composed_values("+experiment=chain_rows_tree", choice) for choice in choices]
    shapes = [structures.build(cell["structure"]) for cell in cells]
    assert [shape.name for shape in shapes] == ["chain", "rows", "tree"]
    assert {shape.nodes for shape in shapes} == {32}
    assert overlay.drafter.context.q == "longest"
