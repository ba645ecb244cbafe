"""The metrics of a run: names as logged, values against direct sums, what is absent and why; curves of models over
gamma; speed as the papers define it; and metrics beside those of its rounds, from counts and times that are known.
"""

from dataclasses import replace
from math import isfinite
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import build_generations, build_rounds, simulate

from specdec.analysis.acceptance.model_sections import model_sections
from specdec.analysis.acceptance.prediction_section import held_out
from specdec.analysis.account.run_account import SharedWork, account_sums
from specdec.analysis.findings.leaderboard import open_arms
from specdec.analysis.findings.run_metrics import (
    AGAINST_ORIGINAL,
    MT_BENCH,
    OUTPUTS,
    PAPERS,
    SAMPLED,
    Summary,
    category_members,
    limit_metrics,
    model_curves,
    model_metrics,
    null_metrics,
    operation_metrics,
    quality_metrics,
    sampled_metrics,
    summarise,
)
from specdec.analysis.findings.run_sections import category_section, papers_section
from specdec.analysis.rounds import Arms
from specdec.theory.capped_geometric import tokens_per_round

T1_S = 0.019
BASELINE_TIMES = {"draft_s": 0.0, "verify_s": T1_S, "accept_s": 0.0, "commit_s": 0.001, "round_s": 0.02}
WITH_INTERVALS = """
speedup speedup.unflagged tokens_per_round tokens_per_round.unflagged alpha.mle acceleration_rate step_overhead
compression_ratio throughput/tokens_per_s throughput/baseline_tokens_per_s
""".split()
ALONE = """
speedup.prompt_mean speedup.prompt_median speedup.end_to_end speedup.capped_geometric tokens_per_round.capped_geometric
accepted_per_offered nodes_per_round proposals.share repetition/share cost/prefill_share cost/t1_ms cost/t_ar_ms cost/c
cost/g cost/v cost/o account/alpha account/omega account/offered account/dependence account/draft account/verify
account/overhead account/baseline iid/depth_p iid/trend_p iid/mixing_p iid/prompts_p iid/memory_p
""".split()
ALWAYS = {*ALONE, *(f"{name}{end}" for name in WITH_INTERVALS for end in ("", ".ci_low", ".ci_high"))}


def plain_rounds(arm: pd.DataFrame, method: str = "baseline", extra: int = 0) -> pd.DataFrame:
    """Rounds of one token each, as many as the arm has committed and `extra` more."""
    parts = []
    for repeat, part in arm.groupby("repeat"):
        tokens = part.groupby("prompt")["committed"].sum()
        outputs = {prompt: [0] * (int(n) + extra) for prompt, n in tokens.items()}
        table = build_rounds(outputs, 0, method, int(repeat), durations=BASELINE_TIMES)
        parts.append(table.assign(category=table["prompt"].map(part.groupby("prompt")["category"].first())))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def run() -> tuple[pd.DataFrame, pd.DataFrame]:
    """12 prompts of two categories, gamma 3 and 1, the baseline; prompt p000 repetitive."""
    generator = np.random.default_rng(0)
    alphas = generator.beta(6, 2, size=12)
    arms = [simulate(alphas, 15, gamma, generator) for gamma in (3, 1)]
    for arm in arms:
        arm["category"] = np.where(arm["prompt"] < "p006", "code", "text")
        arm["round_s"] *= generator.uniform(0.9, 1.4, size=len(arm))
    rounds = pd.concat([*arms, plain_rounds(arms[0])], ignore_index=True)
    return rounds, build_generations(rounds, flagged=["p000"])


def summary_of(run, **more) -> Summary:
    return summarise(SharedWork.of(Arms.of(run[0]), 3, **more), run[1], replicates=100, permutations=19)


@pytest.fixture(scope="module")
def summary(run) -> Summary:
    return summary_of(run)


