"""The sentences of `tree_search` where the seconds of calls, drafts by levels and nodes, and the rest are known."""

import json

import numpy as np
import pandas as pd
import pytest
from fixtures.call_times import call_times

from specdec.analysis.cost.round_seconds import RoundSeconds
from specdec.analysis.sections import About, findings
from specdec.analysis.studies.tree_search import CHOSEN, PLAIN, tree_search

ABOUT = About("model (float32), machine", "prompts", simulated=False, replicates=300, seed=0)
STEP, PRICE, FIXED, LEVEL, NODE, REST = 1e-3, 0.1, 1e-4, 2e-4, 1e-5, 1e-4


def seconds(nodes, depth):
    draft = FIXED + LEVEL * depth + NODE * nodes if nodes else 0.0
    return STEP * (1 + PRICE * nodes) + draft + REST


# arm -> shape, budget, nodes, depth, predicted tokens, tokens when decoded
ARMS = {
    PLAIN: (PLAIN, 0, 0, 0, 1.0, 1.0),
    "chain 2": ("chain", 2, 2, 2, 1.9, 2.0),
    "tree 2": ("tree", 2, 2, 1, 1.7, 1.6),
    "tree 16": ("tree", 16, 16, 3, 2.8, 2.5),
    "dynamic 2": ("dynamic", 2, 2, 2, np.nan, 2.2),
    "dynamic 16": ("dynamic", 16, 16, 3, np.nan, 2.7),
    CHOSEN: (CHOSEN, 4, 4, 2, 2.2, 2.25),
}


def tables(arms=ARMS, prompts=8, identical=True):
    listed = [
        {"arm": arm, "shape": shape, "budget": budget, "nodes": nodes, "depth": depth, "tokens": predicted}
        | {"seconds": np.nan if shape == "dynamic" else seconds(nodes, depth), "structure": json.dumps({})}
        for arm, (shape, budget, nodes, depth, predicted, _) in arms.items()
    ]
    live = [
        {"repeat": repeat, "arm": arm, "stream": f"p{prompt}", "prompt": f"p{prompt}", "tokens": 100 + prompt}
        | {"rounds": (100 + prompt) / tokens, "nodes": nodes * (100 + prompt) / tokens, "dtype": "float32"}
        | {"seconds": seconds(nodes, depth) * (100 + prompt) / tokens, "identical": identical}
        for repeat in (0, 1)
        for prompt in range(prompts)
        for arm, (_, _, nodes, depth, _, tokens) in arms.items()
    ]
    blocks = [(1, n) for n in (0, 1, 4, 16)]
    drafts = [
        {"shape": "tree", "structure": place, "nodes": nodes, "depth": depth, "call": call, "drafted": nodes}
        | {"seconds": (FIXED + LEVEL * depth + NODE * nodes) * (50 if call == 2 else 1)}  # one of three is an accident
        for place, (nodes, depth) in enumerate([(1, 1), (4, 1), (4, 3), (16, 2), (16, 4)])
        for call in range(3)
    ]
    drafts += [
        {"shape": "chain", "structure": 5, "nodes": gamma, "depth": gamma, "call": 0, "drafted": gamma}
        | {"seconds": LEVEL * gamma}
        for gamma in (1, 2)
    ]
    host = [(0, PLAIN, 0.0, 0.0, REST), (0, "largest", 16.0, 9.0, REST)]
    accuracy = [
        {"prompt": f"q{prompt}", "level": level, "rank": rank, "tested": tested, "hits": round(tested * share)}
        for prompt in range(4)
        for level, tested, shares in ((1, 100, (0.6, 0.2)), (2, 50 + 10 * prompt, (0.5, 0.1)), (3, 0, (0.0, 0.0)))
        for rank, share in enumerate(shares)
    ]
    return {
        "arms": pd.DataFrame(listed),
        "live": pd.DataFrame(live),
        "block_times": call_times(lambda k, n, *_: STEP * (1 + PRICE * n), blocks, (10, 100)),
        "draft_times": pd.DataFrame(drafts),
        "host_times": pd.DataFrame(host, columns=["repeat", "arm", "nodes", "draft_s", "overhead_s"]),
        "accuracy": pd.DataFrame(accuracy),
        "skipped": pd.DataFrame(columns=["reason", "category", "count"]),
    }


