"""Committed results: a file that is missing, or of something else, is named with what makes it; intervals from the sums
by prompt of the papers' claims, by hand, paired by prompt.
"""

import pytest

from specdec.analysis.research import committed as results
from specdec.analysis.research import heads_ablation, heads_accuracy, heads_tree
from specdec.errors import UsageError

READERS = [  # reads a file, what it holds, the benchmark that makes it
    (results.load_results, "measurements of claims", "test_paper_claims.py"),
    (heads_ablation.load_ablation, "ablations of heads", "test_heads_ablation.py"),
    (heads_accuracy.load_accuracy, "accuracies of heads", "test_heads_accuracy.py"),
    (heads_tree.load_trees, "trees of heads", "test_heads_tree.py"),
]


@pytest.mark.parametrize(("read", "holds", "made_by"), READERS)
def test_a_file_of_something_else_is_named_with_what_makes_it(tmp_path, read, holds, made_by):
    path = tmp_path / "results.json"
    with pytest.raises(UsageError, match=f"do not exist: .*{made_by}"):
        read(path)
    for content in ("", "[1]", "{}", '{"figures": 3}', '{"figures": [{"name": "x"}]}'):
        path.write_text(content)
        with pytest.raises(UsageError, match=f"holds no {holds}: .*{made_by}"):
            read(path)


def run_of(prompts: str, tokens: int, rounds: int, seconds: float, **more: object) -> dict[str, object]:
    """An entry whose prompts are alike, so that intervals have no width; the baseline takes 2 seconds for 8 tokens."""
    count = len(prompts)
    alike = {"tokens": [tokens], "rounds": [rounds], "seconds": [seconds], "verify": [seconds / 2]}
    base = {"tokens": [8], "rounds": [8], "seconds": [2.0], "verify": [1.6]}
    baseline, arm = ({name: values * count for name, values in each.items()} for each in (base, alike))
    run = {"run": "a", "prompts": list(prompts), "baseline": baseline, "arms": {"4": arm}}
    return {**run, "metrics": {"cost/c": 0.25, "lossless/tv": None}, **more}


def exact(value) -> float:
    assert value.low == pytest.approx(value.estimate) and value.high == pytest.approx(value.estimate)
    return value.estimate


def test_ratios_by_hand():
    run = run_of("abcde", tokens=8, rounds=4, seconds=1.6)
    assert exact(results.tokens_per_round(run, "4")) == pytest.approx(2.0)
    assert exact(results.speedup(run, "4")) == pytest.approx((2.0 / 8) / (1.6 / 8))
    assert exact(results.verify_ratio(run, "4")) == pytest.approx((0.8 / 4) / (1.6 / 8))
    run["arms"]["1"] = {"tokens": [8] * 5, "rounds": [5] * 5, "seconds": [2.4] * 5, "verify": [1.0] * 5}
    assert exact(results.arm_ratio(run, "4", "1")) == pytest.approx(2.4 / 1.6)
    assert exact(results.more_tokens_per_round(run, "4", run, "1")) == pytest.approx(2.0 - 1.6)


def test_runs_are_paired_by_the_prompts_that_both_have():
    """Each prompt gains 1, whatever its level; z stands in one run only."""
    first = run_of("bcdef", tokens=1, rounds=1, seconds=1.0)
    first["arms"]["4"] |= {"tokens": [20, 60, 20, 60, 40], "rounds": [10, 20, 10, 20, 10]}
    second = run_of("zfedcb", tokens=1, rounds=1, seconds=1.0)
    second["arms"]["4"] |= {"tokens": [900, 30, 40, 10, 40, 10], "rounds": [1, 10, 20, 10, 20, 10]}
    assert exact(results.more_tokens_per_round(first, "4", second, "4")) == pytest.approx(200 / 70 - 130 / 70)


def test_alpha_and_its_difference():
    warm = run_of("abcde", 8, 4, 1.0, alpha={"numerator": [1.0, 3.0, 5.0, 7.0, 4.0], "denominator": [10] * 5})
    cold = run_of("abcde", 8, 4, 1.0, alpha={"numerator": [2.0, 4.0, 6.0, 8.0, 5.0], "denominator": [10] * 5})
    assert results.alpha(cold).estimate == pytest.approx(0.5)
    assert exact(results.alpha_difference(cold, warm)) == pytest.approx(0.1)


def test_other_prompts_are_resampled_apart():
    """Two runs alike in the mean, one of them spread: the difference is 0 and its interval contains it."""
    even, spread = run_of("abcdef", 8, 4, 1.0), run_of("ghijkl", 8, 4, 1.0)
    spread["arms"]["4"] |= {"tokens": [4, 12, 4, 12, 4, 12]}
    difference = results.tokens_per_round_elsewhere(even, "4", spread, "4")
    assert difference.estimate == pytest.approx(0.0) and difference.low < -0.3 and difference.high > 0.3
