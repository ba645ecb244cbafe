"""Several studies side by side: made-up tables of two prompt sets whose answers are known."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.read.find_runs import find_runs
from specdec.analysis.sections import About, FinishedStudy
from specdec.analysis.study_sets import labelled, side_by_side, study_chapters
from specdec.errors import UsageError

SETS = ("first_set", "second_set")
NO_SKIPS = pd.DataFrame(columns=["reason", "category", "count"])


def about(prompts, title="mixed on pocket (float32), a machine"):
    return About(title, prompts, False, 100, 0)


def topk(prompts, gain):
    lines = [
        ("b", k, 1, f"p{p}", f"p{p}", "c", 20.0, 40, 40 - gain * k) for k in (1, 2, 8) for p in range(4)
    ]  # fmt: skip
    names = ["drafter", "k", "w", "prompt", "stream", "category", "context", "tokens", "rounds"]
    return FinishedStudy("topk", {"topk": pd.DataFrame(lines, columns=names), "skipped": NO_SKIPS}, about(prompts), "")


def grid(prompts, best, runs=(1.1, 1.0, 0.9)):
    """(1, 4) and (10, 10), of which `best` is the faster one by 6 s to 3 s a text, and the other takes 4 s."""
    replay, whole = [], []
    for p in range(4):
        for k, w, rounds in ((1, 4, 30), (10, 10, 20)):
            replay.append((k, w, f"p{p}", f"p{p}", "c", 100.0, 60, rounds, k * w * rounds, k * rounds))
        for repeat, factor in enumerate(runs):
            for k, w, rounds in ((1, 0, 60), (1, 4, 30), (10, 10, 20)):
                seconds = 6.0 if w == 0 else 3.0 * factor if (k, w) == best else 4.0
                whole.append((repeat, k, w, f"p{p}", 60, rounds, 0, seconds, True, "float32", f"p{p}"))
    # A call in the better shape costs what makes it the faster one by prediction too.
    calls = [
        (0, k, w, 100, "rows", k * (w + 1), 0, 0.01 if w == 0 or (k, w) == best else 0.1, "")
        for k, w in ((1, 0), (1, 4), (10, 10))
    ]
    whole.sort(key=lambda line: (line[2] > 0, line[1:3] != best))
    columns = {
        "replay": "k w stream prompt category context tokens rounds nodes paths",
        "block_times": "repeat k w context evaluation rows_evaluated call seconds missing",
        "host_times": "repeat k w nodes draft_s overhead_s",
        "live": "repeat k w stream seconds",
        "whole": "repeat k w stream tokens rounds nodes seconds identical dtype prompt",
    }
    lines = (replay, calls, [(0, 1, 0, 0.0, 0.0, 0.0)], [], whole)
    tables = {
        name: pd.DataFrame(rows, columns=names.split())
        for (name, names), rows in zip(columns.items(), lines, strict=True)
    }
    return FinishedStudy("grid", {**tables, "skipped": NO_SKIPS}, about(prompts), "")


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
    table, maps = side_by_side([grid("first_set", (1, 4)), grid("second_set", (10, 10))])
    (_, by_model), (_, long) = table.tables
    by_run = [2 / factor for factor in (1.1, 1.0, 0.9)]
    best = f"{np.mean(by_run):.2f} ± {np.std(by_run, ddof=1):.2f}"
    assert by_model.set_index("shape")[list(SETS)].to_dict("list") == {
        "first_set": [f"(1, 4): {best} (2.00 tokens)", "1.50 ± 0.00 (3.00 tokens)"],
        "second_set": [f"(10, 10): {best} (3.00 tokens)", f"{best} (3.00 tokens)"],
    }
    assert list(long["shape"]) == ["(1, 4) = (k*, w*)", "(10, 10)", "(10, 10) = (k*, w*)"]
    assert set(long["mean of"]) == {"3 whole runs"}
    assert "first_set +0.50" in table.text[1] and "The best shape is (10, 10) itself: second_set" in table.text[2]
    assert len(maps.figures) == 1
    again, _ = side_by_side([grid("first_set", (1, 4)), grid("second_set", (1, 4), runs=())])
    assert set(again.tables[1][1]["mean of"]) == {"3 whole runs", "predicted"}


def test_names_tell_studies_apart():
    same = [topk("a", 1), topk("a", 2), topk("b", 1)]
    assert [each.label for each in labelled(same)] == ["a (1)", "a (2)", "b"]
    other = FinishedStudy("topk", same[0].tables, about("a", "another model"), "")
    assert labelled([same[0], other])[1].label == "a, another model"


def keep(study, folder):
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps({"study": study.kind, **vars(study.about), "metrics": {}}))
    for name, table in study.tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def test_folders_of_studies_become_chapters(tmp_path):
    for number, name in enumerate(SETS):
        keep(topk(name, 1 + number), tmp_path / "studies" / f"{number}")
    keep(grid("first_set", (1, 4)), tmp_path / "alone")
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
