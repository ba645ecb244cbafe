"""The page of the founding papers: what it names exists, and its table of claims is what the committed results give."""

import re
from pathlib import Path

import pytest

from specdec.analysis.research.claims import claims_markdown, measured_in_words
from specdec.config import config_dir

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PAGE = (NOTEBOOKS / "guide" / "papers.md").read_text(encoding="utf-8")
FIGURES, CLAIMS = PAGE.split("## Claims", 1)
MADE_BY = 'python -c "from specdec.analysis.research import claims; print(claims.claims_markdown())"'


def cells() -> set[tuple[str, str]]:
    """Number and heading of every section of every notebook."""
    return {
        (path.name[:2], heading)
        for path in NOTEBOOKS.glob("[0-9]*.py")
        for heading in re.findall(r"^# ## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_every_cell_that_is_named_exists():
    """`01` *The capped geometric*, and headings of the same notebook behind an "and"."""
    named = {
        (number, heading)
        for number, headings in re.findall(r"`(\d\d)` ((?:\*[^*]+\*(?: and )?)+)", PAGE)
        for heading in re.findall(r"\*([^*]+)\*", headings)
    }
    assert len(named) > 10 and named - cells() == set()


def test_every_value_of_a_config_group_that_is_named_exists():
    """+experiment=NAME, verifier=NAME and so on, for every group of `conf/`."""
    folder = Path(config_dir())
    named = {(group, name) for group, name in re.findall(r"\+?\b([a-z_]+)=(\w+)", PAGE) if (folder / group).is_dir()}
    assert {group for group, _ in named} >= {"experiment", "drafter", "heads", "recipe", "prompts", "target"}
    assert [(group, name) for group, name in sorted(named) if not (folder / group / f"{name}.yaml").is_file()] == []


def test_every_item_says_what_redraws_it_or_why_nothing_does():
    rows = [line for line in FIGURES.splitlines() if line.startswith("| ") and not line.startswith("| item ")]
    assert len(rows) > 40
    for row in rows:
        item, _, redrawn, missing = (cell.strip() for cell in row.strip("|").split("|"))
        assert item and (redrawn != "–" or missing not in ("–", "")), row


@pytest.mark.parametrize("paper", ["2211.17192", "2302.01318", "1811.03115", "2401.10774", "2402.05109", "2411.03786"])
def test_every_paper_has_a_table(paper):
    assert f"({paper})" in FIGURES or f"preprint of {paper}" in FIGURES


def test_the_claims_and_the_load_are_those_of_the_committed_results():
    table = "\n".join(line for line in CLAIMS.splitlines() if line.startswith("|"))
    assert table == claims_markdown(), f"put into notebooks/guide/papers.md what this prints: {MADE_BY}"
    assert measured_in_words() in CLAIMS.replace("\n", " ")
