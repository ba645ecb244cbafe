"""Candidates of equal budgets, the halves of the prompts and the choice on one of them, against slow computations; and
the study end to end on recorded texts.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixtures.finished_runs import write_trace
from fixtures.small_parts import composed_values
from omegaconf import OmegaConf

from specdec import run
from specdec.analysis.pages import notebook
from specdec.analysis.read.find_runs import finished_study, latest_study
from specdec.config import config_dir
from specdec.replay.rank_accuracy import RankCounts
from specdec.structures import structures
from specdec.studies.base.contract import halves_of
from specdec.studies.base.live_runs import host_seconds
from specdec.studies.base.replayed import Strategy
from specdec.studies.equal_budget import EITHER, SHAPES, choose, plain_shapes, trees

SMALL = ("~study.drafters.mixed", "study.budgets=[2,6]", "study.depths=[2,4]", "study.calls=1", "study.probe_tokens=8")
TINY = ("+experiment=equal_budget", "measurement.workers=1", "+debug=tiny", *SMALL)
COUNTS = RankCounts((50, 30), ((20, 9, 4), (12, 5, 1)))


def test_every_candidate_of_a_budget_has_all_of_its_nodes_and_no_more():
    for n in (2, 3, 4, 6, 12):
        found = [*plain_shapes(n).values(), *trees(COUNTS, n, [1, 2, 3, 12]).values()]
        for values in found:
            structure = structures.build(values)
            # Three ranks are known: no node of a tree has more children.
            most = sum(3**level for level in range(1, structure.gamma + 1)) if values["name"] == "tree" else n
            assert structure.name == values["name"] and structure.nodes == min(n, most), values
        rows = [(values["k"], values["w"]) for values in found if values["name"] == "rows"]
        assert rows == [(k, w) for k in range(2, n + 1) for w in range(1, n) if k * w == n]
        assert {values["name"] for values in found} == set(SHAPES)


def test_all_turns_of_a_conversation_are_in_one_half():
    streams = [SimpleNamespace(id=name) for name in ("a", "b/turn1", "b/turn2", "b/turn3", "c", "d/turn1", "d/turn2")]
    halves = halves_of(streams)
    assert sorted(halves.values()) == [0, 0, 1, 1] and len(halves) == 4


@pytest.mark.parametrize("seed", range(3))
def test_a_half_chooses_by_its_own_texts_among_what_no_other_half_made(seed):
    generator = np.random.default_rng(seed)
    shapes = [(EITHER, n, each) for n in (4, 6) for each in plain_shapes(n).items()]
    shapes += [(half, n, each) for half in (0, 1) for n in (4, 6) for each in trees(COUNTS, n, [1, 2, 3]).items()]
    candidates = []
    for made_on, n, (variant, values) in shapes:
        keys = {"drafter": "x", "shape": values["name"], "budget": n, "variant": variant, "made_on": made_on}
        candidates.append(Strategy(keys, {}, values))
    lines = [
        {**each.keys, "half": half, "tokens": int(generator.integers(20, 60)), "rounds": 10}
        for each in candidates
        for half in (0, 1, 0, 1)
    ]
    chosen = choose(pd.DataFrame(lines), candidates)
    assert len(chosen) == 2 * len(SHAPES) * 2
    for line in chosen.to_dict("records"):
        able = [
            each
            for each in candidates
            if {"shape": line["shape"], "budget": line["budget"]}.items() <= each.keys.items()
            and each.keys["made_on"] in (EITHER, line["half"])
        ]
        totals = [
            sum(row["tokens"] for row in lines if row["half"] == line["half"] and each.keys.items() <= row.items())
            for each in able
        ]
        best = able[int(np.argmax(totals))]
        assert (best.keys["variant"], best.keys["made_on"]) == (line["variant"], line["made_on"])
        assert json.loads(line["structure"]) == best.structure


def test_the_host_takes_what_is_no_call():
    """Rounds that draft for 2, call for 4, accept for 8 and commit for 16 seconds, with a pause between them."""
    clock = SimpleNamespace(seconds=lambda start, end: end - start, synchronize=lambda: None)
    marks = [
        SimpleNamespace(start=at, drafted=at + 2, verified=at + 6, accepted=at + 14, committed=at + 30)
        for at in (0, 100)
    ]
    output = SimpleNamespace(rounds=[SimpleNamespace(marks=each, draft_tokens=(5, 6, 7)) for each in marks])
    assert host_seconds(output, clock) == ([3, 3], [2, 2], [24, 24])


@pytest.mark.slow
@pytest.mark.usefixtures("unwritten_pictures")
def test_recorded_streams_in_simulated_time(in_process, tmp_path):
    write_trace(tmp_path / "trace.jsonl")
    target = ("target=replay", "target.path=trace.jsonl", "prompts=recorded", "target.vocab_size=40")
    ended = in_process(run, *TINY, *target)
    assert ended.code == 0, ended.error
    (folder,) = tmp_path.glob("outputs/*/*")
    replay, choices = (pd.read_parquet(folder / f"{name}.parquet") for name in ("replay", "choices"))
    rows = replay[(replay["shape"] == "rows") & (replay["budget"] == 6)]
    assert set(rows["variant"]) == {"2 x 3", "3 x 2", "6 x 1"}
    assert set(replay[replay["shape"] == "tree"]["made_on"]) == {0, 1}
    assert replay.groupby("prompt")["half"].first().to_dict() == {f"{n}": n % 2 for n in range(6)}
    for row in choices.itertuples():
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
