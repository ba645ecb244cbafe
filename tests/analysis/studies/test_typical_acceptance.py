"""Figures of study typical_acceptance from a small table, computed another way."""

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.sections import About, findings
from specdec.analysis.studies.typical_acceptance import rules

ABOUT = About("mixed on pocket (float32), a computer", "stdlib_code", False, 300, 1)


def outputs(prompts=8):
    """Rates: greedy 4; rejection 3 and 2; typical 3 and 3.5, with epsilon 0.2 3.2; each varies over prompts."""
    generator = np.random.default_rng(0)
    arms = [
        *((0.0, "plain", 0.0, 1.0), (0.0, "greedy", 0.0, 4.0), (0.5, "plain", 0.0, 1.0), (1.0, "plain", 0.0, 1.0)),
        *((0.5, "rejection", 0.0, 3.0), (1.0, "rejection", 0.0, 2.0)),
        *((0.5, "typical", 0.09, 3.0), (1.0, "typical", 0.09, 3.5), (1.0, "typical", 0.2, 3.2)),
    ]
    rows = []
    for number in range(prompts):
        for temperature, rule, epsilon, rate in arms:
            rounds = int(generator.integers(20, 40))
            tokens = rounds if rule == "plain" else int(round(rate * rounds)) + int(generator.integers(0, 3))
            lossy = rule == "typical"
            rows.append(
                {"temperature": temperature, "rule": rule, "epsilon": epsilon, "prompt": f"p{number}", "repeat": 0}
                | {"stream": f"p{number}", "category": "", "tokens": tokens, "rounds": rounds, "seconds": rounds * 0.01}
                | {"log_likelihood": -tokens * (1 + temperature) + number, "tv": 0.3 * tokens if lossy else 0.0}
                | {"otherwise": 0.25 * rounds if lossy else 0.0, "offers": rounds if rule != "plain" else 0}
            )
    return pd.DataFrame(rows)


def tables(**kwargs):
    return {
        "outputs": outputs(**kwargs),
        "settings": pd.DataFrame([{"epsilon": 0.09, "delta": 0.3, "epsilon_temperature": 1.0}]),
        "skipped": pd.DataFrame(columns=["reason", "category", "count"]),
    }


def cell(cells, temperature, rule, epsilon=0.0):
    (row,) = cells.query("temperature == @temperature and rule == @rule and epsilon == @epsilon").to_dict("records")
    return row


def test_every_figure_is_a_ratio_of_sums_beside_its_partner():
    table = outputs()
    cells, prompts = rules(table, 300, 1)
    assert prompts == 8 and len(cells) == 9

    def rate(temperature, rule, epsilon=0.0):
        mine = table.query("temperature == @temperature and rule == @rule and epsilon == @epsilon")
        return mine["tokens"].sum() / mine["rounds"].sum(), mine["seconds"].sum() / mine["tokens"].sum(), mine

    warm, per_token, mine = rate(1.0, "typical", 0.09)
    row = cell(cells, 1.0, "typical", 0.09)
    assert row["rate"] == pytest.approx(warm)
    assert row["speedup"] == pytest.approx(rate(1.0, "plain")[1] / per_token)
    assert row["lead"] == pytest.approx(warm - rate(1.0, "rejection")[0])
    assert row["rise"] == pytest.approx(warm - rate(0.5, "typical", 0.09)[0])
    assert row["log_likelihood"] == pytest.approx(mine["log_likelihood"].sum() / mine["tokens"].sum())
    assert (row["tv"], row["otherwise"]) == pytest.approx((0.3, 0.25))
    for name in ("rate", "lead", "rise", "log_likelihood"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    # Nothing to compare with: greedy text at temperature 0, an epsilon at one temperature only.
    assert np.isnan(cell(cells, 0.0, "greedy")["lead"]) and np.isnan(cell(cells, 1.0, "typical", 0.2)["rise"])
    assert cell(cells, 1.0, "rejection")["rise"] < -0.5 and np.isnan(cell(cells, 1.0, "plain")["otherwise"])


def test_quality_that_is_not_known_of_all_texts_is_not_given():
    table = outputs()
    table.loc[table.query("rule == 'typical' and temperature == 0.5").index[0], "tv"] = np.nan
    cool, warm = (cell(rules(table, 50, 1)[0], t, "typical", 0.09) for t in (0.5, 1.0))
    assert np.isnan(cool["tv"]) and (warm["tv"], cool["otherwise"]) == pytest.approx((0.3, 0.25))


def test_the_sections_say_what_the_numbers_say():
    found = findings("typical_acceptance", tables(), ABOUT)
    rates, quality = found.sections
    assert "rejection loses as the temperature rises, as the paper says" in " ".join(rates.text)
    assert rates.text[0].startswith("At temperature 1 typical acceptance yields 3.5")
    assert len(rates.tables[0][1]) == 8 and len(quality.tables[0][1]) == 4  # the sweep's epsilon is in the second only
    assert all(len(section.figures) == 1 for section in found.sections)
    metrics = {name.removeprefix("typical_acceptance/"): value for name, value in found.metrics.items()}
    assert metrics["typical.tokens_per_call.1"] == pytest.approx(3.5, abs=0.1)
    assert metrics["epsilon.tokens_per_call.0.2"] == pytest.approx(3.2, abs=0.1)
    assert metrics["epsilon.tokens_per_call.0.09"] == metrics["typical.tokens_per_call.1"]
    assert metrics["typical.over_rejection.1.ci_low"] > 1
    found = findings("typical_acceptance", tables(prompts=1), ABOUT)
    assert not [name for name in found.metrics if ".ci_" in name]
    assert "cannot be told" in " ".join(found.sections[0].text)
