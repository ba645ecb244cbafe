"""Several studies side by side: made-up tables of two prompt sets whose answers are known."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.read.find_runs import find_runs
from specdec.analysis.sections import About, FinishedStudy
from specdec.analysis.study_sets.labels import labelled
from specdec.analysis.study_sets.side_by_side import side_by_side, study_chapters
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


def ablation(prompts, wins):
    """10 rounds of two rows of 3; "x" has both, and the last of them is accepted whole in `wins` of the rounds."""
    replay = pd.DataFrame(
        [(2, 3, name, name, "c", 50.0, 10 + 3 * wins, 10) for name in ("one", "two")],
        columns=["k", "w", "stream", "prompt", "category", "context", "tokens", "rounds"],
    )
    counts = [
        (name, histogram, "x", value, count)
        for name in ("one", "two")
        for histogram, value, count in (("accepted", 3, wins), ("rank", 1, wins), ("allotment", 2, 10))
    ]
    histograms = pd.DataFrame(counts, columns=["prompt", "histogram", "strategy", "value", "count"])
    tables = {"replay": replay, "histograms": histograms.assign(stream="s"), "skipped": NO_SKIPS}
    return FinishedStudy("ablation", tables, about(prompts), "")


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
    tables = {
        "replay": pd.DataFrame(replay, columns=["k", "w", "stream", "prompt", "category", "context", "tokens", "rounds",
                                                "nodes", "paths"]),
        "block_times": pd.DataFrame(calls, columns=["repeat", "k", "w", "context", "evaluation", "rows_evaluated",
                                                    "call", "seconds", "missing"]),
        "host_times": pd.DataFrame([(0, 1, 0, 0.0, 0.0, 0.0)],
                                   columns=["repeat", "k", "w", "nodes", "draft_s", "overhead_s"]),
        "live": pd.DataFrame(columns=["repeat", "k", "w", "stream", "seconds"]),
        "whole": pd.DataFrame(whole, columns=["repeat", "k", "w", "stream", "tokens", "rounds", "nodes", "seconds",
                                              "identical", "dtype", "prompt"]),
        "skipped": NO_SKIPS,
    }  # fmt: skip
    return FinishedStudy("grid", tables, about(prompts), "")


def table_of(section, place=0):
    return section.tables[place][1]


def test_topk_of_two_sets():
    (section,) = side_by_side([topk("first_set", 1), topk("second_set", 2)])
    table = table_of(section).set_index("prompt set")
    expected = {"first_set": 40 / 32, "second_set": 40 / 24}
    for name, value in expected.items():
        assert float(table.loc[name, "tokens per call"].split()[0]) == pytest.approx(value, abs=5e-4)
    assert list(table["best k"]) == [8, 8]
    ((_, figure),) = section.figures
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == list(SETS)
    assert f"first_set, b {40 / 39 - 1:.0%} and {40 / 32 - 1:.0%} (k = 8)" in section.text[1]
    assert "prompts of first_set, second_set says little" in section.text[-1]  # once for both


@pytest.mark.slow
def test_ablation_of_two_sets():
    (section,) = side_by_side([ablation("first_set", 2), ablation("second_set", 8)])
    table = table_of(section).set_index("prompt set")
    assert table.loc["first_set", "rounds won"].startswith("20%") and table.loc["second_set", "rounds won"].startswith(
        "80%"
    )
    assert table.loc["second_set", "tokens per call"].startswith("3.40")
    assert "second_set: x 100%" in section.text[0] and len(section.figures) == 2


def test_the_table_of_the_paper():
    table, maps = side_by_side([grid("first_set", (1, 4)), grid("second_set", (10, 10))])
    by_model = table_of(table).set_index("shape")
    mean, deviation = np.mean([2 / f for f in (1.1, 1.0, 0.9)]), np.std([2 / f for f in (1.1, 1.0, 0.9)], ddof=1)
    best = f"{mean:.2f} ± {deviation:.2f}"
    assert by_model.loc["(k*, w*)", "first_set"] == f"(1, 4): {best} (2.00 tokens)"
    assert by_model.loc["(10, 10)", "first_set"] == "1.50 ± 0.00 (3.00 tokens)"
    assert by_model.loc["(k*, w*)", "second_set"] == f"(10, 10): {best} (3.00 tokens)"
    assert by_model.loc["(10, 10)", "second_set"] == f"{best} (3.00 tokens)"
    long = table_of(table, 1)
    assert list(long["shape"]) == ["(1, 4) = (k*, w*)", "(10, 10)", "(10, 10) = (k*, w*)"]
    assert set(long["mean of"]) == {"3 whole runs"}
    assert "first_set +0.50" in table.text[1] and "The best shape is (10, 10) itself: second_set" in table.text[2]
    assert len(maps.figures) == 1
    unrun = grid("second_set", (1, 4), runs=())
    again, _ = side_by_side([grid("first_set", (1, 4)), unrun])
    assert set(table_of(again, 1)["mean of"]) == {"3 whole runs", "predicted"}


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
