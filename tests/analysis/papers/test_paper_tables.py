"""Checks of published figures: on rows whose answer is known, and on the figures that come along."""

from math import isnan
from pathlib import Path

import pandas as pd
import pytest

from specdec.analysis.papers import paper_sections, paper_tables
from specdec.analysis.papers.paper_tables import COLUMNS, leviathan_table_3, load_published
from specdec.theory.capped_geometric import tokens_per_round

LEVIATHAN = "Leviathan et al. 2023 (arXiv:2211.17192)"


def written(lines: list[str], folder: Path) -> pd.DataFrame:
    """The published figures of a file with these lines, as a user has it."""
    file = folder / "printed.csv"
    file.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return load_published(file)


def figures_of(*rows: tuple[str, ...], source: str = LEVIATHAN, path: Path) -> pd.DataFrame:
    """Rows of table, drafter, task, temperature, gamma, metric, value, note."""
    lines = [
        ",".join((source, table, "T5", drafter, task, temperature, gamma, metric, value, "", note))
        for table, drafter, task, temperature, gamma, metric, value, note in rows
    ]
    return paper_tables.printed_figures(written(lines, path))


def test_a_speedup_beyond_its_ceiling(tmp_path):
    """0.65 at gamma 5 allows 2.642 and, without a cap, 1 / 0.35 = 2.857; 0.62 at gamma 7 allows 2.574, and 2.605 if it
    was rounded down, so 2.6 passes it only as printed. Without a cost there is no formula to pass.
    """
    rows = []
    for task, temperature, gamma, alpha, speedup, cost in (
        ("CNN/DM", "0", "5", "0.65", "3.1", "0.02"), ("EnDe", "1", "7", "0.62", "2.6", "0.02"),
        ("EnDe", "0", "7", "0.75", "3.4", "0.02"), ("free", "1", "5", "0.68", "2.4", ""),
    ):  # fmt: skip
        key = ("Table 2", "T5-small", task, temperature, gamma)
        rows += [(*key, "alpha", alpha, ""), (*key, "speedup_measured", speedup, "")]
        rows += [("Table 4", *key[1:], "cost_coefficient_c", cost, "")] if cost else []
    table = paper_tables.ceilings(figures_of(*rows, path=tmp_path)).set_index(["task", "temperature"])
    free = table.loc[("free", 1)]
    assert free["beyond"] == "" and isnan(free["formula"])
    table = table.drop(("free", 1)).loc[[("CNN/DM", 0), ("EnDe", 1), ("EnDe", 0)]]
    assert table["exceeds"].tolist() == ["limit", "omega", ""] and table["surely"].tolist() == [True, False, False]
    # (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + 1)) by hand: 2.641660 / 1.1, 2.574121 / 1.14, 3.599548 / 1.14
    assert table["formula"].tolist() == pytest.approx([2.401509, 2.258001, 3.157499], abs=1e-6)
    assert (table["beyond"] == paper_tables.YES).all()
    assert table.loc[("CNN/DM", 0), "limit"] == pytest.approx(1 / 0.35)
    assert table.loc[("EnDe", 1), "omega"] == pytest.approx(2.574121, abs=1e-6)
    for key, row in table.iterrows():
        needed = tokens_per_round(row["alpha_needed"], row["gamma"])
        assert needed == pytest.approx(row["speedup"] * (1 + row["gamma"] * 0.02)), key


def test_without_a_gamma_the_best_one_counts(tmp_path):
    """alpha 0.8 and c 0.05: gamma 8 gives 3.092080 (theory.md 2.2); the cost stands in the note."""
    key = ("Table 5", "T5-small", "EnDe", "1", "")
    rows = [(*key, "alpha", "0.80", "lenience l=1"), (*key, "speedup_predicted", "3.1", "lenience l=1; c=0.05")]
    (row,) = paper_tables.predictions(figures_of(*rows, path=tmp_path)).to_dict("records")
    assert row["formula"] == pytest.approx(3.092080, abs=1e-6) and row["agrees"] == paper_tables.YES


def test_rates_and_overheads_multiply_out(tmp_path):
    """3.47 / 1.22 = 2.844 and the rounding of both allows 2.83; 3.51 / 1.23 = 2.854 does not. Text is no figure."""
    rows = [("Table 1", "heads", "c", "0", "", "speedup_measured", "7-10", "")]
    for task, rate, overhead in (("a", "3.47", "1.22"), ("b", "3.51", "1.23")):
        key = ("Table 1", "heads", task, "0", "")
        rows += [(*key, "tokens_per_round", rate, ""), (*key, "round_time_over_baseline", overhead, "")]
        rows.append((*key, "speedup_measured", "2.83", ""))
    figures = figures_of(*rows, source="Medusa", path=tmp_path)
    assert list(figures["speedup_measured"]) == [2.83, 2.83]
    assert list(figures["speedup_measured.half"]) == pytest.approx([0.005, 0.005])
    assert list(paper_tables.identities(figures)["agrees"]) == [paper_tables.INPUTS, paper_tables.NO]
    assert list(paper_tables.round_times(figures)["round_time"]) == pytest.approx([3.47 / 2.83, 3.51 / 2.83])


