"""The page of measurements: no committed result without a section, and no figure that the result no longer has."""

import json
import shutil

import pytest

from specdec.analysis.pages.measurements import RESULTS, measurements_page


@pytest.fixture(scope="module")
def page():
    return measurements_page()


@pytest.fixture
def results(tmp_path):
    return shutil.copytree(RESULTS, tmp_path / "results")


def edited(path, edit):
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_every_result_is_on_the_page(page):
    names = [path.name for path in sorted(RESULTS.glob("*.json")) if path.name != "gpu.json"]
    assert len(names) > 20
    assert not [name for name in names if f"In `{name}`" not in page]


def test_every_section_says_where_when_and_how(page):
    sections = page.split("\n### ")[1:]
    for section in sections:
        facts = section.split("\n\n## ")[0].rstrip().splitlines()[-1]
        assert facts.startswith("*2026-") and ", by " in facts, section.splitlines()[0]


@pytest.mark.slow
def test_a_figure_that_changes_renews_the_page(page, results):
    def slower(content):
        content["figures"][0]["query_us"] = content["figures"][1]["query_us"] = 1234.5

    def better(content):
        content["The default run"]["figures"][0]["speedup"] = "9.87 (9.00 to 9.99)"

    edited(results / "retrieval_speed.json", slower)
    edited(results / "sessions.json", better)
    changed = measurements_page(results)
    assert "1234.5" in changed and "1234.5" not in page
    assert "9.87 (9.00 to 9.99)" in changed and "9.87 (" not in page


@pytest.mark.slow
def test_what_an_older_pocket_target_wrote_is_called_so(page, results):
    """Texts of a target that loops more flatter drafters that copy; a measurement of the day or later is today's."""
    old = [section.splitlines()[0] for section in page.split("\n### ") if "**Older model:**" in section]
    assert "Speedup at equal batch" in old and "Accuracy by head" not in old
    edited(results / "batching.json", lambda content: content.update(date="2026-11-30"))
    section = next(part for part in measurements_page(results).split("\n### ") if part.startswith("Speedup at equal"))
    assert "**Older model:**" not in section