def test_every_metric_has_its_name_and_is_finite(run):
    rounds, generations = run
    few = rounds.assign(category=np.where(rounds["prompt"] < "p004", "few", "many"))
    generations = generations.assign(prefill_s=generations["method"].map({"baseline": 0.02, "ngram": 0.05}))
    metrics = summary_of((few, generations)).arms[3].metrics
    by_category = {name for name in metrics if name.startswith("category/")}
    assert set(metrics) - by_category == ALWAYS
    assert all(isfinite(value) for value in metrics.values())
    assert {"category/few/speedup", "category/many/tokens_per_round.ci_low", "category/many/alpha.mle"} < by_category
    assert "category/few/speedup.ci_low" not in metrics  # of few prompts
    arm, baseline = rounds[rounds["gamma"] == 3], rounds[rounds["method"] == "baseline"]
    assert metrics["accepted_per_offered"] == pytest.approx(arm["accepted"].sum() / arm["offered"].sum())
    ours, theirs = (table.groupby("prompt")[["round_s", "committed"]].sum() for table in (arm, baseline))
    by_prompt = (theirs["round_s"] / theirs["committed"]) / (ours["round_s"] / ours["committed"])
    assert metrics["speedup.prompt_mean"] == pytest.approx(by_prompt.mean())
    assert metrics["speedup.prompt_median"] == pytest.approx(by_prompt.median())
    kept = arm[arm["prompt"] != "p000"]
    assert metrics["tokens_per_round.unflagged"] == pytest.approx(kept["committed"].sum() / len(kept))
    assert metrics["repetition/share"] == pytest.approx(1 / 12)
    # Each side counts its own prefill.
    theirs = (baseline["round_s"].sum() + 12 * 0.02) / baseline["committed"].sum()
    ours = (arm["round_s"].sum() + 12 * 0.05) / arm["committed"].sum()
    assert metrics["speedup.end_to_end"] == pytest.approx(theirs / ours)
    assert metrics["cost/prefill_share"] == pytest.approx(12 * 0.02 / (baseline["round_s"].sum() + 12 * 0.02))


def test_a_prompt_flagged_in_the_baseline_alone_is_dropped(run):
    generations = build_generations(run[0])
    generations.loc[(generations["method"] == "baseline") & (generations["prompt"] == "p004"), "flagged"] = True
    assert summary_of((run[0], generations)).arms[3].metrics["repetition/share"] == pytest.approx(1 / 12)
    metrics = summary_of((run[0], generations.assign(flagged=True))).arms[3].metrics
    assert metrics["repetition/share"] == 1 and "speedup.unflagged" not in metrics


def test_one_alpha_stands_behind_every_arm(summary):
    assert summary.alpha_source == "mle"
    assert summary.work.alpha == pytest.approx(summary.arms[3].metrics["alpha.mle"])
    assert summary.arms[1].metrics["account/alpha"] == summary.work.alpha != summary.arms[1].metrics["alpha.mle"]
    expected = tokens_per_round(summary.work.alpha, 1)
    assert summary.arms[1].metrics["tokens_per_round.capped_geometric"] == pytest.approx(expected)
    assert summary.arms[3].account.intervals["omega"].low < summary.arms[3].account.intervals["omega"].high


def test_alpha_of_the_text_takes_precedence(run, summary):
    prompts = sorted(run[0]["prompt"].unique())
    sums = pd.DataFrame({"prompt": prompts, "numerator": range(1, 13), "denominator": 20.0})
    resampled = summary_of(run, text=sums)
    assert resampled.work.alpha == pytest.approx(78 / 240) and resampled.alpha_source == "text"
    metrics, omega = resampled.arms[3].metrics, resampled.arms[3].account.intervals["omega"]
    ends = [metrics["alpha.text.ci_low"], metrics["alpha.text.ci_high"]]
    assert metrics["alpha.text"] == resampled.work.alpha and ends[0] < resampled.work.alpha < ends[1]
    # The same replicates as the account's: Omega rises with alpha, so its percentiles are those of alpha; moving both
    # apart on their own scales makes a small difference.
    assert tokens_per_round(np.array(ends), 3).tolist() == pytest.approx([omega.low, omega.high], rel=1e-2)
    assert "alpha.text" not in summary.arms[3].metrics


