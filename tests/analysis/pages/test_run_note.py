"""The note that MLflow shows of a run."""

from types import SimpleNamespace

import pandas as pd

from specdec.analysis.pages.run_page import run_note
from specdec.analysis.sections import Section


def test_the_note_begins_with_the_verdict_and_shows_theory_over_measurement_on_any_port():
    table = pd.DataFrame({"figure": ["speedup"], "value": ["1.300"]})
    summary = Section("Summary", ("**Speedup 1.300**: faster.",), (("Headline figures", table),), (("x", None),))
    curves = Section("Curves over gamma", figures=(("curve_tokens_per_round", None),))
    note = run_note(SimpleNamespace(sections=(summary, curves)), "file?{}".format, "#/chart?a=b")
    picture = "![Tokens per round over gamma](file?figures/curve_tokens_per_round.svg)"
    parts = ("**Speedup 1.300**", "(#/chart?a=b)", picture, "| speedup | 1.300 |")
    assert sorted(parts, key=note.index) == list(parts) and note.startswith(parts[0])
    assert "`report.md`" in note and "http" not in note
    assert "](" not in run_note(SimpleNamespace(sections=(summary,)), "file?{}".format, "#/chart?a=b")
