"""The final table: what stands in it, and that no width of a terminal cuts a number."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.rounds_tables import FACTS
from rich.console import Console

from specdec.analysis.findings.run_findings import RunFindings
from specdec.analysis.intervals import Interval
from specdec.terminal import show_run, summary_lines

SAMPLED = {
    "sampled/temperature": 0.7,
    "sampled/speedup": 1.217,
    "sampled/speedup.ci_low": 1.061,
    "sampled/speedup.ci_high": 1.433,
    "sampled/speedup.end_to_end": 1.198,
    "sampled/tokens_per_round": 1.418,
    "sampled/alpha.mle": 0.4174,
}


def arm(gamma: int, speedup: float) -> dict[str, Any]:
    made = {"gamma": gamma, "primary": gamma == 4, "speedup.end_to_end": speedup - 0.25, "alpha.mle": 0.8123}
    for name, value in (("tokens_per_round", 2 + gamma / 10), ("speedup", speedup)):
        made |= {name: value, f"{name}.ci_low": value - 0.5, f"{name}.ci_high": value + 0.5}
        made[f"{name}.capped_geometric"] = value + 0.75
    return made


def findings(arms: list[dict[str, Any]], drafter: str = "ngram", **more: Any) -> RunFindings:
    empty: dict[str, Any] = {"sections": (), "metrics": {}, "curves": {}, "notes": [], "account": {}}
    about = {"alpha_source": "text", "facts": replace(FACTS, drafter=drafter)}
    return RunFindings(**{**empty, **about, "arms": arms, **more})


def printed(found: RunFindings, width: int, told: tuple[str, ...] = ()) -> str:
    text, tracked = io.StringIO(), SimpleNamespace(shown_link="COMMAND", overlay=lambda key: "")
    show_run(found, Console(file=text, width=width), Path.cwd() / "folder", tracked, told)
    return text.getvalue()


FOUND = findings([arm(2, 1.5), arm(4, 12.25), arm(8, 3.5)], metrics=SAMPLED)


def test_the_table_has_the_end_to_end_speedup_the_best_gamma_and_the_sampled_line():
    headings, *lines = summary_lines(FOUND)
    assert headings[0] == "gamma" and " ".join(headings[5].split()) == "with prefill"
    assert [line[0] for line in lines] == ["2", "4* best", "8", "T=0.7"]
    assert [line[5] for line in lines] == ["1.25", "12.00", "3.25", "1.20"]
    assert lines[3] == ["T=0.7", "1.42 (–)", "–", "1.22 (1.06 to 1.43)", "–", "1.20", "0.417"]


def test_a_slowdown_is_never_the_best_and_neither_is_one_of_few_prompts_or_a_single_depth():
    slow = findings([arm(2, 0.7), arm(4, 0.86)])
    few = findings([{key: value for key, value in arm(gamma, 2.0).items() if ".ci_" not in key} for gamma in (2, 4)])
    for found in (slow, few):
        assert [line[0] for line in summary_lines(found)] == ["gamma", "2", "4*"]
        assert "best" not in printed(found, 140)
    assert [line[0] for line in summary_lines(findings([arm(4, 2.0)]))] == ["gamma", "4*"]
    assert summary_lines(few)[1][3] == "2.00 (–)" and "–: fewer than 5 prompts have none" in printed(few, 140)


def test_what_cannot_be_told_from_the_best_is_named():
    ratios = {4: (0.97, 0.9, 1.04), 6: (0.99, 0.9, 1.1), 2: (0.5, 0.4, 0.6), 8: (1.0, 1.0, 1.0)}
    arms = [
        arm(gamma, 2 * ratio[0]) | Interval(*ratio).as_metrics("speedup.over_fastest")
        for gamma, ratio in ratios.items()
    ]
    assert "4, 6 and 8 cannot be told apart" in " ".join(printed(findings(arms), 140).split())
    assert "told apart" not in printed(FOUND, 140)


def test_each_drafter_has_its_best():
    other = findings([arm(2, 3.0), arm(4, 2.0)], "suffix")
    lines = summary_lines(findings([arm(2, 1.0), arm(4, 2.0)], metrics=SAMPLED, beside={"suffix": other}))
    named = [["drafter", "gamma"], ["ngram", "2"], ["ngram", "4* best"], ["ngram", "T=0.7"]]
    assert [line[:2] for line in lines] == [*named, ["suffix", "2 best"], ["suffix", "4*"]]


@pytest.mark.parametrize("beside", [{}, {"suffix": findings([arm(2, 3.0), arm(4, 2.0)], "suffix")}])
@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 140])
def test_numbers_and_words_are_folded_and_never_cut(width, beside):
    """Whatever the width, the words of all cells stand on the screen whole, no line is longer, nothing is elided."""
    found = findings(FOUND.arms, metrics=SAMPLED, beside=beside)
    said = printed(found, width)
    words = [word for line in summary_lines(found) for cell in line for word in cell.split()]
    shown = said.replace(";", " ").split()
    assert all(shown.count(word) >= words.count(word) for word in words if word != "–")
    assert "…" not in said and all(len(line.rstrip()) <= width for line in said.splitlines())


def test_eighty_columns_hold_a_line_for_each_gamma():
    said = printed(findings([arm(gamma, 3.5 - gamma / 100) for gamma in (1, 4, 8)], metrics=SAMPLED), 80)
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.strip()}
    assert lines["8"][:10] == ["2.80", "(2.30", "to", "3.30)", "3.55", "3.42", "(2.92", "to", "3.92)", "4.17"]
    assert lines["T=0.7"] == ["1.42", "(–)", "–", "1.22", "(1.06", "to", "1.43)", "–", "1.20", "0.417"]


def test_a_run_closes_with_a_few_sentences_and_with_all_notes_on_demand(monkeypatch):
    found = findings(FOUND.arms, notes=["Note one.", "Note two."], closing=["It pays."])
    assert printed(found, 100).splitlines()[-3:] == ["It pays.", "results: folder", "browse:  COMMAND"]
    monkeypatch.setenv("SPECDEC_VERBOSE", "1")
    notes = ["Note two.", f"results: {Path.cwd() / 'folder'}", "browse:  COMMAND"]
    assert printed(found, 100, ("Note one.",)).splitlines()[-3:] == notes
    assert "Note one." not in printed(found, 100, ("Note one.",)) and "Note one." in printed(found, 100)
