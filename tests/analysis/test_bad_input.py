"""What the analysis answers to input that it cannot use, and to little or odd data: one sentence, or an answer that
says what is missing. Files made by hand.
"""

import sqlite3
from collections.abc import Callable
from math import isfinite, isnan

import pandas as pd
import pytest

from specdec.analysis.account.run_account import SharedWork
from specdec.analysis.arms import Arms
from specdec.analysis.figures.run_figures import (
    Basis,
    accepted_length_table,
    accepted_lengths,
    curve,
    curve_in_words,
    time_split,
)
from specdec.analysis.findings.compare import comparison_section
from specdec.analysis.findings.summary import Summary, summarise
from specdec.analysis.intervals import bootstrap
from specdec.analysis.read import mlflow_runs
from specdec.analysis.read.runs import Run
from specdec.analysis.rounds import prompt_sums
from specdec.errors import UsageError

PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.02}
INTERVALS = ("speedup", "tokens_per_round", "alpha.mle", "alpha.text")


@pytest.fixture
def with_baseline(make_rounds: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    def build(*arms: pd.DataFrame) -> pd.DataFrame:
        plain = {prompt: [0] * 12 for prompt in sorted(set(arms[0]["prompt"]))}
        return pd.concat([*arms, make_rounds(plain, 0, method="baseline", durations=PLAIN)], ignore_index=True)

    return build


@pytest.fixture
def summary_of(make_generations: Callable[..., pd.DataFrame]) -> Callable[..., Summary]:
    def build(rounds: pd.DataFrame, **options: object) -> Summary:
        return summarise(SharedWork.of(Arms.of(rounds), 2, **options), make_generations(rounds), 60, 19)

    return build


@pytest.fixture
def odd(
    make_rounds: Callable[..., pd.DataFrame], with_baseline: Callable[..., pd.DataFrame]
) -> Callable[..., pd.DataFrame]:
    """Small data by kind."""

    def build(kind: str) -> pd.DataFrame:
        several = list("abcde")
        outputs = {
            "one prompt": make_rounds({"a": [2, 0, 1, 2]}, 2),
            "all censored": make_rounds({}, 2, censored={prompt: [1] for prompt in several}),
            "all full": make_rounds({prompt: [2, 2, 2] for prompt in several}, 2),
            "no proposal": make_rounds(
                {prompt: [0, 0, 0] for prompt in several}, 2, offered={prompt: [0, 0, 0] for prompt in several}
            ),
            "one round": make_rounds({"a": [1]}, 2),
        }
        return with_baseline(outputs[kind])

    return build


KINDS = ["one prompt", "all censored", "all full", "no proposal", "one round"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_little_data_gives_a_summary_without_what_it_cannot_tell(odd, summary_of, kind: str) -> None:
    arm = summary_of(odd(kind)).arms[2]
    metrics, account = arm.metrics, arm.account
    assert all(isfinite(value) for value in metrics.values())
    assert {"speedup", "tokens_per_round", "account/omega"} <= set(metrics)
    single = kind in ("one prompt", "one round")
    assert ("speedup.ci_low" not in metrics) == single
    if kind == "no proposal":
        assert metrics["account/alpha"] == 0 and metrics["account/omega"] == 1 and "alpha.mle" not in metrics
    if kind in ("all censored", "all full"):
        assert metrics["account/alpha"] == 1 and metrics["account/omega"] == 3
    assert abs(account.product - account.speedup) < 1e-9
    assert all(isnan(interval.low) == single for interval in account.intervals.values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_of_little_data(odd, stored_run, kind: str) -> None:
    runs = [stored_run(odd(kind)), stored_run(odd(kind), "oracle")]
    section = comparison_section(runs, replicates=60)
    text = "\n".join(section.text)
    if kind in ("one prompt", "one round"):
        assert text.count("1 prompt is too few for a verdict, which needs 5") == 2 and "faster" not in text
        assert all(cell.endswith(" (–)") for cell in section.tables[0][1]["overall"])
        assert len(section.tables) == 2  # no shares of replicates
    else:
        assert "cannot be told apart in speedup" in text and len(section.tables) == 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_figures_of_little_data_say_what_they_lack(odd, kind: str) -> None:
    rounds = odd(kind)
    points = []
    for gamma, arm in Arms.of(rounds).shared().by_gamma().items():
        tokens = bootstrap(prompt_sums(arm), lambda s: {"tokens": s["tokens"] / s["rounds"]}, 60)["tokens"]
        points.append({"gamma": gamma, "value": tokens.estimate, **tokens.bounds})
    measured = pd.DataFrame(points)
    figure = curve(measured, {"capped_geometric": {2: 2.0}}, title="t", basis=Basis(3))
    single = kind in ("one prompt", "one round")
    assert ("no intervals" in figure.get_supxlabel()) == single
    assert ("Without intervals" in curve_in_words(measured, {"capped_geometric": {2: 2.0}})) == single
    assert time_split(Arms.of(rounds), title="t").axes
    if kind == "no proposal":
        with pytest.raises(ValueError, match="no round has a proposal"):
            accepted_lengths(rounds, title="t")
    elif kind == "all censored":
        with pytest.raises(ValueError, match="every round was cut"):
            accepted_lengths(rounds, title="t")
    else:
        assert accepted_lengths(rounds, title="t").axes


def test_no_proposal_on_the_text_leaves_its_alpha_out(odd, summary_of) -> None:
    nothing = pd.DataFrame({"prompt": ["a", "b", "c"], "numerator": 0.0, "denominator": 0})
    metrics = summary_of(odd("no proposal"), text=nothing).arms[2].metrics
    assert "alpha.text" not in metrics and metrics["account/alpha"] == 0


def test_alpha_of_one_prompts_text_has_no_interval(odd, summary_of) -> None:
    sums = pd.DataFrame({"prompt": ["a"], "numerator": [3.0], "denominator": [4]})
    metrics = summary_of(odd("one prompt"), text=sums).arms[2].metrics
    assert metrics["alpha.text"] == 0.75
    assert not any(f"{name}.{end}" in metrics for name in INTERVALS for end in ("ci_low", "ci_high"))


def test_gammas_mixed_in_a_cell_are_refused(make_rounds, with_baseline, stored_run) -> None:
    """Two gammas' rounds put together by hand under one: they would pass for twice as many rounds of one law."""
    rounds = with_baseline(make_rounds({"a": [2, 1]}, 2))
    mixed = pd.concat([rounds, make_rounds({"a": [1, 0]}, 1).assign(gamma=2)])
    with pytest.raises(
        UsageError, match=r"rounds.parquet: round 0 of prompt 'a' stands twice at gamma 2, so rounds of s"
    ):
        stored_run(mixed).rounds()
    deeper = with_baseline(make_rounds({"a": [3, 1]}, 3).assign(gamma=2))
    with pytest.raises(
        UsageError, match=r"rounds.parquet: round 0 of prompt 'a' \(gamma 2\) offers more than its gamma"
    ):
        stored_run(deeper).rounds()
    two = pd.concat([make_rounds({"a": [2, 1]}, 2), make_rounds({"a": [1, 1]}, 1)])
    with pytest.raises(ValueError, match=r"several gammas, \[1, 2\]: choose one"):
        accepted_length_table(two, 0.5)


def test_tables_that_are_none_are_refused(odd, stored_run) -> None:
    rounds = odd("one prompt")
    with pytest.raises(UsageError, match=r"rounds.parquet: the rounds table lacks the columns accepted, draft_s"):
        stored_run(rounds.drop(columns=["accepted", "draft_s"])).rounds()
    run = stored_run(None, files={"rounds.parquet": "not a table"})
    with pytest.raises(UsageError, match=r"rounds.parquet is no Parquet table .*; copy it again, or run again"):
        run.rounds()
    more = rounds.assign(accepted=rounds["accepted"] + 5)
    with pytest.raises(UsageError, match=r"rounds.parquet: round 0 of prompt 'a' .* accepts more tokens than were"):
        stored_run(more).rounds()


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (Run.rounds, r"no artifact rounds.parquet; every run that decoded at least one prompt writes it"),
        (Run.generations, r"no artifact generations.jsonl; every run that decoded"),
        (Run.account, r"no artifact account.json; every run that finished writes it"),
        (Run.replay, r"no artifact replay.parquet; every run that ended, and"),
        (Run.alpha_sums, r"no artifact alpha.parquet; every run that ended, and"),
        (Run.calibration, r"no artifact calibration.json; every run that began to decode writes it"),
        (Run.cost, r"no artifact cost.json; every run with a value in measurement.cost_contexts"),
        (lambda run: run.fetch("peers.json"), r"every run with measurement.peers writes it"),
        (lambda run: run.fetch("divergences.json"), r"every greedy run with an output that parted"),
        (lambda run: comparison_section([run]), r"no artifact rounds.parquet"),
    ],
)
def test_a_missing_artifact_is_named_with_what_writes_it(stored_run, read, sentence: str) -> None:
    run = stored_run(None)
    with pytest.raises(UsageError, match=sentence) as caught:
        read(run)
    message = str(caught.value)
    assert "run0" in message and "\n" not in message and message.endswith(".")


def test_a_run_without_an_environment_is_still_compared(odd, stored_run) -> None:
    run = stored_run(odd("all full"), files={"environment.json": None})
    section = comparison_section([run, run], replicates=30)
    assert "hardware not recorded" in section.tables[0][0]


def test_a_store_of_another_version_is_left_alone(tmp_path) -> None:
    database = tmp_path / "mlflow.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('0123456789ab')")
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER)")
        connection.execute("CREATE TABLE runs (run_uuid TEXT)")
    connection.close()
    before = database.read_bytes()
    for ask in (
        lambda: mlflow_runs.load_runs(f"sqlite:///{database}", "specdec"),
        lambda: mlflow_runs.open_run(f"sqlite:///{database}", "0" * 32),
    ):
        with pytest.raises(
            UsageError, match=r"schema of another MLflow version \(0123.*: back it up and run `mlflow db"
        ):
            ask()
    assert database.read_bytes() == before