def test_replay_and_the_cost_of_a_step_are_taken_up(run):
    prompts = sorted(run[0]["prompt"].unique())
    replay = pd.DataFrame({"kind": "own", "gamma": 3, "prompt": prompts, "tokens": 50, "rounds": 18.5})
    summary = summary_of(run, replay=replay)
    metrics = summary.arms[3].metrics
    assert summary.arms[3].account.value("replay") == pytest.approx(50 / 18.5) and "account/drift" in metrics
    assert "account/drift" not in summary.arms[1].metrics
    assert metrics["cost/c"] == pytest.approx(metrics["cost/g"] / 3)
    expected = metrics["tokens_per_round.capped_geometric"] / (1 + metrics["cost/g"])
    assert metrics["speedup.capped_geometric"] == pytest.approx(expected)
    assert summary.arms[1].metrics["cost/g"] == pytest.approx(0.003 / T1_S)


def test_copies_add_time_and_no_evidence(run, summary):
    rounds, _ = run
    copies = rounds.assign(repeat=1, round_s=rounds["round_s"] * 1.5)
    twice_rounds = pd.concat([rounds, copies], ignore_index=True)
    twice = summary_of((twice_rounds, build_generations(twice_rounds, flagged=["p000"])))
    one, two = summary.arms[3].metrics, twice.arms[3].metrics
    for name in ("iid/depth_p", "iid/prompts_p", "iid/memory_p", "alpha.mle", "alpha.mle.ci_low", "tokens_per_round"):
        assert two[name] == pytest.approx(one[name]), name
    assert two["throughput/tokens_per_s"] == pytest.approx(one["throughput/tokens_per_s"] / 1.25)


def test_gamma_one_has_no_depth_test_and_one_prompt_no_interval(run, summary):
    assert "iid/depth_p" not in summary.arms[1].metrics
    rounds = run[0][run[0]["prompt"] == "p003"]
    arm = summary_of((rounds, build_generations(rounds))).arms[3]
    assert "speedup" in arm.metrics and "speedup.ci_low" not in arm.metrics
    assert "iid/prompts_p" not in arm.metrics and "one prompt" in arm.iid["prompts"].reason
    assert not any(name.startswith("category/") for name in arm.metrics)


def test_bad_input_is_refused(run):
    rounds, _ = run
    with pytest.raises(ValueError, match="primary gamma 5"):
        SharedWork.of(Arms.of(rounds), 5)
    two = rounds.assign(method=rounds["method"].where(rounds["gamma"] != 1, "medusa"))
    cells = (
        rounds.assign(cell=np.where(here, "other", "cell")) for here in (rounds["prompt"] == "p000", two["gamma"] == 3)
    )
    for bad in (rounds[rounds["method"] != "baseline"], two, *cells):
        with pytest.raises(ValueError, match="one cell with a baseline and one drafter"):
            SharedWork.of(Arms.of(bad), 3)


# Curves of models over gamma --------------------------------------------------------------------------

FACTS = SimpleNamespace(simulated=False, predicted={2: 1.7})
EMPTY = pd.DataFrame(columns=["kind", "gamma", "prompt", "tokens", "rounds"])


def summarised(arms):
    """Summarise {gamma: rounds} beside a baseline that wrote the same texts; with the rounds."""
    rounds = pd.concat([*arms.values(), plain_rounds(next(iter(arms.values())))], ignore_index=True)
    return summarise(SharedWork.of(Arms.of(rounds), 2), build_generations(rounds), 200, 9), rounds


# One prompt of 30 tokens on which every draft passes, one of 60 on which none does, at gamma 2 and 1.
TWO_PROMPTS = {
    2: build_rounds({"easy": [2] * 10, "hard": [0] * 60}, 2),
    1: build_rounds({"easy": [1] * 15, "hard": [0] * 60}, 1),
}


def test_the_position_model_has_not_seen_what_it_predicts():
    """Fitted to the hard prompt it takes 30 rounds for the easy one's text, fitted to the easy one 60 / 3 for the hard
    one's; fitted to both, as the measurement is made of both, it would nearly repeat the measured 90 / 70.
    """
    summary, rounds = summarised(TWO_PROMPTS)
    curves = model_curves(summary, held_out(Arms.of(rounds), None, None, 200), EMPTY, FACTS, 200)
    assert curves["curve/measured"] == pytest.approx({2: 90 / 70, 1: 90 / 75})
    assert curves["curve/position"] == pytest.approx({2: 90 / (30 + 20), 1: 90 / (30 + 30)})
    step = 1 + summary.arms[2].metrics["cost/g"]
    assert curves["curve/speedup/position"][2] == pytest.approx(1.8 / step)
    assert "curve/replay" not in curves and "curve/position.ci_low" not in curves  # two prompts cannot be resampled


