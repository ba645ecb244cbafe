"""Rounds whose times are known are slowed down as by other work, and must come out as they were."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import build_rounds

from specdec.analysis.account.run_account import account_sums
from specdec.analysis.busy_machine import BusyMachine, undisturbed, undisturbed_prefills
from specdec.analysis.findings.run_findings import run_findings
from specdec.analysis.read.runs import open_folder
from specdec.analysis.rounds import SECONDS, Arms, prompt_sums

PROMPTS = 12


def timed(seed, rounds=40, gamma=4):
    """Rounds whose seconds follow from the tokens of the call, the text's own pace and the length of the context."""
    dice = np.random.default_rng(seed)
    names = [f"p{number:02d}" for number in range(PROMPTS)]
    offered = {name: dice.integers(0, gamma + 1, rounds).tolist() for name in names}
    accepted = {name: [int(dice.integers(0, offer + 1)) for offer in offered[name]] for name in names}
    table = build_rounds(accepted, gamma, offered=offered)
    pace = dict(zip(names, dice.normal(1.0, 0.05, PROMPTS), strict=True))
    context = table.groupby("prompt")["tokens_left"].transform("max") - table["tokens_left"]
    whole = (0.02 + 0.004 * table["offered_nodes"]) * (1 + 0.0005 * context) * table["prompt"].map(pace)
    whole *= dice.lognormal(0.0, 0.03, len(table))
    shares = {"draft_s": 0.1, "verify_s": 0.8, "accept_s": 0.02, "commit_s": 0.03, "round_s": 1.0}
    return table.assign(**{name: share * whole for name, share in shares.items()})


def slowed(table, hit, factor=20.0):
    return table.assign(disturbed=hit, **{name: table[name] * np.where(hit, factor, 1.0) for name in SECONDS})


@pytest.mark.parametrize(("share", "bursts"), [(0.05, True), (0.4, False), (0.4, True)])
def test_disturbed_rounds_get_back_the_time_that_they_would_have_taken(share, bursts):
    for seed in range(2):
        quiet = timed(seed)
        dice = np.random.default_rng(seed)
        places = np.arange(len(quiet)) // (30 if bursts else 1)  # most of a text at once
        hit = (dice.random(places.max() + 1) < share)[places] | (places == 3)
        busy = slowed(quiet, hit)
        repaired = undisturbed(busy)
        counts = [name for name in quiet if name not in SECONDS]
        pd.testing.assert_frame_equal(repaired[counts], quiet[counts])
        pd.testing.assert_frame_equal(repaired.loc[~hit, [*SECONDS]], quiet.loc[~hit, [*SECONDS]])
        true, sums = (prompt_sums(table)[[*SECONDS]] for table in (quiet, repaired))
        assert (sums.sum() / true.sum()).to_numpy() == pytest.approx(1.0, abs=0.02)
        assert (sums / true - 1).abs().max(axis=None) < 0.12, "of a text of which nothing was undisturbed"
        verbs = repaired[["draft_s", "verify_s", "accept_s", "commit_s"]]
        assert (verbs >= 0).all(axis=None) and (verbs.sum(axis=1) <= repaired["round_s"] * (1 + 1e-9)).all()
        assert (repaired["lost_s"] + repaired["round_s"]).to_numpy() == pytest.approx(busy["round_s"].to_numpy())


def test_the_share_is_of_the_time_of_all_methods():
    ours = build_rounds({"a": [1, 2, 0]}, 4).assign(round_s=[1.0, 2.0, 1.0], disturbed=[False, True, False])
    plain = build_rounds({"a": [0, 0]}, 0, "baseline").assign(round_s=[3.0, 1.0], disturbed=[True, False])
    arms = Arms({("ngram", 4): lambda: undisturbed(ours), ("baseline", 0): lambda: undisturbed(plain)}, ours)
    busy = BusyMachine.of(arms)
    assert (busy.share, busy.rounds, busy.disturbed) == (pytest.approx(5 / 8), 5, 2)
    assert "busy with other work for 62% of the time" in busy.notes()[0] and not busy.doubt
    quiet = Arms({("baseline", 0): lambda: plain.drop(columns="disturbed")}, plain)
    assert not (BusyMachine.of(quiet).notes() or BusyMachine.of(quiet).reasons)


