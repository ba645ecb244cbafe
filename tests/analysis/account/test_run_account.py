"""The account of a logged run, rebuilt from its files: groups, what is missing, what contradicts itself."""

from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.account.account_sections import account_sections
from specdec.analysis.account.run_account import account_sums
from specdec.errors import UsageError


@pytest.fixture
def run(stored_run, make_rounds):
    """A run of two categories with its artifacts; `rewrite` changes one of them."""
    generator = np.random.default_rng(0)
    parts, baseline = [], []
    for i in range(8):
        name, category = f"p{i}", "code" if i < 5 else "prose"
        accepted = {name: generator.integers(0, 4, size=20).tolist()}
        offered = {name: [3] * 20}
        if name == "p7":  # no proposal at all
            accepted, offered = {name: [0] * 20}, {name: [0] * 20}
        part = make_rounds(accepted, 3, offered=offered, category=category)
        part["round_s"] *= generator.uniform(1.0, 1.5)
        parts.append(part)
        tokens = {name: [0] * int(part["committed"].sum())}
        times = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.021}
        baseline.append(make_rounds(tokens, 0, method="baseline", category=category, durations=times))
    rounds = pd.concat(parts + baseline, ignore_index=True)
    arm = rounds[rounds["method"] == "ngram"]
    sums = arm.groupby("prompt", as_index=False).agg(tokens=("committed", "sum"), rounds=("round", "size"))
    replay = sums.assign(gamma=3, kind="own", repeat=0)
    alpha = arm.groupby("prompt", as_index=False).agg(numerator=("accepted", "sum"), denominator=("offered", "sum"))
    tables = {"replay": replay, "alpha": alpha.assign(repeat=0)}
    return stored_run(rounds, tables=tables, structure__gamma="3", measurement__bootstrap="300", seed="0")


def rewrite(run, name, change):
    path = Path(run.source) / f"{name}.parquet"
    change(pd.read_parquet(path)).to_parquet(path)


def test_groups_have_their_own_alpha_and_close(run):
    rounds, groups = run.rounds(), account_sums(run).by("category")
    for account in groups:
        arm = rounds[(rounds["category"] == account.group) & (rounds["method"] == "ngram")]
        assert account.own_alpha and account.alpha == pytest.approx(arm["accepted"].sum() / arm["offered"].sum())
        enough = account.group == "code"  # prose has three prompts
        assert all(interval.known == enough for interval in account.intervals.values())
        assert account.product == pytest.approx(account.speedup, abs=1e-9) and len(account.factors) == 8
    assert [(account.group, account.prompts) for account in groups] == [("code", 5), ("prose", 3)]
    silent = account_sums(run).by("prompt")[-1]
    factors = silent.factors
    assert silent.group == "p7" and not silent.own_alpha
    assert silent.alpha == pytest.approx(account_sums(run).account().alpha)
    assert factors["offered"] == pytest.approx(1 / factors["omega"])
    assert not any(interval.known for interval in silent.intervals.values())  # one prompt
    main, category, prompts = sections = account_sections(run)
    assert "No proposal was ever tested for 1 of 8 (p7)" in " ".join(text for each in sections for text in each.text)
    assert "tokens per round at gamma 3; the capped geometric, which accepts every draft token" in main.text[0]
    assert "Speculation" in main.text[1] and "A round takes" in main.text[2]
    assert list(category.tables[0][1]["category"]) == ["code", "prose"]
    (_, slowest), (_, fastest) = prompts.tables
    assert len(slowest) == len(fastest) == 4 and slowest["speedup"].map(attrgetter("estimate")).is_monotonic_increasing
    assert not set(slowest["prompt"]) & set(fastest["prompt"]) and slowest["prompt"].iloc[0] == "p7"


def test_only_the_replay_of_this_gammas_own_texts_counts(run):
    alone = account_sums(run).account()
    assert alone.factors["drift"] == pytest.approx(1)  # the run's replay expects the rounds that were measured

    def with_others(table):
        along_baseline = table.assign(kind="baseline", rounds=0.5 * table["rounds"])
        return pd.concat([table, along_baseline, table.assign(gamma=2, rounds=7.0)])

    rewrite(run, "replay", with_others)
    assert account_sums(run).account().factors == alone.factors


def test_t1_is_the_mean_call_of_the_baseline_of_the_run_and_of_each_group(run):
    assert account_sums(run).account().t1_s == pytest.approx(0.02)
    assert account_sums(run).account().factors["baseline"] == pytest.approx(21 / 20)

    def slower(table):
        prose = (table["method"] == "baseline") & (table["category"] == "prose")
        return table.assign(verify_s=table["verify_s"].where(~prose, 0.0205))

    rewrite(run, "rounds", slower)
    code, prose = account_sums(run).by("category")
    assert (code.t1_s, prose.t1_s) == (pytest.approx(0.02), pytest.approx(0.0205))
    assert code.t1_s < account_sums(run).account().t1_s < prose.t1_s


def test_bad_input_is_one_sentence(run):
    rewrite(run, "rounds", lambda table: table[table["method"] != "baseline"])
    with pytest.raises(UsageError, match="run0 has no account: one cell with a baseline"):
        account_sums(run)
