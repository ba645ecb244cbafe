"""The generated pages of the guide: what is committed is what the command makes, and it tells what the code does."""

from pathlib import Path

import pytest
from PIL import Image

from specdec import errors, run
from specdec.analysis.pages import guide
from specdec.analysis.pages.guide import PICTURES, RUN_FILES
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
    codes = {
        value.exit_code for value in vars(errors).values() if isinstance(value, type) and hasattr(value, "exit_code")
    }
    assert codes | {0, FAILED_CELLS} == set(errors.EXIT_CODES)


@pytest.mark.slow
def test_the_files_of_a_run_are_those_that_runs_write(in_process, made_database, tmp_path):
    tiny = ("+debug=tiny", "+drafter=ngram", "measurement.record=true", "measurement.sampled_temperature=0.7")
    assert in_process(run, *tiny, f"hydra.run.dir={tmp_path / 'run'}").code == 0
    written = {path.name + "/" * path.is_dir() for path in (tmp_path / "run").iterdir() if path.name[0] != "."}
    assert not written - set(RUN_FILES)
    assert not set(WRITTEN_BY) - set(RUN_FILES)
    only_some_runs = {
        "quality.parquet",
        "peers.json",
        "divergences.json",
        "cost.json",
        "experts.parquet",
        "loads.parquet",
    }
    assert set(RUN_FILES) - written <= only_some_runs


def test_pictures_come_from_a_finished_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guide, "guide_folder", lambda: tmp_path / "guide")
    monkeypatch.setattr(guide, "pages", lambda folder: {"reference.md": "# Reference\n"})
    figures = tmp_path / "run" / "figures"
    figures.mkdir(parents=True)
    assert guide.main([str(tmp_path / "run")]) == 2
    assert "finished run" in capsys.readouterr().err
    for place, figure in enumerate(PICTURES.values(), 1):
        Image.new("RGB", (40 * place, 30), "#0072B2").save(figures / figure)
    assert guide.main([str(tmp_path / "run")]) == 0
    for place, picture in enumerate(PICTURES, 1):
        with Image.open(tmp_path / "guide" / "pictures" / picture) as image:
            assert image.size == (40 * place, 30)
            assert image.convert("RGB").getpixel((1, 1)) == (0x00, 0x72, 0xB2)


def test_without_notebooks_one_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guide, "config_dir", lambda: str(tmp_path / "specdec" / "conf"))
    with pytest.raises(errors.UsageError, match="clone"):
        guide.guide_folder()
    assert guide.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "notebooks is missing" in line
