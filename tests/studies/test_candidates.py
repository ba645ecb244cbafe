"""Structures of equal budgets, the halves of the prompts, and the choice on one half, against slow computations."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specdec.replay.rank_accuracy import RankCounts
from specdec.structures import structures
from specdec.studies.base.candidates import EITHER, SHAPES, choose, halves_of, plain_shapes, trees
from specdec.studies.base.live_runs import decoding_seconds, host_seconds

COUNTS = RankCounts((50, 30), ((20, 9, 4), (12, 5, 1)))


def test_every_candidate_of_a_budget_has_all_of_its_nodes_and_no_more():
    budgets = [2, 3, 4, 6, 12]
    found = [*plain_shapes(budgets), *trees(COUNTS, 1, budgets, [1, 2, 3, 12])]
    for each in found:
        structure = structures.build(dict(each.structure))
        # Three ranks are known: no node of a tree has more children.
        most = sum(3**level for level in range(1, structure.gamma + 1)) if each.shape == "tree" else each.budget
        assert structure.name == each.shape and structure.nodes == min(each.budget, most), each
    for n in budgets:
        rows = [
            (each.structure["k"], each.structure["w"]) for each in found if (each.shape, each.budget) == ("rows", n)
        ]
        assert rows == [(k, w) for k in range(2, n + 1) for w in range(1, n) if k * w == n]
        assert {each.shape for each in found if each.budget == n} == set(SHAPES)
    assert {each.half for each in found if each.shape == "tree"} == {1}


def test_all_turns_of_a_conversation_are_in_one_half():
    streams = [SimpleNamespace(id=name) for name in ("a", "b/turn1", "b/turn2", "b/turn3", "c", "d/turn1", "d/turn2")]
    halves = halves_of(streams)
    assert sorted(halves.values()) == [0, 0, 1, 1] and len(halves) == 4


@pytest.mark.parametrize("seed", range(3))
def test_a_half_chooses_by_its_own_texts_among_what_no_other_half_made(seed):
    generator = np.random.default_rng(seed)
    candidates = {
        "x": [*plain_shapes([4, 6]), *trees(COUNTS, 0, [4, 6], [1, 2, 3]), *trees(COUNTS, 1, [4, 6], [1, 2, 3])]
    }
    lines = [
        {"drafter": "x", **each.keys, "half": half, "tokens": int(generator.integers(20, 60)), "rounds": 10}
        for each in candidates["x"]
        for half in (0, 1, 0, 1)
    ]
    chosen = choose(pd.DataFrame(lines), candidates)
    assert len(chosen) == 2 * len(SHAPES) * 2
    for line in chosen.to_dict("records"):
        able = [
            each
            for each in candidates["x"]
            if (each.shape, each.budget) == (line["shape"], line["budget"]) and each.half in (EITHER, line["half"])
        ]
        totals = [
            sum(row["tokens"] for row in lines if row["half"] == line["half"] and each.keys.items() <= row.items())
            for each in able
        ]
        best = able[int(np.argmax(totals))]
        assert (best.variant, best.half) == (line["variant"], line["made_on"])
        assert json.loads(line["structure"]) == dict(best.structure)


def test_a_live_run_takes_all_of_its_rounds_and_the_host_what_is_no_call():
    """Rounds that draft for 2, call for 4, accept for 8 and commit for 16 seconds, with a pause between them."""
    clock = SimpleNamespace(seconds=lambda start, end: end - start, synchronize=lambda: None)
    marks = [
        SimpleNamespace(start=at, drafted=at + 2, verified=at + 6, accepted=at + 14, committed=at + 30)
        for at in (0, 100)
    ]
    output = SimpleNamespace(rounds=[SimpleNamespace(marks=each, draft_tokens=(5, 6, 7)) for each in marks])
    assert decoding_seconds(output, clock) == 60
    assert host_seconds(output, clock) == ([3, 3], [2, 2], [24, 24])
