"""What `equal_budget` says where t(n) = 1 ms (1 + n / 10), drafts take 0.1 ms and all else 0.1 ms."""

import json

import numpy as np
import pandas as pd
import pytest
from fixtures.call_times import call_times

from specdec.analysis.sections import About, findings
from specdec.analysis.studies.equal_budget import budgets

ABOUT = About("model (float32), machine", "prompts", simulated=False, replicates=300, seed=0)
STEP, PRICE, DRAFT, REST = 1e-3, 0.1, 1e-4, 1e-4
CANDIDATES = {  # shape, budget, variant, half that it was made on: tokens per call on half 0 and on half 1
    ("chain", 4, "gamma 4", -1): (2.0, 2.0),
    ("rows", 4, "2 x 2", -1): (9.0, 1.5),  # half 0 likes it, half 1 does not
    ("rows", 4, "4 x 1", -1): (1.0, 1.8),
    ("tree", 4, "depth 3", 0): (2.0, 2.0),
    ("tree", 4, "depth 4", 1): (2.0, 2.0),
    ("chain", 16, "gamma 16", -1): (3.0, 3.0),
    ("rows", 16, "4 x 4", -1): (3.5, 3.5),
    ("tree", 16, "depth 5", 0): (4.0, 4.0),
    ("tree", 16, "depth 6", 1): (4.0, 4.0),
}
CHOSEN = {
    **{("chain", budget): (f"gamma {budget}",) * 2 for budget in (4, 16)},
    **{("rows", 4): ("2 x 2", "4 x 1"), ("rows", 16): ("4 x 4", "4 x 4")},
    **{("tree", 4): ("depth 3", "depth 4"), ("tree", 16): ("depth 5", "depth 6")},
}


def tables():
    nodes = {(shape, budget): budget for shape in ("chain", "rows", "tree") for budget in (4, 16)}
    nodes["tree", 16] = 12.0
    rows = []
    for candidate, by_half in CANDIDATES.items():
        for prompt in range(8):
            half, rounds = prompt % 2, 100 + 10 * prompt
            counts = (by_half[half] * rounds, rounds, nodes[candidate[:2]] * rounds, rounds)
            rows.append((*candidate, f"p{prompt}", *counts, half))
    columns = ["shape", "budget", "variant", "made_on", "prompt", "tokens", "rounds", "nodes", "paths", "half"]
    replay = pd.DataFrame(rows, columns=columns)
    choices = [
        ("ngram", shape, budget, half, variants[half], half if shape == "tree" else -1, json.dumps({"name": shape}))
        for (shape, budget), variants in CHOSEN.items()
        for half in (0, 1)
    ]
    of_choices = ["drafter", "shape", "budget", "half", "variant", "made_on", "structure"]
    blocks = [(1, n) for n in (0, 1, 4, 16)]
    of_host = ["repeat", "drafter", "shape", "budget", "nodes", "draft_s", "overhead_s"]
    host = [(0, "", "plain", 0, 0.0, 0.0, REST)]
    host += [(0, "ngram", shape, budget, float(n), DRAFT, REST) for (shape, budget), n in nodes.items()]
    return {
        "replay": replay.assign(drafter="ngram", stream=replay["prompt"], category="", context=50.0),
        "choices": pd.DataFrame(choices, columns=of_choices),
        "block_times": call_times(lambda k, n, *_: STEP * (1 + PRICE * n), blocks, (10, 100)),
        "host_times": pd.DataFrame(host, columns=of_host),
        "skipped": pd.DataFrame(columns=["reason", "category", "count"]),
    }


def test_each_half_is_judged_on_the_others_choice_and_prices_follow_the_law():
    cells = budgets(tables(), ABOUT.replicates, ABOUT.seed).cells.set_index(["shape", "budget"])
    rounds = {half: sum(100 + 10 * prompt for prompt in range(8) if prompt % 2 == half) for half in (0, 1)}
    # Half 0 has what half 1 chose, 4 x 1, and half 1 has 2 x 2.
    expected = (1.0 * rounds[0] + 1.5 * rounds[1]) / (rounds[0] + rounds[1])
    assert cells.loc[("rows", 4), "tokens"] == pytest.approx(expected)
    tree = cells.loc[("tree", 16)]
    assert (tree["tokens_lead"], tree["tokens_lead_low"], tree["tokens_lead_high"]) == pytest.approx((1.0, 1.0, 1.0))
    assert cells.loc[("chain", 16), "tokens_lead"] == 0
    for shape, budget, tokens, nodes in (("chain", 4, 2.0, 4), ("tree", 16, 4.0, 12)):
        speedup = tokens * (STEP + REST) / (STEP * (1 + PRICE * nodes) + DRAFT + REST)
        found = cells.loc[(shape, budget), ["speedup", "price", "break_even"]].astype(float).tolist()
        assert found == pytest.approx([speedup, PRICE, (tokens - 1) / nodes])


def test_the_answer_comes_first():
    found = findings("equal_budget", tables(), ABOUT)
    tokens, speed = found.sections
    for text, words in (
        (tokens.text[0], "rows beat the chain beyond chance at 1 of 2 budgets (16 nodes) and lose to it at 1;"),
        (tokens.text[0], "the tree beats the chain beyond chance at 1 of 2 budgets (16 nodes); the difference goes"),
        (tokens.text[1], "Of structures that verify no more, the tree of 16 (12.0) has most: 4.00"),
        (tokens.text[1], "+1.00 (+1.00 to +1.00) (paired)"),
        (speed.text[0], "the tree of 16 nodes is fastest with ngram: a predicted speedup of 1.8"),
    ):
        assert words in text
    assert "2 x 2, 4 x 1" in set(tokens.tables[0][1]["chosen"])
    assert [name for name, _ in (*tokens.figures, *speed.figures)] == ["tokens_per_call_ngram", "speedup_ngram"]
    assert found.metrics["budget/ngram.rows.lead.16"] == pytest.approx(0.5)
    assert found.metrics["budget/ngram.tree.nodes_verified.16"] == pytest.approx(12)
    assert found.curves["curve/budget/tokens_per_call.ngram.chain"] == pytest.approx({4: 2.0, 16: 3.0})
    assert all(np.isfinite(value) for value in found.metrics.values())
    one_prompt = tables() | {"replay": tables()["replay"].query("prompt == 'p0'")}
    tokens, _ = findings("equal_budget", one_prompt, ABOUT).sections
    assert "whether rows beat the chain cannot be said, 1 prompt is too few" in tokens.text[0]
    assert "beyond chance" not in tokens.text[0]
