"""The grid's numbers and sentences on made-up tables whose best shape is known."""

import statistics

import numpy as np
import pandas as pd
import pytest
from fixtures.grid_tables import FASTER, PROMPTS, K, W, live, replay, tables, times, whole

from specdec.analysis.sections import About, findings
from specdec.analysis.studies.grid import best, grid, steadiness, whole_runs

ABOUT = About("mixed on pocket (float32), a machine", "stdlib_code", False, 500, 0)


@pytest.mark.slow
def test_whole_runs_have_the_mean_and_the_deviation_of_the_runs():
    shapes, lead = whole_runs(whole(), 200, 0)
    chosen, usual = shapes.to_dict("records")
    by_run = [2 / factor for factor in FASTER]
    assert (chosen["k"], chosen["w"], chosen["runs"]) == (5, 4, 3) and (usual["k"], usual["w"]) == (10, 10)
    assert chosen["speedup"] == pytest.approx(statistics.mean(by_run))
    assert chosen["deviation"] == pytest.approx(statistics.stdev(by_run))
    assert (usual["speedup"], usual["deviation"]) == pytest.approx((1.5, 0))
    assert (chosen["tokens"], usual["tokens"]) == (2, 3) and chosen["identical"] == pytest.approx(11 / 12)
    # All runs together: 18 s over 9 s; every text is alike, so other prompts would change nothing.
    assert (lead.estimate, lead.low, lead.high) == pytest.approx((0.5, 0.5, 0.5))
    alone, none = whole_runs(whole((10, 10), (1.0,)).drop_duplicates(["k", "w", "stream"]), 200, 0)
    assert none is None and len(alone) == 1 and np.isnan(alone["deviation"].iloc[0])
    said = findings("grid", tables(), ABOUT)
    (section,) = (section for section in said.sections if section.title == "Whole runs")
    assert "3 whole runs of 12 texts: (5, 4) 2.01 ± 0.20 at 2.00 tokens per call; (10, 10) 1.50" in section.text[0]
    assert "The first less the second: +0.50" in section.text[1]
    assert said.metrics["grid/whole.best.speedup"] == pytest.approx(statistics.mean(by_run))
    assert said.metrics["grid/whole.10x10.tokens_per_call"] == 3


def test_the_best_shapes_are_found_with_their_intervals():
    found = grid(replay(), *times(), 500, 0)
    assert best(found, "tokens") == (10, 10)  # as (10, 10), and no other, has both k > 6 and w > 8
    rounds = {(k, w): sum(60 - 3 * min(k, 6) - 2 * min(w, 8) + p % 3 for p in range(PROMPTS)) for k in K for w in W}
    largest, expected = found.line(10, 10), 60 * PROMPTS / rounds[10, 10]
    assert largest["tokens_low"] < expected < largest["tokens_high"] and largest["tokens"] == pytest.approx(expected)
    # Per repeat: rounds of a shape by its call, against 60 plain steps of 1.01.
    by_hand = {
        (k, w): [60 * PROMPTS * 1.01 / (count * (1.01 + 0.01 * k * w) * s) for s in (1.0, 1.5)]
        for (k, w), count in rounds.items()
    }
    fastest = max(by_hand, key=lambda shape: by_hand[shape][0])
    assert best(found, "speedup") == fastest != (10, 10)
    # The mean over repeats is that of the seconds.
    assert found.line(*fastest)["speedup"] == pytest.approx(by_hand[fastest][0] / 1.25)
    assert found.line(*fastest)["deviation"] == pytest.approx(np.std(by_hand[fastest], ddof=1))


def test_the_lead_is_paired():
    """All shapes share the noise of the prompts: a difference that is the same for all has no width."""
    found = grid(replay(lambda k, w, p: 30 if (k, w) == (5, 4) else 40), *times(), 500, 0)
    lead = found.lead("tokens", (5, 4), (10, 10))
    assert (lead.estimate, lead.low, lead.high) == pytest.approx((0.5, 0.5, 0.5))
    assert steadiness(found, "tokens", (5, 4)) == 1


def test_a_shape_that_was_not_timed_has_no_speedup_and_is_not_the_best():
    calls, host = times()
    calls.loc[calls["rows_evaluated"] > 51, ["seconds", "missing"]] = [np.nan, "memory"]
    found = grid(replay(), calls, host, 100, 0)
    speedups = found.cells.set_index(["k", "w"])["speedup"]
    assert np.isnan(speedups[10, 10]) and speedups.notna().sum() == 8
    assert best(found, "speedup") != (10, 10)
    said = findings("grid", tables(block_times=calls, live=live().iloc[:0], whole=whole().iloc[:0]), ABOUT)
    assert "grid/speedup.10x10" not in said.metrics and "could not be timed" in " ".join(said.sections[1].text)


def test_what_is_said():
    skips = pd.DataFrame([("too long", "c0", 3)], columns=["reason", "category", "count"])
    said = findings("grid", tables(live=live(1, 1.25), skipped=skips), ABOUT)
    text = " ".join(sentence for section in said.sections for sentence in section.text)
    titles = ["Tokens per call", "Speedup", "Whole runs", "Live runs in the corners"]
    assert [section.title for section in said.sections] == titles
    assert "too long: 3 c0" in text and "a fault" in text and "+25.0%" in text and "protocol check" not in text
    metrics = {name.removeprefix("grid/"): value for name, value in said.metrics.items()}
    assert (metrics["best_k"], metrics["best_w"]) != (10, 10)
    assert metrics["speedup.lead"] == pytest.approx(metrics["speedup.best"] - metrics["speedup.10x10"])
    assert metrics["live.worst_error"] == pytest.approx(0.25) and metrics["live.same_rounds"] == 0
    assert set(said.curves["curve/grid/speedup.k5"]) == set(W)
    (categories,) = (table for caption, table in said.sections[1].tables if "category" in caption)
    assert list(categories["category"]) == ["c0", "c1"]
