"""The report of a run is made from its folder alone: deleted and made again without torch, it is the same."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from specdec import run

MADE = ("summary.json", "account.json", "report.md", "trace.html")
LAW = "target.law=[[0.4,0.35,0.25],[0.1,0.3,0.6],[0.55,0.2,0.25]]"
AGAIN = """
import sys
from pathlib import Path

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is not installed here")

sys.meta_path.insert(0, NoTorch())
from specdec.analysis.pages.run_page import write_run
write_run(Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("+drafter=oracle",), ("+drafter=ngram", "sampling=temperature", "verifier=lenient", LAW)]
)
def test_a_report_is_made_again_from_the_folder(monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    common = ("+debug=tiny", "tracking.enabled=false", f"hydra.run.dir={folder}")
    monkeypatch.setattr("sys.argv", ["specdec.run", *common, *arguments])
    GlobalHydra.instance().clear()
    run.main()
    GlobalHydra.instance().clear()
    before = contents(folder)
    assert len(before) > len(MADE)
    for name in MADE:
        (folder / name).unlink()
    shutil.rmtree(folder / "figures")
    subprocess.run([sys.executable, "-c", AGAIN, str(folder)], check=True, timeout=300)
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, str]:
    """Return the files that are made from the others, by path; of figures the SVG."""
    made = [*(folder / name for name in MADE), *(folder / "figures").glob("*.svg")]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in made}
