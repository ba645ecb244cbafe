"""Published figures of heads: made-up rows whose answer is known, and the figures that come along."""

from pathlib import Path

import pandas as pd
import pytest

from specdec.analysis.papers.published import COLUMNS, load_published
from specdec.analysis.papers.published_heads import heads_section, heads_tables

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
    path = folder / "printed.csv"
    lines = [
        ",".join((f'"{source}"', table, target, drafter, "MT-Bench", "", "", metric, value, "", note))
        for source, table, target, drafter, metric, value, note in rows
    ]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return load_published(path)


def test_every_source_model_and_hardware_has_a_table_of_its_own(tmp_path):
    tables = heads_tables(table_of(ROWS, tmp_path))
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
    section = heads_section(table_of(ROWS, tmp_path))
    text = " ".join(section.text)
    assert "In 1 of 2 rows" in text and "2.5 / 1.3 against 2.5" in text and "2.00 to 2.00 tokens" in text
    assert "+0.4 tokens per step over Medusa's" in text and "no row of" not in text
    without = heads_section(table_of(ROWS[:6], tmp_path))
    assert without.text[-1] == "The file has no row of Hydra or blockwise."
    nothing = table_of(ROWS[6:7], tmp_path)
    assert heads_tables(nothing) == {} and "no row of Medusa" in heads_section(nothing).text[0]