def test_replay_is_of_the_baselines_texts_and_the_accounts_of_the_drafters_own():
    summary, rounds = summarised(TWO_PROMPTS)
    lines = [
        *(("own", 2, "easy", 30, 10), ("own", 2, "hard", 60, 60)),
        *(("baseline", 2, "easy", 30, 12), ("baseline", 2, "hard", 60, 48)),
    ]
    replay = pd.DataFrame(lines, columns=list(EMPTY))
    prediction = held_out(Arms.of(rounds), None, replay[replay["kind"] == "baseline"], 200)
    curves = model_curves(summary, prediction, replay, FACTS, 400)
    assert curves["curve/replay"] == pytest.approx({2: 90 / 60})
    assert "curve/replay.ci_low" not in curves  # two prompts have no interval
    assert curves["curve/speedup/predicted"] == {2: 1.7}
    simulated = SimpleNamespace(simulated=True, predicted={})
    assert "curve/replay" not in model_curves(summary, prediction, replay, simulated, 200)


def test_every_curve_has_its_interval_and_its_headline_metric():
    generator = np.random.default_rng(1)
    arms = {gamma: simulate(generator.beta(6, 2, size=8), 12, gamma, generator) for gamma in (2, 1, 4)}
    summary, rounds = summarised(arms)
    prediction = held_out(Arms.of(rounds), None, None, 200)
    curves = model_curves(summary, prediction, EMPTY, FACTS, 200)
    for name in ("measured", "capped_geometric", "position", "speedup/measured", "speedup/position"):
        low, value, high = (curves[f"curve/{name}{end}"] for end in (".ci_low", "", ".ci_high"))
        assert set(value) == {1, 2, 4} == set(low) == set(high)
        assert all(low[gamma] <= value[gamma] <= high[gamma] and low[gamma] < high[gamma] for gamma in value), name
    for gamma, arm in summary.arms.items():
        metrics = arm.metrics | model_metrics(curves, gamma)
        for name in ("capped_geometric", "position"):
            assert metrics[f"tokens_per_round.{name}"] == curves[f"curve/{name}"][gamma]
        for quantity, curve in (("tokens_per_round", "curve/measured"), ("speedup", "curve/speedup/measured")):
            for end in ("", ".ci_low", ".ci_high"):
                assert metrics[quantity + end] == curves[curve + end][gamma]
        formula = curves["curve/speedup/capped_geometric"][gamma]
        assert metrics["speedup.capped_geometric"] == pytest.approx(formula, rel=1e-12)
        of_gamma, plain = rounds[rounds["gamma"] == gamma], rounds[rounds["method"] == "baseline"]
        time = (of_gamma["draft_s"] + of_gamma["verify_s"]).mean() / plain["verify_s"].mean()
        priced = curves["curve/speedup/priced"][gamma]
        assert priced == pytest.approx(metrics["tokens_per_round.capped_geometric"] / time, rel=1e-9)
        parts = {part: arm.account.intervals[part].estimate for part in ("verify", "acceptance", "loop")}
        assert priced == pytest.approx(formula * parts["verify"], rel=1e-9)
        assert priced * parts["acceptance"] * parts["loop"] == pytest.approx(metrics["speedup"], rel=1e-9)
        assert "tokens_per_round.priced" not in metrics  # a price changes no token
    table = prediction.table.set_index(["model", "gamma"])
    assert {gamma: table.at[("position", gamma), "predicted"] for gamma in (1, 2, 4)} == curves["curve/position"]


# As the papers define it ------------------------------------------------------------------------------


