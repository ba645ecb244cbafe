"""Several studies side by side: made-up tables of two prompt sets whose answers are known."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from fixtures.grid_tables import FASTER, tables, times, whole

from specdec.analysis.read.find_runs import find_runs
from specdec.analysis.sections import About, FinishedStudy
from specdec.analysis.study_sets import labelled, side_by_side, study_chapters
from specdec.errors import UsageError

SETS = ("first_set", "second_set")


def about(prompts, title="mixed on pocket (float32), a machine"):
    return About(title, prompts, False, 100, 0)


def topk(prompts, gain):
    lines = [("b", k, 1, f"p{p}", f"p{p}", "c", 20.0, 40, 40 - gain * k) for k in (1, 2, 8) for p in range(4)]
    names = ["drafter", "k", "w", "prompt", "stream", "category", "context", "tokens", "rounds"]
    skipped = pd.DataFrame(columns=["reason", "category", "count"])
    return FinishedStudy("topk", {"topk": pd.DataFrame(lines, columns=names), "skipped": skipped}, about(prompts), "")


def grid(prompts, **changes):
    return FinishedStudy("grid", tables(**changes), about(prompts), "")


def test_topk_of_two_sets():
    (section,) = side_by_side([topk("first_set", 1), topk("second_set", 2)])
    ((_, table),) = section.tables
    tokens = [float(cell.split()[0]) for cell in table.set_index("prompt set").loc[list(SETS), "tokens per call"]]
    assert tokens == pytest.approx([40 / 32, 40 / 24], abs=5e-4) and list(table["best k"]) == [8, 8]
    ((_, figure),) = section.figures
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == list(SETS)
    assert f"first_set, b {40 / 39 - 1:.0%} and {40 / 32 - 1:.0%} (k = 8)" in section.text[1]
    assert "prompts of first_set, second_set says little" in section.text[-1]  # once for both


def test_the_table_of_the_paper():
    even, _ = times(lambda tokens: 1.0)  # the shape with most tokens per call is the fastest
    square = whole((10, 10)).drop_duplicates(["repeat", "k", "w", "stream"])
    first = grid("first_set", whole=whole((5, 10)))
    table, maps = side_by_side([first, grid("second_set", whole=square, block_times=even)])
    (_, by_model), (_, long) = table.tables
    by_run = [2 / factor for factor in FASTER]
    best = f"{np.mean(by_run):.2f} ± {np.std(by_run, ddof=1):.2f}"
    # As replayed: 720 tokens in 360 calls of (5, 10) and in 324 of (10, 10).
    assert by_model.set_index("shape")[list(SETS)].to_dict("list") == {
        "first_set": [f"(5, 10): {best} (2.00 tokens)", "1.50 ± 0.00 (2.22 tokens)"],
        "second_set": [f"(10, 10): {best} (2.22 tokens)", f"{best} (2.22 tokens)"],
    }
    assert list(long["shape"]) == ["(5, 10) = (k*, w*)", "(10, 10)", "(10, 10) = (k*, w*)"]
    assert set(long["mean of"]) == {"3 whole runs"}
    assert "first_set +0.50" in table.text[1] and "The best shape is (10, 10) itself: second_set" in table.text[2]
    assert len(maps.figures) == 1
    again, _ = side_by_side([first, grid("second_set", whole=whole().iloc[:0])])
    assert set(again.tables[1][1]["mean of"]) == {"3 whole runs", "predicted"}


def test_names_tell_studies_apart():
    same = [topk("a", 1), topk("a", 2), topk("b", 1)]
    assert list(labelled(same)) == ["a (1)", "a (2)", "b"]
    other = FinishedStudy("topk", same[0].tables, about("a", "another model"), "")
    assert list(labelled([same[0], other]))[1] == "a, another model"


def keep(study, folder):
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"study": study.kind, **vars(study.about), "metrics": {}}))
    for name, table in study.tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def test_folders_of_studies_become_chapters(tmp_path):
    for number, name in enumerate(SETS):
        keep(topk(name, 1 + number), tmp_path / "studies" / f"{number}")
    keep(grid("first_set"), tmp_path / "alone")
    names = [str(tmp_path / name) for name in ("studies", "alone", "alone")]
    found = find_runs(names, "sqlite:///no.db").studies
    assert [each.kind for each in found] == ["topk", "topk", "grid"]
    chapters = study_chapters(found)
    assert [re.sub(":.*,", "", chapter.title) for chapter in chapters] == [
        "Studies side by side", "Study topk first_set", "Study topk second_set", "Study grid first_set"
    ]  # fmt: skip
    (alone,) = study_chapters(found[2:])
    assert alone.title.startswith("Study grid")
    del found[2].tables["whole"]
    with pytest.raises(UsageError, match="lacks 'whole'.*run it again"):
        study_chapters(found[2:])
