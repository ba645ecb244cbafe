"""The serving configuration of a run, of a session with several drafters, and of the fastest of several runs."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.rounds_tables import FACTS as PLAN

from specdec.analysis.findings.run_sections import fastest_section, measured_depths, run_recommendation
from specdec.analysis.pages.report_chapters import run_chapters
from specdec.analysis.read.facts import RunFacts, SessionFacts
from specdec.analysis.read.runs import Run
from specdec.errors import UsageError

FACTS = replace(PLAN, label="ngram on org/target", structure_label="gamma 2", primary_gamma=2)
NGRAM = {"drafter__q": "auto", "drafter__order_max": "4", "drafter__order_min": "1", "structure__name": "chain"}


def arm(gamma: int, speedup: float, nodes: float = 3.2) -> dict[str, Any]:
    bounds = {"speedup.ci_low": speedup - 0.1, "speedup.ci_high": speedup + 0.1}
    return {"gamma": gamma, "primary": gamma == 2, "speedup": speedup, "nodes_per_round": nodes, **bounds}


@pytest.fixture
def finished(stored_run: Callable[..., Run]) -> Callable[..., Run]:
    """`finished(arms)` gives a run with these arms; other drafters of its session by name in `beside`."""

    def build(*arms: dict[str, Any], facts: RunFacts = FACTS, beside: Any = None, **more: Any) -> Run:
        described = {"prompts": {"sha256": "p"}, "cpu": {"model": "EPYC"}, "model": {"sha256": "m"}}
        described |= {"drafter": {}, "drafters": {"eagle": {"format": "EAGLE-3"}}}
        described |= more.pop("environment", {})
        files = {"plan.json": json.dumps(asdict(facts)), "environment.json": json.dumps(described)}
        params = {"target__model": "org/target", "target__name": "causal", "drafter__name": "ngram"} | NGRAM | more
        drafter = params.pop("drafter__name")
        run = stored_run(None, drafter=drafter, files=files, **{"model": "m", **params})
        return replace(run, concluded={"arms": list(arms), "notes": [], "beside": beside or {}})

    return build


def test_a_run_recommends_its_best_depth(finished):
    found = run_recommendation(finished(arm(2, 1.3), arm(4, 1.6), arm(8, 1.5)))
    assert "ngram with drafts of 4 tokens, the best of 3 depths, is 1.600 (1.500 to 1.700)" in found.verdict
    assert '"num_speculative_tokens": 4' in found.configurations[0].command and "on EPYC" in found.remarks[0]
    assert run_recommendation(finished()).verdict == "No recommendation: there is no speedup that one could rest on."
    assert run_recommendation(finished({"gamma": 2, "primary": True})).verdict.startswith("No recommendation: ")


def test_a_tree_has_the_nodes_that_its_rounds_offered(finished):
    facts = replace(FACTS, single=False, structure="tree")
    run = finished(arm(2, 1.3, nodes=7.3), arm(4, 1.2, nodes=2.0), facts=facts, structure__name="tree")
    deep, shallow = measured_depths(run, run.summary()["arms"])
    assert (deep.depth, deep.nodes) == (2, 8)  # cut drafts at the end of a text pull the mean below 8
    assert (shallow.depth, shallow.nodes) == (4, 4)  # never fewer than its levels


def test_the_fastest_drafter_of_a_session_is_served_with_its_own_settings(finished):
    settings = {
        "measurement__drafters": "[ngram, eagle]",
        "measurement__drafter_settings__eagle__drafter__name": "eagle",
        "measurement__drafter_settings__eagle__drafter__model": "org/eagle",
        "measurement__drafter_settings__eagle__structure__name": "chain",
    }
    facts = replace(FACTS, beside={"eagle": replace(FACTS, drafter="eagle")})
    run = finished(arm(2, 1.3), facts=facts, beside={"eagle": [arm(3, 1.7)]}, **settings)
    found = run_recommendation(run)
    assert '{"method": "eagle3", "model": "org/eagle", "num_speculative_tokens": 3}' in found.configurations[0].command
    slower = replace(run, concluded={"arms": [arm(2, 1.9)], "notes": [], "beside": {"eagle": [arm(3, 1.7)]}})
    assert '"method": "ngram"' in run_recommendation(slower).configurations[0].command


def test_the_fastest_of_several_runs_is_served(finished):
    runs = [finished(arm(2, 1.3)), finished(arm(4, 1.6)), finished(arm(6, 1.1))]
    section = fastest_section(runs)
    assert section.title == "To serve the fastest" and "drafts of 4 tokens is 1.600" in section.text[0]
    assert section.text[1].startswith("The fastest drafter of 3 runs, each at its best depth")
    comparison, *chapters = run_chapters(runs[:2])
    assert comparison.sections[-1].title == section.title
    assert [chapter.sections[-1] for chapter in chapters] == [run_recommendation(run).section() for run in runs[:2]]


def test_what_is_refuted_is_not_served(finished):
    session = asdict(SessionFacts(12, 7, 5, cache_bytes=0, peak_mb=0.0))
    wrong, right = finished(arm(2, 3.0)), finished(arm(4, 1.6))
    (Path(wrong.source) / "session.json").write_text(json.dumps(session))
    assert run_recommendation(wrong).verdict.startswith("No recommendation: outputs are refuted")
    section = fastest_section([wrong, right])
    assert "drafts of 4 tokens is 1.600" in section.text[0]
    assert section.text[1].startswith("The fastest drafter of 1 run whose outputs are not refuted, each")
    assert "refuted" in fastest_section([wrong, wrong]).text[0]


@pytest.mark.parametrize("other", [{"target__model": "org/other"}, {"environment": {"prompts": {"sha256": "q"}}}])
def test_runs_of_different_settings_have_no_common_winner(finished, other):
    with pytest.raises(UsageError, match="2 settings of model, hardware and prompts do not compare"):
        fastest_section([finished(arm(2, 1.3)), finished(arm(2, 1.6), **other)])
