"""`measurement.batch_size`: a run of several prompts at once writes what a run of one at a time writes, and shares its
times.
"""

import json
from dataclasses import replace

import pandas as pd
import pytest
from fixtures.resumed_runs import SAMPLED, TIMES, config_of, decode, found

from specdec.clock import SimulatedClock
from specdec.errors import NumericsError, UsageError
from specdec.folder.results import ResultsFolder
from specdec.plan.plan import plan
from specdec.session import experiment, measure
from specdec.session.batched_session import BatchedSession
from specdec.session.parts import open_parts
from specdec.targets.table import Table
from specdec.timing.timer import Timer

NGRAM = "+drafter=ngram"
KEYS = ["method", "gamma", "repeat", "prompt", "round"]


def rounds_of(folder, *overrides: str) -> pd.DataFrame:
    decode(config_of(*overrides), folder)
    return pd.read_parquet(folder / "rounds.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("how", [(NGRAM,), (NGRAM, *SAMPLED), ("+drafter=oracle", "seed=1")])
def test_rounds_and_texts_are_those_of_one_at_a_time(tmp_path, how):
    """Also where a group is shorter than the prompts, so that the second begins anew, and in later repeats."""
    settings = (*how, "measurement.repeats=2", "measurement.max_new_tokens=12", "measurement.null=false")
    alone = rounds_of(tmp_path / "1", *settings)
    assert alone["batch"].eq(1).all()
    for size in (2, 4) if how == (NGRAM,) else (len(how),):
        together = rounds_of(tmp_path / str(size), *settings, f"measurement.batch_size={size}")
        one, other = (table.sort_values(KEYS, ignore_index=True) for table in (alone, together))
        own = [*TIMES, "batch", "cell"]
        pd.testing.assert_frame_equal(one.drop(columns=own, errors="ignore"), other.drop(columns=own, errors="ignore"))
        assert other["batch"].max() == min(size, 6) and other["batch"].min() >= 1
        texts, others = (
            [line["generated_token_ids"] for line in found(tmp_path / name)["generations"]] for name in ("1", str(size))
        )
        assert others == texts


def test_a_group_keeps_the_slots_full(monkeypatch, tmp_path):
    """Prompts wait in a queue, so that two of three steps or more have a full batch."""
    monkeypatch.setattr("specdec.session.batched_session.FILLS", 3)
    rounds = rounds_of(tmp_path, NGRAM, "measurement.batch_size=2", "measurement.max_new_tokens=12")
    assert rounds["batch"].eq(2).mean() > 2 / 3


@pytest.fixture
def slow(monkeypatch):
    """A call of a table takes a second, on the clock of this fixture."""
    clock, verify = SimulatedClock(), Table.verify

    def slowed(self, draft):
        clock.advance(1.0)
        return verify(self, draft)

    monkeypatch.setattr(Table, "verify", slowed)
    monkeypatch.setattr(measure, "clock_for", lambda device: clock)
    return clock


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_a_whole_run_calibrates_at_its_batch_and_its_account_multiplies_out(tmp_path, slow, monkeypatch):
    """A table evaluates slot after slot: a call on three takes three seconds, and a sequence's share is one."""
    monkeypatch.setattr(Timer, "disturbed", 3)
    found = experiment.run_experiment(
        plan(config_of(NGRAM, "measurement.batch_size=3", "measurement.gammas=[]", *SAMPLED)), tmp_path
    )
    calibration = json.loads((tmp_path / "calibration.json").read_text())
    assert calibration["disturbed"] == 3, "each is counted once, where no cost model is measured, too"
    assert calibration["t1_s"] == 1.0 and {item["median_s"] for item in calibration["t_n"].values()} == {1.0}
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    assert rounds["verify_s"].to_numpy() == pytest.approx(1.0) and set(rounds["batch"]) == {1, 2, 3}
    account = json.loads((tmp_path / "account.json").read_text())
    for gamma in account["gammas"].values():
        assert gamma["product"] == pytest.approx(gamma["speedup"], rel=1e-12)
    facts = json.loads((tmp_path / "plan.json").read_text())
    assert facts["batch_size"] == 3 and facts["label"].endswith(", batch 3")
    assert "Decoded 3 sequences at a time" in (tmp_path / "report.md").read_text()
    assert found.metrics["tokens_per_round"] > 1


def test_logits_that_are_not_finite_end_the_run_with_what_there_is(tmp_path, monkeypatch):
    """The first prompt of the group keeps the outputs of methods that were done, and rounds of the one that failed."""
    config = config_of(NGRAM, "measurement.batch_size=2")
    parts, results = open_parts(plan(config)), ResultsFolder(tmp_path)
    session = BatchedSession(parts, "cell", results, SimulatedClock())
    together, calls = BatchedSession._together, []

    def broken(self, arm, requests):
        calls.append(arm)
        found = together(self, arm, requests)
        if len(calls) < 3:
            return found
        error = NumericsError("not finite")
        error.partials = dict(enumerate(found.generations[:1]))
        raise error

    monkeypatch.setattr(BatchedSession, "_together", broken)
    prompts = parts.prompts.prompts
    session.decode_ahead(prompts, 0, 0)
    with pytest.raises(NumericsError, match="not finite"):
        session.run_prompt(prompts[0], 0, 0)
    results.compact()
    rounds = pd.read_parquet(tmp_path / "rounds.parquet")
    assert set(rounds["prompt"]) == {prompts[0].id} and rounds.groupby(["method", "gamma"]).ngroups == 3


def test_every_method_is_warmed_up(tmp_path, monkeypatch):
    parts = open_parts(plan(config_of(NGRAM, "measurement.batch_size=2")))
    warmed, together = [], BatchedSession._together
    monkeypatch.setattr(BatchedSession, "_together", lambda *given: warmed.append(given[1]) or together(*given))
    BatchedSession(parts, "cell", ResultsFolder(tmp_path), SimulatedClock()).warm_up(parts.prompts.prompts[0], 2)
    assert warmed == [*parts.plain, *parts.speculative]


def test_later_turns_and_advice_are_refused(monkeypatch):
    config = config_of(NGRAM, "measurement.batch_size=2")
    plain = open_parts(plan(config_of(NGRAM))).prompts
    turns = replace(plain, name="talks", prompts=(replace(plain.prompts[0], follow_ups=("and then?",)),))
    monkeypatch.setattr("specdec.session.parts.load_prompts", lambda *entries, **target: turns)
    with pytest.raises(UsageError, match="prompts=talks has later turns"):
        open_parts(plan(config))
    assert open_parts(plan(config_of(NGRAM))).prompts is turns
    with pytest.raises(UsageError, match="batch_size=2: specdec.advise decodes one sequence at a time"):
        plan(config, "advise")
