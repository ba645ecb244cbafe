"""The first screen of a run: verdict, table over gamma, account and curve, before everything else."""

from types import SimpleNamespace

import pandas as pd

from specdec.analysis.figures import style
from specdec.analysis.findings.run_sections import arranged
from specdec.analysis.pages.html import section_blocks
from specdec.analysis.sections import Section

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