def tables(names: tuple[str, ...] = ("code", "text", ""), original: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    generator = np.random.default_rng(0)
    arm = simulate(generator.beta(6, 2, size=15), 10, 3, generator)
    arm["category"] = arm["prompt"].str[1:].astype(int).map(lambda number: names[number % len(names)])
    arm = pd.concat([arm, arm.assign(repeat=1)], ignore_index=True)
    rounds = [arm, plain_rounds(arm)]
    if original:
        rounds.append(plain_rounds(arm, "original", extra=3))
    joined = pd.concat(rounds, ignore_index=True)
    joined["round_s"] += generator.uniform(0, 0.03, len(joined))
    return joined, build_generations(joined)


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


def test_every_figure_is_a_ratio_of_sums_with_an_interval():
    rounds, generations = tables()
    metrics = summary_of((rounds, generations)).primary.metrics
    for prefix, part in (("", rounds), ("category/text/", rounds[rounds["category"] == "text"])):
        expected = direct(part)
        assert set(expected) == set(PAPERS)
        for name, value in expected.items():
            assert metrics[prefix + name] == pytest.approx(value, rel=1e-12), prefix + name
            assert metrics[f"{prefix}{name}.ci_low"] < value < metrics[f"{prefix}{name}.ci_high"], prefix + name


@pytest.mark.slow
def test_the_original_model_adds_its_own_figures_and_changes_no_other(stored_run):
    both, without = tables(), tables(original=False)
    metrics, plain = summary_of(both).primary.metrics, summary_of(without).primary.metrics
    added = {name for name in metrics if name not in plain and not name.startswith("category/")}
    assert added == {f"{name}{end}" for name in AGAINST_ORIGINAL for end in ("", ".ci_low", ".ci_high")}
    assert {name: metrics[name] for name in plain} == plain
    settings = {"structure__gamma": "3", "measurement__bootstrap": "50", "seed": "0"}
    columns = {"replay": ("gamma", "kind", "prompt"), "alpha": ("prompt", "numerator", "denominator")}
    empty = {name: pd.DataFrame(columns=names) for name, names in columns.items()}
    runs = [stored_run(rounds, tables=empty, **settings) for rounds, _ in (both, without)]
    (arm,), (other,) = (list(open_arms(run).values()) for run in runs)
    pd.testing.assert_frame_equal(arm.sums, other.sums)
    assert account_sums(runs[0]).account() == account_sums(runs[1]).account()
    texts = [[section.text for section in model_sections(run)] for run in runs]
    assert texts[0] == texts[1]


def test_categories_of_mt_bench_are_pooled_for_spec_bench_and_those_of_other_sets_are_not():
    rounds, generations = tables(("math", "qa", "writing", "rag"))
    metrics = summary_of((rounds, generations)).primary.metrics
    expected = direct(rounds[rounds["category"].isin(MT_BENCH)])
    assert {name: metrics[f"category/mt_bench/{name}"] for name in expected} == pytest.approx(expected)
    assert metrics["category/math/speedup"] != metrics["category/mt_bench/speedup"]
    ((_, shown),) = papers_section(SimpleNamespace(metrics=metrics)).tables
    assert list(shown["category"]) == ["math", "qa", "rag", "writing", "mt_bench", "overall"]
    for names in (["math", "writing"], ["math", "qa"], ["math", "writing", "code"], ["qa", "rag"]):
        prompts = pd.Series(names, index=[f"p{i}" for i in range(len(names))])
        assert set(category_members(prompts)) == set(names) and category_members(prompts.iloc[:1]) == {}


def test_the_table_has_a_row_per_category_and_the_original_model_only_where_it_ran(stored_run):
    metrics = summary_of(tables()).primary.metrics
    section = papers_section(SimpleNamespace(metrics=metrics))
    table = section.tables[0][1]
    assert list(table["category"]) == ["code", "none", "text", "overall"]
    overall = table.iloc[-1]
    assert overall["overhead"].startswith(f"{metrics['step_overhead']:.3f} ({metrics['step_overhead.ci_low']:.3f} to ")
    assert overall["compression ratio"] == overall["acceleration rate"]
    assert overall["speedup (original)"].startswith(f"{metrics['speedup.original']:.3f} ")
    assert f"{metrics['acceleration_rate']:.3f} over overhead {metrics['step_overhead']:.3f}" in section.text[0]
    plain = papers_section(SimpleNamespace(metrics=summary_of(tables(original=False)).primary.metrics))
    assert len(section.text) == 2 and len(plain.text) == 1
    assert not [name for name in plain.tables[0][1] if "original" in name]
    run = replace(stored_run(None), metrics=metrics)
    section = category_section(run)
    assert list(section.tables[0][1]["category"]) == ["code", "none", "text"]
    assert section.tables[0][1]["speedup"].iloc[0].startswith(f"{metrics['category/code/speedup']:.3f} ")
    run.metrics.update({name: float("nan") for name in metrics if "speedup.ci_" in name})  # as on a busy machine
    assert category_section(run).text == tuple(words for words in section.text if not words.startswith("Of 3"))


# Beside those of its rounds ------------------------------------------------------------------------------

OURS = {"draft_s": 0.003, "verify_s": 0.0225, "accept_s": 0.0014, "commit_s": 0.0005, "round_s": 0.0274}
PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.001, "round_s": 0.021}


