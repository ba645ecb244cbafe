"""The page of an imported data set: what it says first, what it cannot say, and several data sets side by side."""

import json

import numpy as np
import pytest
from fixtures.imported_folders import folder_of

from specdec.analysis.findings.foreign_sections import foreign_findings, side_by_side
from specdec.analysis.read.foreign.accepted_lengths import read as accepted_lengths
from specdec.analysis.read.foreign.vllm import read as vllm
from specdec.analysis.read.imported import ImportChoices, ImportedText, imported


def named(found, title):
    (section,) = [section for section in found.sections if section.title == title]
    return section


def test_pages_of_two_drafters_alone_and_side_by_side(tmp_path, undrawn):
    """A trace of twelve texts by position, one of them long, with the lengths of two drafters."""
    generator, lines = np.random.default_rng(0), []
    for number in range(12):
        size = 300 if number == 0 else int(generator.integers(8, 16))
        one, two = (np.minimum(generator.geometric(1 - p, size), 4).tolist() for p in (0.6, 0.3))
        lines.append({"id": f"t{number:02}", "acc_one": {"acc_len": one}, "acc_two": {"acc_len": two}})

    def findings_of(name, lines):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sources = accepted_lengths(path, ImportChoices())
        return [foreign_findings(folder_of(source, tmp_path / name / source.name)) for source in sources]

    one, two = findings_of("trace", lines)
    assert one.facts.gamma == 3
    table = named(one, "Curves over gamma").tables[0][1]
    assert table["gamma"].tolist() == ["1", "2", "3*"]
    assert {"capped geometric", "its error (paired)", "mean over requests"} <= set(table)
    factors = named(one, "Curves over gamma").tables[1][1]
    assert {"gamma", "omega", "offered", "texts", "along", "depth", "measured"} == set(factors)
    account = named(one, "The gap, explained: acceptance").tables[0][1]
    product = account["product"].astype(float).tolist()
    assert product[-1] == product[-2] == pytest.approx(float(table["tokens per round"].iloc[-1].split()[0]), abs=6e-4)
    assert named(one, "What would each model have predicted?").tables
    assert named(one, "Is acceptance independent and the same everywhere?").tables
    text = " ".join(named(one, "Summary").text)
    assert "Few texts hold most tokens" in text and "of 12 hold" in text and "in the mean over 12 requests" in text
    (even,) = findings_of("even", [{"acc_one": line["acc_one"]} for line in lines[1:]])
    assert "Few texts" not in " ".join(named(even, "Summary").text)
    table = side_by_side([one, two]).tables[0][1]
    assert table["data set"].tolist() == ["trace: acc_one", "trace: acc_two"]
    assert float(table["tokens per round"].iloc[0].split()[0]) > float(table["tokens per round"].iloc[1].split()[0])
    assert table["its error (paired)"].str.contains("%").all() and table.notna().all(axis=None)


def test_totals_without_an_order_make_no_claim_about_neighbours(tmp_path, undrawn):
    path = tmp_path / "metrics.jsonl"
    lines = [{"histogram": [4, 3, 2, 1], "num_draft_tokens": 30, "request_id": name} for name in "abc"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = foreign_findings(folder_of(vllm(path, ImportChoices(gamma=3))[0], tmp_path / "run"))
    tests = named(found, "Is acceptance independent and the same everywhere?").tables[0][1].set_index("question")
    assert "no order of rounds" in tests.loc["Do neighbouring rounds resemble each other?", "reading"]
    assert "no order of rounds" in tests.loc["Does it matter whether the round before was full?", "reading"]
    models = named(found, "Which model describes the rounds?").tables[0][1]["model"]
    assert len(models) == 4 and "previous round full or not" not in set(models)
    assert "fitted to the rounds that the capped geometric is compared with" in named(found, "Summary").text[2]
    assert "one gamma only" in named(found, "What would each model have predicted?").text[0]


@pytest.mark.parametrize("lengths", [[4, 4, 4], [0, 0, 0]], ids=["all full", "none accepted"])
def test_data_without_a_spread_still_make_every_section(tmp_path, lengths):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"accepted": each}) + "\n" for each in (lengths, lengths[:2])))
    found = foreign_findings(folder_of(accepted_lengths(path, ImportChoices(gamma=4))[0], tmp_path / "run"))
    assert len(found.sections) == 7


def test_a_source_in_which_nothing_was_drafted_ends_in_a_sentence(tmp_path):
    source = imported(tmp_path, "vllm", 3, [ImportedText(name, "", [0, 0], [0, 0]) for name in "ab"], ())
    found = foreign_findings(folder_of(source, tmp_path / "run"))
    assert found.sections[-1].text == ("No draft token was ever tested, so there is no alpha.",)
