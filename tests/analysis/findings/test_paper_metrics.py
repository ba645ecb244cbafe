"""Rate, overhead, speedup and compression as the papers define them, from random tables with repeats; and what the
original model of a trained target changes: figures of its own, and nothing else.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.acceptance.model_sections import model_sections
from specdec.analysis.account.run_account import SharedWork, account_of
from specdec.analysis.arms import Arms
from specdec.analysis.findings.leaderboard import open_arms
from specdec.analysis.findings.run_sections import category_section, papers_section
from specdec.analysis.findings.summary import AGAINST_ORIGINAL, MT_BENCH, PAPERS, category_members, summarise

Tables = tuple[pd.DataFrame, pd.DataFrame]


def plain_rounds(make_rounds, arm: pd.DataFrame, method: str, generator: np.random.Generator, extra: int = 0):
    """Rounds of one token each, as many as the arm has committed and `extra` more, in times of its own."""
    parts = []
    for repeat, part in arm.groupby("repeat"):
        tokens = part.groupby("prompt")["committed"].sum()
        table = make_rounds({prompt: [0] * (int(n) + extra) for prompt, n in tokens.items()}, 0, method, int(repeat))
        parts.append(table.assign(category=table["prompt"].map(part.groupby("prompt")["category"].first())))
    rounds = pd.concat(parts, ignore_index=True)
    return rounds.assign(round_s=rounds["verify_s"] + generator.uniform(0.001, 0.02, len(rounds)))


@pytest.fixture
def tables(simulate, make_rounds, make_generations) -> Callable[..., Tables]:
    def build(names: tuple[str, ...] = ("code", "text", ""), seed: int = 0, original: bool = True) -> Tables:
        generator = np.random.default_rng(seed)
        arm = simulate(generator.beta(6, 2, size=15), 10, 3, generator)
        arm["category"] = arm["prompt"].str[1:].astype(int).map(lambda number: names[number % len(names)])
        arm = pd.concat([arm, arm.assign(repeat=1)], ignore_index=True)
        arm["round_s"] += generator.uniform(0, 0.03, len(arm))
        rounds = [arm, plain_rounds(make_rounds, arm, "baseline", generator)]
        if original:
            rounds.append(plain_rounds(make_rounds, arm, "original", generator, extra=3))
        joined = pd.concat(rounds, ignore_index=True)
        return joined, make_generations(joined)

    return build


def metrics_of(tables: Tables) -> dict[str, float]:
    return summarise(SharedWork.of(Arms.of(tables[0]), 3), tables[1], 100, 19).primary.metrics


def direct(rounds: pd.DataFrame) -> dict[str, float]:
    sums = rounds.groupby("method").agg(
        tokens=("committed", "sum"), seconds=("round_s", "sum"), calls=("round", "size")
    )
    ours = sums.loc["ngram"]
    values = {"acceleration_rate": ours["tokens"] / ours["calls"], "compression_ratio": ours["tokens"] / ours["calls"]}
    for method, end in (("baseline", ""), ("original", ".original")):
        step = sums.loc[method, "seconds"] / sums.loc[method, "calls"]  # plain decoding: a token a step
        values[f"step_overhead{end}"] = ours["seconds"] / ours["calls"] / step
        values[f"speedup{end}"] = step * ours["tokens"] / ours["seconds"]
        values[f"throughput/{method}_tokens_per_s"] = 1 / step
    return values | {"throughput/tokens_per_s": ours["tokens"] / ours["seconds"]}


def test_every_figure_is_a_ratio_of_sums_with_an_interval(tables):
    rounds, generations = tables()
    metrics = metrics_of((rounds, generations))
    for prefix, part in (("", rounds), ("category/text/", rounds[rounds["category"] == "text"])):
        expected = direct(part)
        assert set(expected) == set(PAPERS)
        for name, value in expected.items():
            assert metrics[prefix + name] == pytest.approx(value, rel=1e-12), prefix + name
            assert metrics[f"{prefix}{name}.ci_low"] < value < metrics[f"{prefix}{name}.ci_high"], prefix + name


@pytest.mark.slow
def test_the_original_model_adds_its_own_figures_and_changes_no_other(tables, stored_run):
    both, without = tables(), tables(original=False)
    metrics, plain = metrics_of(both), metrics_of(without)
    added = {name for name in metrics if name not in plain and not name.startswith("category/")}
    assert added == {f"{name}{end}" for name in AGAINST_ORIGINAL for end in ("", ".ci_low", ".ci_high")}
    assert {name: metrics[name] for name in plain} == plain
    settings = {"structure__gamma": "3", "measurement__bootstrap": "50", "seed": "0"}
    columns = {"replay": ("gamma", "kind", "prompt"), "alpha": ("prompt", "numerator", "denominator")}
    empty = {name: pd.DataFrame(columns=names) for name, names in columns.items()}
    runs = [stored_run(rounds, tables=empty, **settings) for rounds, _ in (both, without)]
    (arm,), (other,) = (list(open_arms(run).values()) for run in runs)
    pd.testing.assert_frame_equal(arm.sums, other.sums)
    assert account_of(runs[0]) == account_of(runs[1])
    texts = [[section.text for section in model_sections(run)] for run in runs]
    assert texts[0] == texts[1]


def test_only_work_that_the_original_model_has_done_counts(tables):
    rounds, generations = tables()
    cut = rounds[~((rounds["method"] == "original") & (rounds["prompt"] == "p003"))]
    expected = direct(rounds[rounds["prompt"] != "p003"])
    assert metrics_of((cut, generations))["speedup"] == pytest.approx(expected["speedup"])


def test_spec_bench_pools_the_categories_of_mt_bench(tables):
    rounds, generations = tables(("math", "qa", "writing", "rag"))
    metrics = metrics_of((rounds, generations))
    expected = direct(rounds[rounds["category"].isin(MT_BENCH)])
    assert {name: metrics[f"category/mt_bench/{name}"] for name in expected} == pytest.approx(expected)
    assert metrics["category/math/speedup"] != metrics["category/mt_bench/speedup"]
    ((_, shown),) = papers_section(SimpleNamespace(metrics=metrics)).tables
    assert list(shown["category"]) == ["math", "qa", "rag", "writing", "mt_bench", "overall"]


def test_other_sets_are_not_pooled():
    for names in (["math", "writing"], ["math", "qa"], ["math", "writing", "code"], ["qa", "rag"]):
        prompts = pd.Series(names, index=[f"p{i}" for i in range(len(names))])
        assert set(category_members(prompts)) == set(names) and category_members(prompts.iloc[:1]) == {}


def test_the_table_has_a_row_per_category_and_the_original_model_only_where_it_ran(tables, stored_run):
    metrics = metrics_of(tables())
    section = papers_section(SimpleNamespace(metrics=metrics))
    table = section.tables[0][1]
    assert list(table["category"]) == ["code", "none", "text", "overall"]
    overall = table.iloc[-1]
    assert overall["overhead"].startswith(f"{metrics['step_overhead']:.3f} ({metrics['step_overhead.ci_low']:.3f} to ")
    assert overall["compression ratio"] == overall["acceleration rate"]
    assert overall["speedup (original)"].startswith(f"{metrics['speedup.original']:.3f} ")
    assert f"{metrics['acceleration_rate']:.3f} over overhead {metrics['step_overhead']:.3f}" in section.text[0]
    plain = papers_section(SimpleNamespace(metrics=metrics_of(tables(original=False))))
    assert len(section.text) == 2 and len(plain.text) == 1
    assert not [name for name in plain.tables[0][1] if "original" in name]
    run = replace(stored_run(None), metrics=metrics)
    section = category_section(run)
    assert list(section.tables[0][1]["category"]) == ["code", "none", "text"]
    assert section.tables[0][1]["speedup"].iloc[0].startswith(f"{metrics['category/code/speedup']:.3f} ")
    run.metrics.update({name: float("nan") for name in metrics if "speedup.ci_" in name})  # as on a busy machine
    assert category_section(run).text == tuple(words for words in section.text if not words.startswith("Of 3"))
