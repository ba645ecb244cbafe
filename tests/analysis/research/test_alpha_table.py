"""The alpha table from runs, its interval, and that its words stay true."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan

import pandas as pd
import pytest

from specdec.analysis.papers.paper_tables import COLUMNS, leviathan_table_3
from specdec.analysis.read.runs import Run
from specdec.analysis.research import alpha_table as table_of
from specdec.errors import UsageError


@pytest.fixture
def make_run(stored_run) -> Callable[..., Run]:
    def make(drafter: str, temperature: float, alpha: float | None, order: int = 0, tokens: int = 5000, **given) -> Run:
        """Make a run whose alpha has the bounds `low` and `high`, of an n-gram drafter of this order, if any."""
        about = {"low": alpha, "high": alpha, "prompts": "code", "hardware": "EPYC", **given}
        rows = [{"method": method, "prompt": p, "tokens": tokens} for method in ("baseline", drafter) for p in "ab"]
        files = {"generations.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
        params = {"sampling__temperature": str(temperature), "prompts__name": about["prompts"]}
        params |= {"drafter__order": str(order)} if order else {}
        params |= {"drafter__model": "small"} if drafter == "small_model" else {}
        run = stored_run(None, drafter, about["hardware"], files=files, **params)
        values = {"alpha.text": alpha, "alpha.text.ci_low": about["low"], "alpha.text.ci_high": about["high"]}
        return replace(run, metrics={name: value for name, value in values.items() if value is not None})

    return make


@pytest.fixture
def runs(make_run: Callable[..., Run]) -> list[Run]:
    values = {("bigram", 2): (0.20, 0.18), ("small_model", 0): (0.75, 0.62), ("unigram", 1): (0.03, 0.05)}
    return [
        make_run(name, float(temperature), alpha, order, low=alpha - 0.01, high=alpha + 0.01)
        for (name, order), pair in values.items()
        for temperature, alpha in enumerate(pair)
    ]


def test_one_row_per_drafter_and_temperature_in_the_papers_order(runs, make_run):
    table = table_of.alpha_table(runs)
    assert tuple(table.columns) == table_of.COLUMNS
    assert list(table["drafter"]) == ["unigram"] * 2 + ["bigram"] * 2 + ["small_model small"] * 2
    assert list(table["temperature"]) == [0.0, 1.0] * 3
    assert list(table["alpha"]) == [0.03, 0.05, 0.20, 0.18, 0.75, 0.62]
    assert set(table["setting"]) == {"pocket (float32) on code, EPYC"}
    assert set(table["tokens"]) == {10_000} and set(table["prompts"]) == {2}
    (figure,) = table_of.measured_figures(table)
    assert figure.get_suptitle() == "pocket (float32) on code, EPYC"
    assert [each.get_text() for each in figure.axes[0].get_yticklabels()] == list(dict.fromkeys(table["drafter"]))
    table = table_of.alpha_table([*runs, make_run("corpus_ngram", 0, 0.3, order=3)])
    names = ["unigram", "bigram", "corpus_ngram of order 3", "small_model small"]
    assert list(dict.fromkeys(table["drafter"])) == names
    # No interval, and no alpha.
    one, none = make_run("ngram", 0, 0.5, low=None, high=None), make_run("oracle", 0, None)
    (row,) = table_of.alpha_table([one, none]).itertuples()
    assert row.drafter == "ngram" and isnan(row.ci_low) and isnan(row.ci_high)
    assert "no alpha" in table_of.alpha_in_words(table_of.alpha_table([none]))


def test_the_newest_run_counts_and_settings_stay_apart(make_run):
    newest, older = make_run("ngram", 0, 0.5), make_run("ngram", 0, 0.1)
    others = [make_run("ngram", 0, 0.2, hardware="Xeon"), make_run("ngram", 0, 0.3, prompts="docs")]
    table = table_of.alpha_table([newest, older, *others])
    assert sorted(table["alpha"]) == [0.2, 0.3, 0.5] and table["setting"].nunique() == 3
    assert len(table_of.measured_figures(table)) == 3
    assert table_of.alpha_in_words(table).count("**") == 6


def test_words_on_order_temperature_and_length(runs, make_run):
    words = table_of.alpha_in_words(table_of.alpha_table(runs))
    assert "Temperature 0: unigram 0.030 (0.020 to 0.040), bigram 0.200" in words
    assert words.count("rises in the paper's order; 3 of 3 pairs have intervals apart") == 2
    assert "higher at temperature 0 than at 1 for 2 of 3 drafters" in words
    assert "fewer than" not in words
    short = make_run("unigram", 1, 0.9, order=1, tokens=30)
    words = table_of.alpha_in_words(table_of.alpha_table([short, *runs]))
    assert "bigram is not above unigram and small_model small is not above unigram" in words
    assert "1 of 6 rows rest on fewer than the protocol's 10,000 tokens, down to 60 tokens" in words
    one = table_of.alpha_in_words(table_of.alpha_table([short]))
    assert "Only one of the temperatures" in one and "order" not in one


def printed(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    values = [
        ("x arXiv:2211.17192", "Table 3", target, drafter, "task", temperature, nan, "alpha", alpha, "prob", "")
        for target, drafter, temperature, alpha in rows
    ]
    other = ("x arXiv:2211.17192", "Table 2", "t", "d", "task", 0, 5, "alpha", 0.99, "prob", "")
    return pd.DataFrame([*values, other], columns=list(COLUMNS))


def test_the_papers_rows_stand_apart(runs):
    rows = leviathan_table_3(printed(("A", "unigram", 0, 0.03), ("A", "unigram", 1, 0.04), ("A", "T5", 0, 0.7)))
    assert list(rows["alpha"]) == [0.03, 0.04, 0.7]
    words = table_of.printed_in_words(rows)
    assert "3 rows of Table 3" in words and "n-gram drafters 0.03 to 0.04; model drafters 0.70 to 0.70" in words
    assert "for 0 of 1 drafter." in words
    words = table_of.comparison_in_words(table_of.alpha_table(runs), rows)
    assert "1 of 4 rows of n-gram drafters lie" in words and "0 of 2 rows of model drafters lie" in words
    assert len(table_of.printed_figures(rows)) == 1
    nothing = leviathan_table_3(printed())
    assert "no row of Leviathan's Table 3" in table_of.printed_in_words(nothing)
    assert table_of.comparison_in_words(nothing, nothing) == ""


def test_an_experiment_without_the_overlay_is_one_sentence(monkeypatch):
    frame = pd.DataFrame({"status": ["FINISHED", "FAILED"], "params.experiment_name": ["None", table_of.OVERLAY]})
    monkeypatch.setattr(table_of, "load_runs", lambda uri, experiment: frame)
    monkeypatch.setattr(table_of, "open_run", lambda uri, run_id: run_id)
    with pytest.raises(UsageError, match=r"\+experiment=leviathan_alpha"):
        table_of.alpha_runs("sqlite:///x.db", "specdec")
    frame.loc["later"] = ["FINISHED", table_of.OVERLAY]
    assert table_of.alpha_runs("sqlite:///x.db", "specdec") == ["later"]
