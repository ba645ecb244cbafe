"""The first screen of a run: verdict, table over gamma, account and curve, before everything else."""

import pandas as pd

from specdec.analysis.figures import style
from specdec.analysis.findings import Section
from specdec.analysis.runs.first_screen import first_screen


def test_account_and_curve_follow_the_table_of_the_first_section() -> None:
    with style.styled():
        drawn = {name: style.new_figure(name, "")[0] for name in ("account", "curve_speedup", "curve_tokens_per_round")}
    table = (("Every gamma", pd.DataFrame({"gamma": [4]})),)
    sections = [
        Section("Summary", ("**Speedup 1.2**",), table),
        Section("Curves", ("words",), figures=tuple((name, drawn[name]) for name in reversed(drawn))),
        Section("The gap", ("why",), table, (("account", drawn["account"]),)),
    ]
    first, curves, gap = first_screen(sections)
    assert first.text == ("**Speedup 1.2**",) and first.tables == table
    assert [name for name, _ in first.figures] == ["account", "curve_speedup"]
    assert [name for name, _ in curves.figures] == ["curve_tokens_per_round"] and curves.text == ("words",)
    assert gap.tables == table and not gap.figures
    assert first_screen(sections[:1]) == sections[:1]  # a run that was killed has no figures to move