def test_operations_count_every_token_of_a_call(make_rounds):
    """Each call evaluates its root and its draft: 5 + 5 + 3 + 1 tokens for 10; the drafter 10 at a twentieth each."""
    ours = make_rounds({"p": [2, 4, 0, 0]}, 4, offered={"p": [4, 4, 2, 0]}, durations=OURS)
    rounds = pd.concat([ours, make_rounds({"p": [0] * 10}, 0, "baseline", durations=PLAIN)], ignore_index=True)
    summary = summarise(SharedWork.of(Arms.of(rounds), 4), build_generations(rounds), 10, 9)
    metrics = operation_metrics(summary, SimpleNamespace(target_flops=100.0, drafter_flops=5.0))
    assert metrics["cost/c_ops"] == 0.05
    assert metrics["operations/measured"] == pytest.approx((14 + 0.05 * 10) / 10)
    alpha = 6 / 8  # six accepted, two rejected
    omega = sum(alpha**k for k in range(5))
    assert metrics["operations/capped_geometric"] == pytest.approx((4 * 0.05 + 4 + 1) / omega)
    assert operation_metrics(summary, SimpleNamespace(target_flops=0.0, drafter_flops=0.0)) == {}
    metrics = limit_metrics(summary)
    assert metrics["speedup.limit"] == pytest.approx(omega * 20 / (3 + 22.5))
    assert metrics["speedup.limit.realised"] == pytest.approx(10 / 4 * 20 / (3 + 22.5))
    assert metrics["cost/overhead_share"] == pytest.approx(1.9 / 27.4)


def plainly(seconds: list[float], make_rounds) -> Arms:
    """Ten prompts of 8 tokens, by the baseline in 8 seconds each, and by the control in `seconds`."""
    prompts = {f"p{number}": [0] * 8 for number in range(len(seconds))}
    baseline = make_rounds(prompts, 0, method="baseline", durations={**PLAIN, "round_s": 1.0})
    control = make_rounds(prompts, 0, method="null", durations={**PLAIN, "round_s": 1.0})
    control["round_s"] *= control["prompt"].map({f"p{number}": each / 8 for number, each in enumerate(seconds)})
    ours = make_rounds({name: [2, 4, 0, 0] for name in prompts}, 4, durations=OURS)
    return Arms.of(pd.concat([ours, baseline, control], ignore_index=True))


def test_a_control_has_the_baselines_time_over_its_own(make_rounds):
    found = null_metrics(plainly([8.0, 7.9, 8.2, 8.1, 7.6, 8.3], make_rounds), 2000)
    assert found["null/speedup"] == pytest.approx(48 / 48.1)
    assert found["null/speedup.ci_low"] < 1 < found["null/speedup.ci_high"]
    ends = found["null/speedup.ci_high"] - 1, 1 / found["null/speedup.ci_low"] - 1
    assert found["null/floor"] == pytest.approx(max(ends)) and 0.01 < found["null/floor"] < 0.06
    arms = plainly([8.0, 7.9, 8.2, 8.1], make_rounds)
    assert "null/floor" not in null_metrics(arms, 200)  # too few prompts
    assert list(arms.by_gamma()) == [4] == list(SharedWork.of(arms, 4).arms)  # a control is no arm of the drafter
    assert null_metrics(arms.of_methods(["baseline", "ngram"]), 100) == {}


def judged(prompts=6, known=True, correct=None, likelihood=-3.0):
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


