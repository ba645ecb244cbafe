"""The report of a run is made from its folder alone, the same again without torch; and the note that MLflow shows."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.analysis.pages.run_page import run_note
from specdec.analysis.sections import Section

MADE = ("summary.json", "account.json", "report.md", "trace.html")
AGAIN = """
import sys
from pathlib import Path

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is not installed here")

sys.meta_path.insert(0, NoTorch())
from specdec.analysis.acceptance import prediction, stretches
from specdec.analysis.pages.run_page import write_run
prediction.SPLITS, stretches.KINDS = 1, (1, 2)  # as in a finished run of the tests
for folder in sys.argv[1:]:
    write_run(Path(folder))
"""


@pytest.mark.slow
def test_a_report_is_made_again_from_the_folder(finished_run, tmp_path):
    folders = {name: shutil.copytree(finished_run(name), tmp_path / name) for name in ("oracle", "lossy")}
    for folder in folders.values():
        for name in MADE:
            (folder / name).unlink()
    subprocess.run([sys.executable, "-c", AGAIN, *map(str, folders.values())], check=True, timeout=300)
    for name, folder in folders.items():
        for file in MADE:
            assert (folder / file).read_text("utf-8") == (finished_run(name) / file).read_text("utf-8"), (name, file)
        assert len(list((folder / "figures").glob("*.svg"))) > 3


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
