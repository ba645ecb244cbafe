"""Likelihoods by multiplication, answers as they are written."""

import math

import pandas as pd
import pytest
from fixtures.resumed_runs import config_of, decode, found

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
    assert answers("In all 1,234.50", "x #### 1234.5") and answers("-7", "#### -7") and answers(".5", "#### 0.5")


def test_a_lossy_run_is_judged_by_the_law_and_its_alpha_counts_what_its_rule_passes(tmp_path):
    """On this law typical acceptance passes every draft, of which the strict rule would pass a share min(p, q)."""
    (tmp_path / "corpus.jsonl").write_text('{"tokens": [0, 1, 2, 0, 1, 1, 2, 2, 0, 1, 0, 2]}\n')
    drafter = ("+drafter=corpus_ngram", f"drafter.corpus={tmp_path}/corpus.jsonl", "drafter.field=tokens", "seed=1")
    config = config_of(*drafter, "verifier=typical", "sampling=temperature", "measurement.null=false")
    decode(config, tmp_path / "run")
    rounds, along, quality = (
        pd.read_parquet(tmp_path / "run" / f"{name}.parquet") for name in ("rounds", "alpha", "quality")
    )
    assert rounds["offered"].sum() == rounds["accepted"].sum() > 200
    assert along["numerator"].to_list() == pytest.approx(along["denominator"].to_list(), abs=1e-3)
    assert set(quality["method"]) == {"baseline", "corpus_ngram"} and set(quality["gamma"]) == {0, 1, 2, 4}
    outputs = pd.DataFrame(found(tmp_path / "run")["generations"]).set_index(["method", "gamma", "prompt"])
    for row in quality.itertuples():
        output = outputs.loc[(row.method, row.gamma, row.prompt)]
        before = [output["prompt_token_ids"][-1], *output["generated_token_ids"]]
        chances = [config.target["law"][a][b] for a, b in zip(before, before[1:], strict=False)]
        assert row.log_likelihood == pytest.approx(math.log(math.prod(chances)))
