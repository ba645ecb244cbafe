"""The time budget of a run: which runs have one, what is left out for lack of time, and what says so."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fixtures.resumed_runs import config_of, decode, found
from fixtures.small_parts import composed

from specdec.analysis.read.facts import RunStatus
from specdec.analysis.read.runs import open_folder
from specdec.clock import SimulatedClock
from specdec.config import RunConfig
from specdec.folder.identity import RunIdentity
from specdec.models import load, model_files
from specdec.plan.plan import EXAMPLE_S, FIRST_LOOK_S, plan
from specdec.plan.time_budget import LEAST, TimeBudget
from specdec.prompts import Prompt
from specdec.session import experiment
from specdec.session.identify import identify
from specdec.session.parts import open_parts
from specdec.session.session import Conversation, Session
from specdec.tracking.writer import PARENT_RUN

PROMPTS = "prompts.tokens=[[0],[1],[2],[0,1],[1,2],[2,0],[0,0],[1,1],[2,2],[0,2]]"


def conversation(name: str, turns: int = 1) -> Conversation:
    return Conversation(0, 0, Prompt(name, "words", "", (1, 2), follow_ups=("on",) * (turns - 1)), 0)


def decoded(budget: TimeBudget, clock: SimulatedClock, seconds: list[float], kept: Sequence[int] = ()) -> list[int]:
    """Decode prompts that take so many seconds each; return the numbers of those that were."""
    found = []
    for number, took in enumerate(seconds):
        with budget.decoding(conversation(f"p{number}").turns, number in kept) as there_is_time:
            if there_is_time:
                found.append(number)
                clock.advance(0.0 if number in kept else took)
    return found


@pytest.mark.parametrize(
    ("seconds", "took", "count"),
    [
        (None, [9.0] * 12, 12),
        (70.0, [9.0] * 12, 7),  # seven take 63 s, and the next would end after 72
        (72.0, [9.0] * 12, 8),
        (1.0, [9.0] * 12, LEAST),  # in any case
        (100.0, [1.0] * 6 + [90.0] * 6, 7),  # what a prompt will take is not known: one may end late, and is the last
    ],
)
def test_whole_prompts_are_left_out_when_time_runs_short(seconds, took, count):
    clock = SimulatedClock()
    clock.advance(100)  # before the run
    budget = TimeBudget(seconds, clock.mark)
    assert decoded(budget, clock, took) == list(range(count))
    assert budget.left_out == [f"p{number}" for number in range(count, len(took))]


def test_the_time_of_a_run_counts_from_when_its_command_began():
    clock = SimulatedClock()
    clock.advance(100)
    budget = TimeBudget(80.0, clock.mark, since=85.0)
    assert budget.gone == 15 and decoded(budget, clock, [9.0] * 12) == list(range(7))
    budget.lap("decoding")
    assert budget.stages == "Seconds by stage: decoding 78.0."  # all that is gone


def test_what_was_there_before_is_never_left_out():
    clock = SimulatedClock()
    budget = TimeBudget(31.0, clock.mark)  # p4 ends after 29 s
    clock.advance(20)
    assert decoded(budget, clock, [9.0] * 9, (0, 1, 2, 3, 7)) == [0, 1, 2, 3, 4, 7]
    assert budget.left_out == ["p5", "p6", "p8"]


def test_later_turns_are_left_out_with_their_prompt():
    clock = SimulatedClock()
    budget = TimeBudget(1.0, clock.mark)
    decoded(budget, clock, [9.0] * LEAST)
    with budget.decoding(conversation("talk", turns=3).turns, False) as there_is_time:
        assert not there_is_time
    assert budget.left_out == ["talk", "talk/turn2", "talk/turn3"]


@pytest.mark.parametrize(
    ("seconds", "fit"),
    [(500.0, "all 19 others"), (60.0, "about 9 of the 19 others"), (1.0, f"about {LEAST - 1} of the 19 others")],
)
def test_the_first_prompt_tells_how_many_will_fit(seconds, fit):
    clock = SimulatedClock()
    budget = TimeBudget(seconds, clock.mark)
    clock.advance(10)
    assert budget.expectation(20) == ""
    decoded(budget, clock, [5.0])
    assert f"15 of {seconds:g} s are gone, with a first prompt of 5.0 s; {fit}" in budget.expectation(19)
    assert budget.expectation(0) == TimeBudget(None, clock.mark).expectation(19) == ""


def test_stages_add_up():
    clock = SimulatedClock()
    budget = TimeBudget(None, clock.mark)
    for stage, seconds in (("opening", 2.0), ("decoding", 30.0), ("report", 4.5), ("decoding", 1.0)):
        clock.advance(seconds)
        budget.lap(stage)
    assert budget.stages == "Seconds by stage: opening 2.0, decoding 31.0, report 4.5."


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        ("+drafter=ngram", FIRST_LOOK_S),
        ("+drafter=ngram structure.gamma=2 sampling.temperature=1 seed=3 tracking.enabled=false", FIRST_LOOK_S),
        ("+drafter=ngram prompts.limit=80", None),
        ("+drafter=ngram measurement.repeats=3", None),
        ("+drafter=ngram target.model=some/model", None),
        ("+drafter=ngram target=smollm2 prompts.limit=20", EXAMPLE_S),
        ("+drafter=ngram target=smollm2 measurement.repeats=3", None),
        ("+drafter=ngram target.compile=true", None),
        ("+drafter=ngram experiment_name=mine", None),
        ("+drafter=ngram measurement.budget_seconds=null", None),
        ("+drafter=ngram prompts.limit=80 measurement.budget_seconds=600", 600.0),
    ],
)
def test_only_first_looks_are_bounded_unasked(monkeypatch, overrides, seconds):
    pocket = load.model_path("pocket")
    monkeypatch.setattr(model_files, "installed_smollm2", lambda: pocket)  # whose package need not be installed
    assert plan(composed(*overrides.split())).budget_seconds == seconds


def test_a_cell_of_a_sweep_is_not_bounded_unasked(monkeypatch, tmp_path):
    monkeypatch.setenv(PARENT_RUN, str(tmp_path))
    assert plan(composed("+drafter=ngram")).budget_seconds is None


@pytest.fixture
def clock(monkeypatch) -> SimulatedClock:
    """A clock by which every prompt takes ten seconds."""
    clock, run_prompt = SimulatedClock(), Session.run_prompt

    def slow(session, *given):
        clock.advance(10)
        return run_prompt(session, *given)

    monkeypatch.setattr(Session, "run_prompt", slow)
    return clock


def of_seconds(seconds: float, *overrides: str) -> RunConfig:
    short = ("measurement.max_new_tokens=8", "measurement.gammas=[1]")
    return config_of("+drafter=ngram", PROMPTS, *short, f"measurement.budget_seconds={seconds}", *overrides)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_a_run_that_was_cut_is_finished_and_says_what_it_decoded(tmp_path, clock, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "TimeBudget", partial(TimeBudget, now=clock.mark))
    monkeypatch.setenv("SPECDEC_VERBOSE", "1")
    cut = plan(of_seconds(80, "measurement.drafters=[suffix]", "measurement.null=false"))
    experiment.run_experiment(cut, tmp_path, since=clock.mark() - 10)  # imports took ten seconds
    said = " ".join(capsys.readouterr().out.split())
    run = open_folder(tmp_path)
    texts = run.generations()
    assert texts["prompt"].nunique() == 7
    arms = [set(part["prompt"]) for _, part in texts.groupby(["method", "gamma"])]
    assert all(arm == arms[0] for arm in arms), "every method decoded the same prompts"
    left_out = set(json.loads((tmp_path / "session.json").read_text())["left_out"])
    assert len(left_out) == 3 and not left_out & arms[0]
    status = RunStatus.read(tmp_path)
    assert (status.status, status.prompts_done, status.prompts, status.left_out) == ("finished", 7, 10, 3)
    assert not status.partial and run.status == "FINISHED"
    assert (run.metrics["prompts/done"], run.metrics["prompts/left_out"]) == (7, 3)
    sentence = "7 of 10 prompts were decoded, in an order drawn by the seed, because the time budget of 80 s was spent"
    report = (tmp_path / "report.md").read_text()
    assert sentence in said and report.count(sentence) >= 2, "in the report's head, and in its notes"
    assert "time budget 80 s until the last prompt is decoded" in said
    assert "about 6 of the 9 others are expected to fit" in said
    assert "partial" not in report


def cut_order(folder: Path, clock: SimulatedClock, seconds: float, *overrides: str) -> list[str]:
    """Decode within a budget; return the prompts that there was time for, in their order."""
    decode(of_seconds(seconds, *overrides), folder, budget=TimeBudget(seconds, clock.mark))
    return list(dict.fromkeys(line["prompt"] for line in found(folder)["generations"]))


@pytest.mark.slow
def test_which_prompts_are_left_out_follows_from_the_seed_and_not_from_their_cost(tmp_path, clock):
    first = cut_order(tmp_path / "first", clock, 70)
    assert len(first) == 7 and first == cut_order(tmp_path / "again", clock, 70)
    whole = cut_order(tmp_path / "whole", clock, 1000)
    assert first == whole[:7], "a shorter budget cuts the same order"
    assert whole != cut_order(tmp_path / "other", clock, 1000, "seed=1")
    config = config_of("+drafter=ngram", PROMPTS)
    decode(config, tmp_path / "unbounded")
    own = [prompt.id for prompt in open_parts(plan(config)).prompts.prompts]
    lines = found(tmp_path / "unbounded")["generations"]
    assert list(dict.fromkeys(line["prompt"] for line in lines)) == own != whole and sorted(own) == sorted(whole)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_in_its_order_with_a_budget_of_its_own(tmp_path, clock, each_prompt_at_once):
    whole = cut_order(tmp_path / "whole", clock, 1000)
    decode(of_seconds(60), tmp_path / "killed", 3, TimeBudget(60, clock.mark))
    kept = decode(of_seconds(60), tmp_path / "killed", budget=TimeBudget(60, clock.mark)).kept
    assert [prompt for _, prompt in kept] == whole[:3]
    lines = found(tmp_path / "killed")["generations"]
    assert list(dict.fromkeys(line["prompt"] for line in lines)) == whole[:9]


def identity_of(seconds: float | str | None) -> RunIdentity:
    config = config_of("+drafter=ngram", PROMPTS)
    bounded = replace(config, measurement=replace(config.measurement, budget_seconds=seconds))
    return identify(open_parts(plan(bounded)))


def test_a_bound_belongs_to_the_identity_of_a_run_and_is_logged_as_what_auto_became(monkeypatch):
    monkeypatch.setattr("specdec.plan.plan._budget", lambda config: FIRST_LOOK_S)
    assert identity_of("auto").params["measurement.budget_seconds"] == FIRST_LOOK_S
    monkeypatch.undo()
    found = {asked: identity_of(asked) for asked in (None, 60.0)}
    assert all(found[asked].params["measurement.budget_seconds"] == asked for asked in found)
    assert found[None].cell != found[60.0].cell


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        ("", "trace"),
        ("measurement.repeats=20", "inductor"),
        ("measurement.repeats=20 measurement.budget_seconds=100", "trace"),
        ("measurement.repeats=20 measurement.batch_size=2", None),
    ],
)
def test_the_first_look_is_traced_and_a_long_run_is_compiled(overrides, mode):
    own = "+drafter=small_model target.device=cpu target.compile_cache=null"
    parts = open_parts(plan(composed(*own.split(), *overrides.split())))
    assert parts.target.compilation == parts.primary.drafter._compilation == mode