def test_seconds_of_a_round_follow_the_law():
    made = tables()
    found = RoundSeconds(made["block_times"], made["draft_times"], made["host_times"], context=50)
    for nodes, depth in [(0, 0), (1, 1), (3, 2), (10, 4), (16, 1)]:
        assert found.tree(nodes, depth) == pytest.approx(seconds(nodes, depth), rel=1e-6)
    assert found.chain(2) == pytest.approx(seconds(2, 2) - FIXED - 2 * NODE), "a chain is drafted in its own way"
    assert found.level == pytest.approx(LEVEL) and found.outside(0) == pytest.approx(STEP + REST)
    assert np.isnan(found.tree(17, 1)), "larger calls were not timed"
    falling = made["draft_times"].assign(seconds=lambda table: 1e-3 - 1e-5 * table["nodes"])
    found = RoundSeconds(made["block_times"], falling, made["host_times"], context=50)
    assert found.node == 0 <= found.level and found.fixed > 0, "a draft never gets cheaper with size"


def test_speedups_are_measured_and_predicted_and_differences_to_the_chosen_tree_are_paired():
    made = tables()
    cells = tree_search(made["arms"], made["live"], ABOUT.replicates, ABOUT.seed)[0].set_index("arm")
    for arm, (_, _, nodes, depth, predicted, tokens) in ARMS.items():
        of_one_token = (STEP + REST) / seconds(nodes, depth)
        expected = [tokens, nodes, tokens * of_one_token, predicted * of_one_token]
        found = cells.loc[arm, ["tokens", "verified", "speedup", "predicted_speedup"]].astype(float).tolist()
        assert arm == PLAIN or found == pytest.approx(expected, nan_ok=True), arm
    # Every prompt differs alike: there is nothing to be unsure of, whatever prompts are drawn.
    row = cells.loc["tree 16"]
    lead = row["speedup"] - cells.loc[CHOSEN, "speedup"]
    assert (row["speedup_lead_low"], row["speedup_lead"], row["speedup_lead_high"]) == pytest.approx((lead,) * 3)
    assert cells.loc[CHOSEN, "tokens_lead"] == 0 and cells.loc["tree 16", "tokens_lead"] == pytest.approx(0.25)


def test_the_answer_comes_first():
    found = findings("tree_search", tables(), ABOUT)
    choice, accuracy = found.sections
    assert choice.text[0].startswith("The tree with most predicted tokens per second has 4 nodes and depth 2: 2.25")
    for text, words in (
        (choice.text[0], "structure.file=trees/chosen.yaml structure.nodes=4 structure.depth=2"),
        (choice.text[1], "the fastest dynamic, of 2, "),
        (choice.text[1], "the largest tree, of 16, "),
        (choice.text[2], "0 of those for tokens per round lie within"),
        (choice.text[3], "A call on 17 tokens takes 2.60 of a plain call of 1.00 ms behind 100 cached tokens"),
        (choice.text[4], "All 112 texts are those of plain decoding."),
        (accuracy.text[0], "one of 2 choices is in 80.0% at depth 1 and 60.0% at depth 2"),
    ):
        assert words in text
    table = choice.tables[0][1].set_index("structure")
    assert list(table.index) == [PLAIN, CHOSEN, "tree 2", "tree 16", "chain 2", "dynamic 2", "dynamic 16"]
    assert table.loc["dynamic 2", "predicted"] == "–" and table.loc["tree 2", "predicted"] == "1.70"
    assert [name for section in found.sections for name, _ in section.figures] == ["tree_budget", "rank_accuracy"]
    metrics = {name.removeprefix("tree_search/"): value for name, value in found.metrics.items()}
    assert metrics["chosen.nodes"] == 4 and "dynamic.tokens_per_round.16.predicted" not in metrics
    assert metrics["tree.tokens_per_round.16"] == pytest.approx(2.5)
    assert metrics["tree.tokens_per_round.16.predicted"] == pytest.approx(2.8)
    assert metrics["accuracy.depth_2.choice_1"] == pytest.approx(0.5) and all(map(np.isfinite, metrics.values()))
    assert found.curves["curve/tree_search/tokens_per_round.tree"] == pytest.approx({2: 1.6, 16: 2.5})


def test_plain_decoding_may_be_what_is_chosen():
    made = tables({arm: values for arm, values in ARMS.items() if arm not in (CHOSEN, "tree 2")})
    text = findings("tree_search", made, ABOUT).sections[0].text[0]
    assert text.startswith("No tree was predicted to pay") and "The best prediction is that of chain 2, 1.15." in text
    # One prompt has no intervals, and texts that differ are counted.
    choice, _ = findings("tree_search", tables(prompts=1, identical=False), ABOUT).sections
    assert "(" not in choice.text[0] and "within the measured interval" not in choice.text[2]
    assert "14 of 14 texts depart from plain decoding's" in choice.text[4]