def test_one_alpha_at_two_lengths(tmp_path):
    """Omega(0.7, 3) = 2.533 and Omega(0.7, 5) = 2.941 agree; 2.6 at gamma 5 does not."""
    rows = []
    for task, long in (("a", "2.941"), ("b", "2.600")):
        rows.append(("Table 1", "chain", task, "0", "3", "tokens_per_round", "2.533", ""))
        rows.append(("Table 1", "chain", task, "0", "5", "tokens_per_round", long, ""))
    table = paper_tables.lengths(figures_of(*rows, source="x", path=tmp_path)).set_index("task")
    assert table["agree"].to_dict() == {"a": True, "b": False}
    assert table["alpha"].to_numpy() == pytest.approx(0.7, abs=1e-3)
    assert table.loc["b", "error"] == pytest.approx(2.941 / 2.6 - 1, abs=1e-3)


@pytest.mark.parametrize(("tokens", "gamma", "alpha"), [(3.68928, 5, 0.8), (1.0, 4, 0.0), (5.0, 4, 1.0)])
def test_alpha_is_solved(tokens, gamma, alpha):
    assert paper_tables.solved_alpha(tokens, gamma) == pytest.approx(alpha)
    assert paper_tables.solved_alpha(gamma + 1.01, gamma) != paper_tables.solved_alpha(gamma + 1.01, gamma)  # NaN


def test_positions_give_tokens_of_the_chain_alone(tmp_path):
    """theory.md 4.1: h = (.79, .74, .72, .73, .67) gives 3.308646; the tree's own 3.94 is no chain's."""
    key = ("Table 2", "E", "bench", "0", "")
    rates = ("0.79", "0.74", "0.72", "0.73", "0.67")
    rows = [(*key, f"alpha_position_{place}", rate, "") for place, rate in enumerate(rates, 1)]
    rows.append((*key, "tokens_per_round", "3.94", ""))
    (alone,) = paper_tables.positions(figures_of(*rows, source="E", path=tmp_path)).to_dict("records")
    assert alone["product"] == pytest.approx(3.308646, abs=1e-6) and alone["printed"] != alone["printed"]
    rows.append(("Table 5", "E chain", "bench", "0", "", "tokens_per_round", "3.20", ""))
    (row,) = paper_tables.positions(figures_of(*rows, source="E", path=tmp_path)).to_dict("records")
    assert row["product_error"] == pytest.approx(3.308646 / 3.2 - 1, abs=1e-6)
    assert row["one_alpha"] == pytest.approx(tokens_per_round(0.79, 5))


def test_lenient_alphas_and_several_drafts(tmp_path):
    """alpha / l bounds a lenient alpha; K independent rows: theory.md 2.4, 3.428826 at alpha 0.6, w = 3, K = 4."""
    rows = [("Table 5", "m", "EnDe", "1", "", "alpha", value, f"lenience l={lenience}")
            for lenience, value in (("1", "0.19"), ("0.5", "0.23"), ("0.3", "0.90"))]  # fmt: skip
    table = paper_tables.lenience(figures_of(*rows, path=tmp_path))
    assert table.set_index("l")["within"].to_dict() == {0.5: True, 0.3: False}
    single = f"{tokens_per_round(0.6, 3):.6f}"
    rows = [("Table 1", "m", "LM", "1", "3", "tokens_per_round", value, f"K={k} drafts; x")
            for k, value in ((1, single), (4, "3.0"))]  # fmt: skip
    (row,) = paper_tables.several_drafts(figures_of(*rows, source="x", path=tmp_path)).to_dict("records")
    assert row["expected"] == pytest.approx(3.428826, abs=1e-5)


def test_the_published_file():
    """Known from the papers: which rows pass their ceiling, and which figures do not multiply out."""
    printed = load_published()
    figures = paper_tables.printed_figures(printed)
    ceilings = paper_tables.ceilings(figures)
    over = ceilings.query("exceeds != ''").set_index(["drafter", "task", "temperature"])
    assert over["exceeds"].to_dict() == {
        ("T5-small (77M)", "WMT EnDe", 1): "omega",
        ("T5-base (250M)", "CNN/DM", 1): "omega",
        ("T5-small (77M)", "CNN/DM", 0): "limit",
        ("T5-small (77M)", "CNN/DM", 1): "limit",
    }
    (impossible,) = paper_tables.round_times(figures).query("possible == 'no'").to_dict("records")
    assert (impossible["speedup"], impossible["tokens_per_round"]) == (3.53, 3.33)
    off = paper_tables.identities(figures).query("agrees == 'no'")
    not_multiplied = {("Vicuna-13B", "MT-Bench"), ("Vicuna-33B", "MT-Bench"), ("Chinchilla (70B)", "XSum")}
    assert set(zip(off["target"], off["task"], strict=True)) == not_multiplied
    agrees = paper_tables.predictions(figures)["agrees"]
    for column, counts in ((ceilings["beyond"], (8, 1, 3)), (agrees, (13, 3, 4))):
        words = paper_tables.YES, paper_tables.INPUTS, paper_tables.NO
        assert column.value_counts().to_dict() == dict(zip(words, counts, strict=True))
    alphas = leviathan_table_3(printed)
    gpt = alphas[alphas["target"].str.startswith("GPT-like") & (alphas["temperature"] == 1)]
    assert len(alphas) == 32 and alphas["target"].nunique() == 4 and list(gpt["alpha"]) == [0.03, 0.05, 0.89]
    at_5 = paper_tables.starts(figures).query("drafter == 'EAGLE-3' and gamma == 5")
    assert at_5["omega_error"].between(0.12, 0.15).all() and len(at_5) == 4
    answer = " ".join(section.text[0] for section in paper_sections.paper_sections(printed))
    assert "4 of 12 measured speedups exceed Ω" in answer and "9 of 12 speedups with a printed c exceed it" in answer
    table_1 = paper_tables.leviathan_table_1(printed)
    assert "All 6 rows of Table 1 agree" in paper_tables.table_1_in_words(table_1)


