"""The first screen of a run, before everything else; and the sections that set it beside the paper's pictures."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.analysis.figures import style
from specdec.analysis.findings.run_sections import arranged, standing_section, timeline_section
from specdec.analysis.intervals import Interval
from specdec.analysis.pages.html import section_blocks
from specdec.analysis.sections import Section
from specdec.errors import UsageError

MEASURED, SIMULATED = (SimpleNamespace(simulated=simulated) for simulated in (False, True))


def test_account_and_curve_follow_the_verdict():
    with style.styled():
        drawn = {name: style.new_figure(name, "")[0] for name in ("account", "curve_speedup", "curve_tokens_per_round")}
    table = (("Every gamma", pd.DataFrame({"gamma": [4]})),)
    sections = [
        Section("Summary", ("**Speedup 1.2**",), table),
        Section("Curves", ("words",), figures=tuple((name, drawn[name]) for name in reversed(drawn))),
        Section("The gap", ("why",), table, (("account", drawn["account"]),)),
    ]
    first, curves, gap = arranged(sections, MEASURED)
    assert first.text == ("**Speedup 1.2**",) and first.tables == table
    assert [name for name, _ in first.figures] == ["account", "curve_speedup"] and first.figures_first
    assert section_blocks(first, "##", ["a", "b"])[1:4] == ["**Speedup 1.2**", "![account](a)", "![curve speedup](b)"]
    assert [name for name, _ in curves.figures] == ["curve_tokens_per_round"] and curves.text == ("words",)
    assert gap.tables == table and not gap.figures
    assert arranged(sections[:1], MEASURED) == sections[:1]  # a run that was killed has no figures to move


def test_simulated_time_is_in_headings_of_times_and_over_every_table():
    table = (("Every gamma", pd.DataFrame({"gamma": [4]})),)
    summary, environment = arranged([Section("Summary", tables=table), Section("Environment", tables=table)], SIMULATED)
    assert (summary.title, environment.title) == ("Summary (simulated time)", "Environment")
    assert summary.tables[0][0] == environment.tables[0][0] == "Simulated: Every gamma"


SLOW = {"draft_s": 0.0, "verify_s": 0.020, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.020}
LOGGED = {"account/alpha": 0.8, "cost/c": 0.05, "cost/c_ops": 0.1, "operations/measured": 1.9}


def test_the_run_is_marked_by_what_it_logged(stored_run, make_rounds):
    rounds = [make_rounds({"a": [0] * 9, "b": [0] * 9}, 0, "baseline", durations=SLOW)]
    rounds.append(make_rounds({"a": [2, 1, 0, 2], "b": [2, 2, 1, 0]}, 2))
    logged = LOGGED | Interval(2.5, 2.2, 2.8).as_metrics("speedup")
    made = replace(stored_run(pd.concat(rounds, ignore_index=True)), metrics=logged)
    section = standing_section(made)
    assert [name for name, _ in section.figures] == ["best_gamma", "speedup_and_operations", "oracle_bound"]
    drawn = section.figures[1][1]
    words = f"{drawn._suptitle.get_text()} {drawn._supxlabel.get_text()}".replace("\n", " ")
    assert "operations ×1.90" in words and "c = 0.05 in time and 0.1 in operations" in words
    assert "2.218 for γ 2 and of 3.092 for γ 8" in section.text[0] and "4.167" in section.text[1]
    assert section.text[2].startswith("Measured: 2.500 (2.200 to 2.800) at γ 2. The capped geometric")
    tried = replace(made, curves={"curve/speedup/measured": {2: 2.5, 4: 2.75, 8: 2.0}})  # its own best is none of these
    assert "at γ 2, and 2.750 at γ 4, the fastest of the 3 measured." in standing_section(tried).text[2]
    section = timeline_section(made)
    assert [name for name, _ in section.figures] == ["timeline"]
    # All four rounds of a text: 9 tokens in 4 times 27.4 ms, a ninth of it drafting, against 9 calls of 20 ms.
    assert "In 4 rounds the primary gamma commits 9 tokens in 110 ms, of which drafting takes 11%" in section.text[0]
    assert "9 calls and 180 ms for 9" in section.text[0]
    with pytest.raises(UsageError, match="nothing was proposed"):
        standing_section(replace(made, metrics={}))