@pytest.mark.parametrize(
    ("nodes", "hit", "says"),
    [
        ([4, 4, 4, 4], [True, True, False, False], ""),
        ([4, 4, 4, 4], [True, True, True, False], "75% of the rounds of ngram with drafts of 4 were"),
        ([4, 4], [True, True], "100% of the rounds"),
        ([4, 4, 2, 2], [False, False, True, True], "never timed without it"),
    ],
)
def test_too_few_undisturbed_rounds_or_none_of_a_size_leave_a_doubt(nodes, hit, says):
    table = build_rounds({"a": [0] * len(nodes)}, 4).assign(offered_nodes=nodes, disturbed=hit)
    doubt = BusyMachine.of(Arms({("ngram", 4): lambda: undisturbed(table)}, table)).doubt
    assert says in doubt and bool(doubt) == bool(says)


@pytest.fixture(scope="module")
def slow_run(finished_run, tmp_path_factory):
    """`slow_run(0.3)` is a finished run in which so much of each arm's rounds was made 30 times as slow."""

    def make(share):
        folder = tmp_path_factory.mktemp("slow") / f"{share}"
        shutil.copytree(finished_run("chain"), folder)
        rounds = pd.read_parquet(folder / "rounds.parquet")
        size = {"ngram": 0.5, "baseline": 1.0, "null": 1.0}
        for name, part in zip(SECONDS, (0.1, 0.7, 0.1, 0.05, 1.0), strict=True):
            rounds[name] = part * 1e-3 * rounds["method"].map(size) * (1 + 0.1 * rounds["offered_nodes"])
        own = rounds.groupby(["method", "gamma"]).cumcount() * share % 1 + share >= 1
        slowed(rounds, own.to_numpy(), 30.0).to_parquet(folder / "rounds.parquet", index=False)
        return open_folder(folder)

    return make


@pytest.fixture(scope="module")
def quiet(slow_run):
    return run_findings(slow_run(0.0))


def test_a_busy_run_has_the_figures_of_a_quiet_one_and_says_so(slow_run, quiet, undrawn):
    run = slow_run(0.3)
    busy = run_findings(run)
    assert busy.metrics["speedup"] == pytest.approx(quiet.metrics["speedup"], rel=1e-6)
    for name, value in quiet.metrics.items():
        if name.startswith(("tokens_per_round", "alpha", "iid/", "account/", "accepted_per_offered")):
            assert busy.metrics[name] == pytest.approx(value, rel=1e-6), name
    assert busy.reasons[0].startswith("The machine was busy with other work for 9") and busy.closing[0] in busy.reasons
    assert not quiet.reasons or "machine" not in quiet.reasons[0]
    account, raw = account_sums(run).account(), run.rounds()
    seconds = raw.groupby(["method", "gamma"])[["round_s", "committed"]].sum()
    plain, ours = seconds.loc["baseline", 0], seconds.loc["ngram", run.primary_gamma]
    by_clock = plain["round_s"] / plain["committed"] / (ours["round_s"] / ours["committed"])
    assert account.speedup * account.value("machine") == pytest.approx(by_clock)


def test_a_run_that_was_disturbed_most_of_the_time_gives_a_verdict_on_tokens_alone(slow_run, quiet, undrawn):
    found = run_findings(slow_run(0.7))
    assert found.reasons[0].startswith("No verdict on speed, only on tokens: the machine was busy with other work for")
    words = " ".join([*found.closing, *found.notes])
    assert "pays" not in words and "costs most" not in words
    bounds = {name for name in found.metrics if name.endswith((".ci_low", ".ci_high"))}
    assert not [name for name in bounds if "speedup" in name or "throughput" in name]
    for name in ("tokens_per_round", "tokens_per_round.ci_low", "tokens_per_round.ci_high", "alpha.mle"):
        assert name not in quiet.metrics or found.metrics[name] == quiet.metrics[name]
    assert json.dumps(found.summary)


def test_a_disturbed_prefill_counts_as_the_others_of_its_prompt():
    lines = [("baseline", "a", 1.0, False), ("ngram", "a", 1.2, False), ("suffix", "a", 9.0, True)]
    lines += [("baseline", "b", 3.0, False), ("ngram", "b", 8.0, True), ("ngram", "c", 7.0, True)]
    table = pd.DataFrame(lines, columns=["method", "prompt", "prefill_s", "prefill_disturbed"]).assign(repeat=0)
    assert undisturbed_prefills(table)["prefill_s"].tolist() == [1.0, 1.2, 1.1, 3.0, 3.0, 1.2]
    quiet = table.assign(prefill_disturbed=False)
    assert undisturbed_prefills(quiet) is quiet
    earlier = table.drop(columns="prefill_disturbed")  # the run of a version that did not look
    assert undisturbed_prefills(earlier) is earlier
