"""The note that MLflow shows of a run."""

from types import SimpleNamespace

import pandas as pd

from specdec.analysis.pages.run_page import run_note
from specdec.analysis.sections import Section


def test_the_note_has_links_verdict_and_table_and_no_picture():
    table = pd.DataFrame({"figure": ["speedup"], "value": ["1.300"]})
    section = Section("Summary", ("**Speedup 1.300**: faster.",), (("Headline figures", table),), (("x", None),))
    note = run_note(SimpleNamespace(sections=(section,)), "http://tracking/#/metric?a=b")
    assert (
        note.index("(http://tracking/#/metric?a=b)") < note.index("Speedup 1.300") < note.index("| speedup | 1.300 |")
    )
    assert "![" not in note and "`report.md`" in note
    assert "](" not in run_note(SimpleNamespace(sections=(section,)))