def test_a_file_without_anything_to_check(tmp_path):
    rows = [("Table 1", "m", "a", "0", "", "quality", "6.2", "")]
    file = figures_of(*rows, source="x", path=tmp_path)
    assert all(check(file).empty for check, _ in paper_sections.CHECKS.values())
    (section,) = paper_sections.paper_sections(load_published(tmp_path / "printed.csv"))
    assert section.text[0].startswith("0 of 1 printed table ")


MEDUSA = ("tokens_per_round", "round_time_over_baseline", "speedup_measured")
ROWS = (  # source, table, target, drafter, metric, value, note; 3 / 1.5 is 2, and 2.5 / 1.3 no 2.5 however rounded
    *(
        ("A 2024, Heads (arXiv:1)", "Table 1", target, "Medusa-2 heads", metric, value, "")
        for target, values in (("7B", ("3.00", "1.50", "2.00")), ("13B", ("2.50", "1.30", "2.50")))
        for metric, value in zip(MEDUSA, values, strict=True)
    ),
    ("A 2024, Heads (arXiv:1)", "Table 2", "7B", "a draft model", "speedup_measured", "1.10", ""),
    ("B leaderboard", "A100", "7B", "Hydra", "tokens_per_round", "3.20", ""),
    ("B leaderboard", "A100", "7B", "Hydra", "speedup_measured", "1.60", ""),
    ("B leaderboard", "3090", "7B", "Hydra", "speedup_measured", "1.50", ""),
    ("C 2023 (preprint)", "text", "7B", "grounded Medusa heads", "tokens_per_round_gain_over_medusa", "0.40", ""),
    ("D 2018 (arXiv:2)", "text", "WMT", "blockwise heads", "tokens_per_round", "1.90", "one V100"),
)


def table_of(rows: tuple[tuple[str, ...], ...], folder: Path) -> pd.DataFrame:
    lines = [
        ",".join((f'"{source}"', table, target, drafter, "MT-Bench", "", "", metric, value, "", note))
        for source, table, target, drafter, metric, value, note in rows
    ]
    return written(lines, folder)


def test_every_source_model_and_hardware_has_a_table_of_its_own(tmp_path):
    tables = paper_sections.heads_tables(table_of(ROWS, tmp_path))
    assert {title: len(table) for title, table in tables.items()} == {
        "A 2024, Heads: 7B, hardware not in the file": 1,
        "A 2024, Heads: 13B, hardware not in the file": 1,
        "B leaderboard: 7B, A100": 1,
        "B leaderboard: 7B, 3090": 1,
        "C 2023: 7B, hardware not in the file": 1,
        "D 2018: WMT, V100": 1,
    }
    rows = pd.concat(tables.values()).set_index("drafter")
    systems = ["Medusa", "Medusa", "Hydra", "Hydra", "Hydra", "blockwise"]
    assert sorted(rows["system"]) == sorted(systems) and rows.at["grounded Medusa heads", "system"] == "Hydra"
    assert list(rows["agrees"]).count("yes") == 1 and list(rows["agrees"]).count("no") == 1
    assert tables["B leaderboard: 7B, A100"].at[0, "implied"] == pytest.approx(3.2 / 1.6)
    assert rows.loc["grounded Medusa heads", "gain"] == 0.4
    section = paper_sections.heads_section(table_of(ROWS, tmp_path))
    text = " ".join(section.text)
    assert "In 1 of 2 rows" in text and "2.5 / 1.3 against 2.5" in text and "2.00 to 2.00 tokens" in text
    assert "+0.4 tokens per step over Medusa's" in text and "no row of" not in text
    without = paper_sections.heads_section(table_of(ROWS[:6], tmp_path))
    assert without.text[-1] == "The file has no row of Hydra or blockwise."
    nothing = table_of(ROWS[6:7], tmp_path)
    assert (
        paper_sections.heads_tables(nothing) == {}
        and "no row of Medusa" in paper_sections.heads_section(nothing).text[0]
    )
