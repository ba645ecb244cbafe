"""The generated pages of the guide: what is committed is what the command makes, and it tells what the code does."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from specdec import errors
from specdec.analysis.pages import guide
from specdec.analysis.pages.guide import PICTURES, RUN_FILES
from specdec.analysis.pages.measurements import RESULTS, measurements_page
from specdec.analysis.read.runs import WRITTEN_BY
from specdec.commands.sweep import FAILED_CELLS

FOLDER = Path(__file__).resolve().parents[3] / "notebooks" / "guide"


def test_the_committed_pages_are_those_that_the_command_makes():
    made = guide.pages(FOLDER)
    stale = [name for name, text in made.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert not stale, f"run `{guide.COMMAND}` and commit what it writes"
    assert "## Glossary" in made["reference.md"] and "| round |" in made["reference.md"]


def test_the_committed_pictures_are_small():
    pictures = sorted(path.name for path in (FOLDER / "pictures").iterdir())
    assert set(PICTURES) <= set(pictures)
    assert all((FOLDER / "pictures" / name).stat().st_size <= 150_000 for name in pictures)


def test_the_exit_codes_are_those_of_the_errors():
    codes = {value.exit_code for value in vars(errors).values() if hasattr(value, "exit_code")}
    assert codes | {0, FAILED_CELLS} == set(errors.EXIT_CODES)


def test_the_files_of_a_run_are_those_that_runs_write(finished_run):
    written = {path.name + "/" * path.is_dir() for path in finished_run("chain").iterdir() if path.name[0] != "."}
    written -= {"corpus.jsonl", "trace.jsonl"}  # what the finished runs read
    assert len(written) > 15 and not (written | set(WRITTEN_BY)) - set(RUN_FILES)


def test_pictures_come_from_a_finished_run_and_go_to_the_notebooks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guide, "config_dir", lambda: str(tmp_path / "conf"))
    assert guide.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "notebooks is missing" in line and "clone" in line
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(guide, "pages", lambda folder: {"reference.md": "# Reference\n"})
    figures = tmp_path / "run" / "figures"
    figures.mkdir(parents=True)
    assert guide.main([str(tmp_path / "run")]) == 2
    assert "finished run" in capsys.readouterr().err
    for place, figure in enumerate(PICTURES.values(), 1):
        Image.new("RGB", (40 * place, 30), "#0072B2").save(figures / figure)
    assert guide.main([str(tmp_path / "run")]) == 0
    for place, picture in enumerate(PICTURES, 1):
        with Image.open(tmp_path / "notebooks" / "guide" / "pictures" / picture) as image:
            assert image.size == (40 * place, 30)
            assert image.convert("RGB").getpixel((1, 1)) == (0x00, 0x72, 0xB2)


def test_every_result_is_on_the_page_and_every_section_says_where_when_and_how():
    page = (FOLDER / "measurements.md").read_text(encoding="utf-8")
    names = [path.name for path in sorted(RESULTS.glob("*.json")) if path.name != "gpu.json"]
    assert len(names) > 20
    assert not [name for name in names if f"In `{name}`" not in page]
    for section in page.split("\n### ")[1:]:
        facts = section.split("\n\n## ")[0].rstrip().splitlines()[-1]
        assert facts.startswith("*2026-") and ", by " in facts, section.splitlines()[0]


@pytest.mark.slow
def test_results_of_an_older_pocket_target_are_called_so(tmp_path):
    """Its texts loop more, which flatters drafters that copy."""

    def older(page):
        return {section.splitlines()[0] for section in page.split("\n### ") if "**Older model:**" in section}

    results = shutil.copytree(RESULTS, tmp_path / "results")
    batching = json.loads((results / "batching.json").read_text("utf-8")) | {"date": "2026-11-30"}
    (results / "batching.json").write_text(json.dumps(batching), encoding="utf-8")
    committed = older((FOLDER / "measurements.md").read_text(encoding="utf-8"))
    assert "Speedup at equal batch" in committed and "Accuracy by head" not in committed
    assert older(measurements_page(results)) == committed - {"Speedup at equal batch"}