def quality_of(*args, **kwargs):
    return quality_metrics(*judged(*args, **kwargs), gamma=2, replicates=400)


def test_every_figure_of_quality_is_a_ratio_of_sums():
    found = quality_of()
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
    ends = [found[f"quality/decided_otherwise.ci_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx([0.25, 0.25])
    assert not [name for name in found if "gsm8k" in name]
    correct = {"typical": [True, False, False, None, True, False], "baseline": [True, True, True, None, True, False]}
    found = quality_of(correct=correct)
    assert found["quality/gsm8k_exact_match"] == pytest.approx(2 / 5)
    assert found["quality/baseline_gsm8k_exact_match"] == pytest.approx(4 / 5)


def test_what_is_not_known_of_every_round_is_absent():
    found = quality_of(known=False)
    assert "quality/tv" not in found and "quality/decided_otherwise" not in found
    assert found["quality/baseline_tv"] == pytest.approx(0.25) and "quality/log_likelihood" in found
    rounds, outputs = judged()
    outputs.loc[0, "log_likelihood"] = -np.inf  # a text without a chance has no mean
    found = quality_metrics(rounds, outputs, 2, 100)
    assert not [name for name in found if "likelihood" in name] and "quality/tv" in found
    rounds.at[0, "departure"] = [0.2]  # of three committed tokens
    assert "quality/tv" not in quality_metrics(rounds, outputs, 2, 100)


def test_only_work_that_all_methods_did_counts():
    rounds, outputs = judged()
    rounds = rounds.query("prompt != 'p5' or method != 'typical'")
    found = quality_metrics(rounds, outputs.query("prompt != 'p5' or gamma != 2"), 2, 9)
    assert found["quality/tv"] == pytest.approx(0.1 * 2.0) == found["quality/baseline_tv"]
    with pytest.raises(ValueError, match="no prompt in common"):
        quality_metrics(rounds.query("(prompt == 'p0') == (method == 'typical')"), outputs, 2, 9)


def sampled_texts() -> pd.DataFrame:
    """Six prompts: of half of them the drafter gains a factor of 2 on a token, of the others one of 1.5; its texts have
    other lengths.
    """
    lines = [
        (0.5, "baseline", 0, 0, "a", "x", 10, 10, 0, 0, 1.0, 10.0, False),
        (0.5, "ours", 4, 0, "a", "x", 20, 5, 16, 3, 2.0, 10.0, True),
        (0.5, "baseline", 0, 0, "b", "x", 30, 30, 0, 0, 1.0, 30.0, False),
        (0.5, "ours", 4, 0, "b", "x", 30, 15, 15, 13, 1.0, 20.0, False),
    ]
    table = pd.DataFrame(lines, columns=list(SAMPLED))
    return pd.concat([table.assign(prompt=table["prompt"] + str(copy)) for copy in range(3)], ignore_index=True)


def test_times_of_a_token_are_compared_not_times_of_a_text():
    found = sampled_metrics(sampled_texts(), 2000)
    assert (found["sampled/temperature"], found["sampled/prompts"], found["sampled/repetition.share"]) == (0.5, 6, 0.5)
    assert found["sampled/speedup"] == pytest.approx((40 / 40) / (30 / 50))
    assert found["sampled/speedup.end_to_end"] == pytest.approx((42 / 40) / (33 / 50))
    assert found["sampled/tokens_per_round"] == pytest.approx(50 / 20)
    assert found["sampled/alpha.mle"] == pytest.approx(31 / 47)
    assert found["sampled/speedup.ci_low"] < 1.5 and found["sampled/speedup.ci_high"] > 1.9
    on_a_busy_machine = sampled_metrics(sampled_texts(), 2000, timed=False)
    bounds = {f"sampled/{name}.ci_{end}" for name in ("speedup", "speedup.end_to_end") for end in ("low", "high")}
    assert on_a_busy_machine == {name: value for name, value in found.items() if name not in bounds}
    found = sampled_metrics(sampled_texts().iloc[:3], 100)
    assert found["sampled/speedup"] == pytest.approx(2) and "sampled/speedup.ci_low" not in found
    assert sampled_metrics(pd.DataFrame(), 100) == {}
