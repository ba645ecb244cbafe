"""The sections on models: what they hold, that their words follow the numbers, what is said without data; choices."""

import numpy as np
import pandas as pd
import pytest
from fixtures import simulated_rounds as simulation
from oracles.rounds import replay_rounds

from specdec.analysis.acceptance.model_sections import FORETOLD, choice_in_words, model_sections
from specdec.analysis.read.runs import Run


@pytest.fixture
def run_of(stored_run):
    def build(rounds: pd.DataFrame, **tables: pd.DataFrame) -> Run:
        first = rounds[rounds["gamma"] == rounds["gamma"].min()]
        columns = {"method": "baseline", "gamma": 0, "offered": 0, "offered_nodes": 0, "accepted": 0, "rejected": False}
        table = pd.concat([first.assign(**columns, committed=1), rounds])
        return stored_run(table, "simulated", tables=tables, structure__gamma="4")

    return build


def test_there_are_tests_models_and_prediction(run_of):
    """A position-wise drafter on 24 prompts that differ, with its replay and alpha."""
    generator = np.random.default_rng(0)
    centre = generator.beta(6, 2, size=(24, 1))
    m = generator.beta(20 * centre, 20 * (1 - centre), size=(24, 60))
    rounds = pd.concat([simulation.along_texts(m, gamma, 0) for gamma in (1, 4)])
    names = sorted(rounds["prompt"].unique())
    replay = pd.DataFrame(
        {"gamma": g, "kind": kind, "prompt": p, "repeat": 0, "tokens": 60, "rounds": replay_rounds(each, g)}
        for kind in ("own", "baseline")
        for g in (1, 4)
        for p, each in zip(names, m, strict=True)
    )
    alpha = pd.DataFrame({"prompt": names, "repeat": 0, "numerator": m.sum(axis=1), "denominator": 60.0})
    run = run_of(rounds, replay=replay, alpha=alpha)
    sections = {section.title: section for section in model_sections(run)}
    assert list(sections) == [
        "Is acceptance independent and the same everywhere?",
        "Which model describes the rounds?",
        "What would each model have predicted?",
    ]
    names = [name for section in sections.values() for name, _ in section.figures]
    assert names == ["acceptance_by_depth", "prediction_error"]
    section = sections["Is acceptance independent and the same everywhere?"]
    ((caption, table),) = section.tables
    assert "gamma 4" in caption and "24 prompts" in caption and "95% prompt-bootstrap" in caption
    readings = dict(zip(table["question"], table["reading"], strict=True))
    assert len(readings) == 9
    assert readings["Do prompts differ (chi-squared)?"] == "some prompts are easier than others"
    assert readings["Do neighbouring rounds resemble each other?"] == "no sign that they do"
    assert readings["Does the run take the rounds that its replay expects?"].startswith("it does")
    assert "prompts" in section.text[0] and section.text[1].startswith("Prompts differ.")
    (caption, ranking), *_ = sections["Which model describes the rounds?"].tables
    assert ranking["behind"].iloc[0] == 0 and ranking["model"].iloc[0] == "prompts differ (prompt beta)"
    section = sections["What would each model have predicted?"]
    assert "fitted to the rounds of one half at gamma 4, the largest" in section.text[2]
    (_, summary), (_, table) = section.tables
    assert len(summary) == 8 and len(table) == 2 * 9  # replay stands in the second only: it is not ranked
    assert len(section.text) == 5 and "is not ranked" in section.text[3]
    assert section.text[4] == "Not tried: stretches of the text, both ends: the run has fewer than 4 gammas."


def test_artifacts_that_a_run_lacks_are_named(run_of, undrawn):
    rounds = pd.concat([simulation.iid(6, 12, gamma, 0, 0.7) for gamma in (1, 4)])
    tests, _, prediction = model_sections(run_of(rounds))
    assert any("no artifact replay.parquet" in text for text in prediction.text)
    assert any("no artifact alpha.parquet" in text for text in prediction.text)
    reading = tests.tables[0][1].set_index("question")["reading"]
    last = reading["Does the run take the rounds that its replay expects?"]
    assert last == "not tested: the run has no replay of its own texts"


def test_a_run_without_a_proposal_says_so(run_of):
    rounds = simulation.iid(3, 10, 4, 0, 0.6).assign(offered=0, offered_nodes=0, accepted=0, rejected=False)
    (section,) = model_sections(run_of(rounds.assign(committed=1)))
    assert "at gamma 4: the drafter never made a proposal" in section.text[0] and not section.tables


def choices(**columns: list[float]) -> pd.DataFrame:
    index = pd.Index([1, 2, 4], name="gamma")
    bounds = {"ci_low": [0.0] * 3, "ci_high": [9.0] * 3}
    return pd.DataFrame({"measured": [1.2, 1.5, 1.0], **bounds, **columns}, index=index)


def test_a_right_and_a_wrong_choice():
    words = choice_in_words(choices(position=[1.3, 1.6, 1.5], **{"capped geometric": [1.3, 1.7, 2.0]}))
    assert words.startswith("gamma 2 is fastest as measured (speedup 1.500)")
    assert "position chooses it too (promises 1.600)" in words
    assert "capped geometric chooses gamma 4 (promises 2.000, gives 1.000, 33.3% less)" in words
    assert words.endswith("No advice was asked for before this run.")
    table = choices(**{FORETOLD["predicted"]: [0.9, 0.8, 0.7]}).assign(measured=[0.9, 0.8, 0.7])
    words = choice_in_words(table)
    assert "slower than no drafter at all; advice, before the run chooses it too" in words
    assert "No advice" not in words
