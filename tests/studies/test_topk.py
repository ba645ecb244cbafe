"""Study `topk`: a cell is what replaying its drafter gives, and bad input."""

import pytest

from specdec.drafters import drafters
from specdec.replay.walk import replay_stream
from specdec.structures import structures
from specdec.text.streams import read_streams

ONE = ("~study.drafters.model_unigram", "study.drafters.model_bigram.cache_dir=null")  # a law has no embeddings


def test_a_cell_is_the_replay_of_its_drafter(study, table, random_law, group_values, tmp_path):
    law = random_law(6, 3)
    small = (f"target.law={law.tolist()}", "prompts.tokens=[[0,1,2],[3,4],[5,1]]", "study.k=[1,3,6]", "study.w=[1,2]")
    found, tables = study("ngrammys_topk", *ONE, *small)
    streams = read_streams(tmp_path / "out" / "streams.jsonl").streams
    assert len(streams) == 3 and all(len(each.generated) == 24 for each in streams)
    drafter = drafters.build(group_values("drafter", "model_bigram", cache_dir=None), target=table(law))
    for k in (1, 3, 6):
        for w in (1, 2):
            rows = structures.build({"name": "rows", "k": k, "w": w, "budget": 100})
            rounds = sum(len(replay_stream(drafter, rows, each, 24)) for each in streams)
            assert found.curves[f"curve/topk/model_bigram.w{w}"][k] == pytest.approx(3 * 24 / rounds)
    # With every token among the rows the first draft token of a round is always accepted.
    assert found.curves["curve/topk/model_bigram.w1"][6] == pytest.approx(2)
    assert set(tables["topk"]["drafter"]) == {"model_bigram"}
