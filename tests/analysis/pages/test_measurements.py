"""The page of measurements: no committed result without a section, and no figure that the result no longer has."""

import json
import shutil
from pathlib import Path

import pytest

from specdec.analysis.pages.measurements import RESULTS, measurements_page

GUIDE = Path(__file__).resolve().parents[3] / "notebooks" / "guide"


@pytest.fixture
def page():
    """The committed page, which `test_guide.py` sets against the one that is made."""
    return (GUIDE / "measurements.md").read_text(encoding="utf-8")


def test_every_result_is_on_the_page_and_every_section_says_where_when_and_how(page):
    names = [path.name for path in sorted(RESULTS.glob("*.json")) if path.name != "gpu.json"]
    assert len(names) > 20
    assert not [name for name in names if f"In `{name}`" not in page]
    for section in page.split("\n### ")[1:]:
        facts = section.split("\n\n## ")[0].rstrip().splitlines()[-1]
        assert facts.startswith("*2026-") and ", by " in facts, section.splitlines()[0]


@pytest.mark.slow
def test_a_figure_that_changes_renews_the_page(page, tmp_path):
    """Texts of an older pocket target that loops more flatter drafters that copy: what it measured is called so."""

    def sections(page):
        return {section.splitlines()[0]: section for section in page.split("\n### ")}

    results = shutil.copytree(RESULTS, tmp_path / "results")
    files = {
        name: json.loads((results / name).read_text("utf-8")) for name in ("retrieval_speed.json", "batching.json")
    }
    for line in files["retrieval_speed.json"]["figures"][:2]:
        line["query_us"] = 1234.5
    files["batching.json"]["date"] = "2026-11-30"
    for name, content in files.items():
        (results / name).write_text(json.dumps(content), encoding="utf-8")
    changed = measurements_page(results)
    assert "1234.5" in changed and "1234.5" not in page
    old, new = (("**Older model:**" in sections(each)["Speedup at equal batch"]) for each in (page, changed))
    assert old and not new and "**Older model:**" not in sections(page)["Accuracy by head"]
