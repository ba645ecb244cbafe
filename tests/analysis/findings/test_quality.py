"""Quality figures from small tables: ratios of sums, what is absent, and that prompts are resampled."""

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.findings.quality import OUTPUTS, quality_metrics


def tables(prompts=6, known=True, correct=None, likelihood=-3.0):
    """Two rounds of a drafter at gamma 2 and three of the baseline for every prompt."""
    rounds, outputs = [], []
    for number in range(prompts):
        key = {"cell": "c", "repeat": 0, "prompt": f"p{number}", "category": ""}
        for method, gamma, committed in (("typical", 2, (3, 1)), ("baseline", 0, (1, 1, 1))):
            for index, count in enumerate(committed):
                offered = 2 if gamma else 0
                rounds.append(
                    key
                    | {"method": method, "gamma": gamma, "round": index, "committed": count, "offered": offered}
                    | {"departure": [0.1 * number] * count if known or not gamma else []}
                    | {"otherwise": 0.5 * index if gamma and known else np.nan}
                )
            tokens = sum(committed)
            value = likelihood * tokens * (1 if gamma else 0.5) + number
            right = None if correct is None else correct[method][number]
            outputs.append(
                key | {"method": method, "gamma": gamma, "tokens": tokens, "log_likelihood": value, "correct": right}
            )
    return pd.DataFrame(rounds), pd.DataFrame(outputs, columns=list(OUTPUTS))


def metrics(*args, **kwargs):
    return quality_metrics(*tables(*args, **kwargs), gamma=2, replicates=400, seed=1)


def test_every_figure_is_a_ratio_of_sums():
    found = metrics()
    extra = sum(range(6))
    assert found["quality/log_likelihood"] == pytest.approx((-3.0 * 24 + extra) / 24)
    assert found["quality/baseline_log_likelihood"] == pytest.approx((-1.5 * 18 + extra) / 18)
    assert found["quality/log_likelihood.over_baseline"] == pytest.approx(
        found["quality/log_likelihood"] - found["quality/baseline_log_likelihood"]
    )
    assert found["quality/tv"] == pytest.approx(0.1 * 2.5) == found["quality/baseline_tv"]
    assert found["quality/decided_otherwise"] == pytest.approx(0.25)
    for name in ("log_likelihood", "baseline_log_likelihood", "tv"):
        low, high = found[f"quality/{name}.ci_low"], found[f"quality/{name}.ci_high"]
        assert low < found[f"quality/{name}"] < high
    # All prompts decide otherwise equally often.
    assert found["quality/decided_otherwise.ci_low"] == found["quality/decided_otherwise.ci_high"] == 0.25
    assert not [name for name in found if "gsm8k" in name]
    correct = {"typical": [True, False, False, None, True, False], "baseline": [True, True, True, None, True, False]}
    found = metrics(correct=correct)
    assert found["quality/gsm8k_exact_match"] == pytest.approx(2 / 5)
    assert found["quality/baseline_gsm8k_exact_match"] == pytest.approx(4 / 5)


def test_what_is_not_known_of_every_round_is_absent():
    found = metrics(known=False)
    assert "quality/tv" not in found and "quality/decided_otherwise" not in found
    assert found["quality/baseline_tv"] == pytest.approx(0.25) and "quality/log_likelihood" in found
    rounds, outputs = tables()
    rounds.at[0, "departure"] = [0.2]  # of three committed tokens
    assert "quality/tv" not in quality_metrics(rounds, outputs, 2, 100, 0)


def test_a_text_without_a_chance_has_no_mean():
    rounds, outputs = tables()
    outputs.loc[0, "log_likelihood"] = -np.inf
    found = quality_metrics(rounds, outputs, 2, 100, 0)
    assert not [name for name in found if "likelihood" in name] and "quality/tv" in found


def test_one_prompt_has_no_interval():
    found = metrics(prompts=1)
    assert "quality/log_likelihood" in found and not [name for name in found if ".ci_" in name]


def test_only_work_that_all_methods_did_counts():
    rounds, outputs = tables()
    unfinished = (rounds["prompt"] == "p5") & (rounds["method"] == "typical")
    found = quality_metrics(
        rounds[~unfinished], outputs[~((outputs["prompt"] == "p5") & (outputs["gamma"] == 2))], 2, 9, 0
    )
    assert found["quality/tv"] == pytest.approx(0.1 * 2.0) == found["quality/baseline_tv"]
