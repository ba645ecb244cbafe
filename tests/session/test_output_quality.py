"""Likelihoods by multiplication, answers as they are written."""

import json
import math

import pandas as pd
import pytest
import torch

from specdec.analysis.read.runs import open_folder
from specdec.session.output_quality import answers, log_likelihood


def test_the_likelihood_of_a_text_is_the_product_of_its_chances(table, random_law):
    law = random_law(4, 1)
    text = [1, 3, 3, 0, 2]
    chances = [float(law[last, token]) for last, token in zip([2, *text[:-1]], text, strict=True)]
    for temperature in (0.0, 0.5, 1.0):  # the raw law, whatever the run's sampling
        target = table(law, temperature=temperature)
        assert log_likelihood(target, [0, 2], text) == pytest.approx(math.log(math.prod(chances)))
    assert log_likelihood(table([[0.0, 1.0], [0.5, 0.5]]), [0], [0]) == -math.inf


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ("So 16 - 3 = 13, and 9 * 2 = 18.", True),
        ("#### 18", True),
        ("The answer is 18.00 dollars", True),
        ("1,018 - 1,000=18", True),
        ("18 ducks, so 19", False),
        ("It is -18", False),
        ("20-18", True),  # no sign: the last number is 18
        ("none", False),
        ("", False),
    ],
)
def test_answers_are_compared_as_numbers(output, right):
    assert answers(output, "She sells 9 eggs for 2.\n#### 18") is right
    assert not answers(output, "no number")


def test_large_and_broken_numbers():
    assert answers("In all 1,234.50", "x #### 1234.5") and answers("-7", "#### -7") and answers(".5", "#### 0.5")


def test_the_alpha_of_a_lossy_rule_counts_what_that_rule_passes(finished_run):
    """On this law typical acceptance passes every draft, of which the strict rule would pass a share min(p, q)."""
    folder = finished_run("lossy")
    rounds = pd.read_parquet(folder / "rounds.parquet")
    assert rounds["offered"].sum() == rounds["accepted"].sum() > 200
    along = pd.read_parquet(folder / "alpha.parquet")
    assert along["numerator"].to_list() == pytest.approx(along["denominator"].to_list(), abs=1e-3)


@pytest.mark.slow
def test_a_run_with_a_lossy_rule_says_what_it_lost(finished_run):
    run = open_folder(finished_run("lossy"))
    quality, rounds, law = run.quality(), run.rounds(), run.params["target.law"]
    assert set(quality["method"]) == {"baseline", "corpus_ngram"} and set(quality["gamma"]) == {0, 1, 2, 4}
    law = torch.tensor(json.loads(law), dtype=torch.float64)
    generations = run.generations().set_index(["method", "gamma", "prompt"])
    for row in quality.itertuples():
        output = generations.loc[(row.method, row.gamma, row.prompt)]
        before = [output["prompt_token_ids"][-1], *output["generated_token_ids"]]
        chances = [float(law[a, b]) for a, b in zip(before, before[1:], strict=False)]
        assert row.log_likelihood == pytest.approx(math.log(math.prod(chances)))
    mine = quality[quality["gamma"] == 4]
    metrics = run.metrics
    assert metrics["quality/log_likelihood"] == pytest.approx(mine["log_likelihood"].sum() / mine["tokens"].sum())
    arm = rounds[rounds["gamma"] == 4]
    assert metrics["quality/tv"] == pytest.approx(arm["departure"].map(sum).sum() / arm["committed"].sum())
    assert metrics["quality/decided_otherwise"] == pytest.approx(arm["otherwise"].mean())
    assert metrics["quality/baseline_log_likelihood"] > metrics["quality/log_likelihood"]  # greedy text
    assert "quality/gsm8k_exact_match" not in metrics
    notes = " ".join(run.summary()["notes"])
    assert "Quality under the target" in notes and "decided otherwise" in notes
    assert "the baseline's text is greedy" in notes
