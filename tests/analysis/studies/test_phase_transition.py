"""Sentences, metrics and figures from times with a known law: flat up to a ridge, then in proportion to the tokens."""

import re

import numpy as np
import pandas as pd
import pytest
from fixtures.call_times import call_times

from specdec.analysis.sections import About, findings
from specdec.analysis.studies.phase_transition import Growth, product_lines, roofline_ridge, shape_effect, slowdowns
from specdec.theory.roofline import Product, call_bytes, call_flops, ridge_rows, threshold

ABOUT = About("model, machine", "prompts", simulated=False, replicates=10, seed=0)
RIDGE = 40
PRODUCTS = (
    Product("q_proj", 64, 64, 8, 2),
    Product("o_proj", 64, 64, 8, 2),
    Product("attention scores", 16, None, 8, 2),
)
BANDWIDTH, THROUGHPUT = 1e9, 2e10
KS, WS = (1, 2, 5, 10, 20, 25), (0, 1, 2, 4, 7, 10, 15)


def flat_then_linear(k, w, tokens, context):
    """Seconds: 2 ms up to the ridge, and half as much again at ten times the context."""
    return 2e-3 * (0.5 + 0.5 * context / 50 / 10) * max(1.0, tokens / RIDGE)


def block_times(law=flat_then_linear, contexts=(50, 500), calls=3, evaluation="packed", noise=(0.99, 1.0, 1.01)):
    blocks = [(k, w) for k in KS for w in WS if w or k == 1 or evaluation == "rows"]
    times = call_times(law, blocks, contexts, evaluation, calls=calls)
    return times.assign(seconds=times["seconds"] * np.take(noise, times["call"]))


def intensity_of(times):
    cells = times[["k", "w", "context", "evaluation", "rows_evaluated"]].drop_duplicates()
    n, context, bound = cells["rows_evaluated"], cells["context"], threshold(BANDWIDTH, THROUGHPUT)
    of_products = [
        cells.assign(
            **{"product": each.name, "inputs": each.inputs or 0, "outputs": each.outputs or 0, "threshold": bound},
            **{"bytes": each.bytes(context), "flops": each.flops(n, context)},
            operations_per_byte=each.intensity(n, context),
        )
        for each in PRODUCTS
    ]
    return pd.concat(of_products, ignore_index=True)


def found_in(times):
    return findings("phase_transition", {"block_times": times, "intensity": intensity_of(times)}, ABOUT)


def text_of(found):
    return "\n".join(text for section in found.sections for text in section.text)


@pytest.fixture(scope="module")
def packed():
    return found_in(block_times())


def test_the_known_ridge_is_found_and_said(packed):
    found = packed
    metrics, text = found.metrics, text_of(found)
    sizes = sorted({1 + k * w for k in KS for w in WS})
    assert metrics["transition/context"] == 500
    assert metrics["transition/tokens_within_10pct"] == max(n for n in sizes if n <= 1.1 * RIDGE) == 41
    assert metrics["transition/tokens_within_50pct"] == max(n for n in sizes if n <= 1.5 * RIDGE) == 51
    assert metrics["transition/ridge"] == pytest.approx(RIDGE, rel=0.02)
    assert metrics["transition/slowdown.10x10.50"] == pytest.approx(101 / RIDGE)
    assert metrics["transition/over_step.10x10.50"] == found.curves["curve/slowdown/50"][101] == pytest.approx(101 / 40)
    assert metrics["transition/t11_ms.500"] == pytest.approx(2)
    assert "10% more than t(1, 1) = 2 ms up to 41 tokens, and at most 50% more up to 51 tokens" in text
    assert "(10, 10) takes 2.52 times as long" in text and "takes 1.00 of t(1, 1)" in text
    assert re.search("flat up to about (39|40) tokens", text)
    expected = float(ridge_rows(call_bytes(PRODUCTS, 500), call_flops(PRODUCTS, 1, 500), BANDWIDTH, THROUGHPUT))
    assert metrics["transition/ridge.roofline"] == pytest.approx(expected)
    assert f"n* = {expected:.3g} tokens" in text and "does 20 operations" in text
    # n d / (d + 2 n) operations per byte with d = 64: 20 of them at n = 53.3, read off between the sizes 51 and 71.
    assert 52 < int(re.search(r"q_proj, o_proj from (\d+) tokens", text)[1]) < 55
    (table,) = (table for section in found.sections for caption, table in section.tables if "Operations" in caption)
    assert list(table["product"]) == ["q_proj, o_proj", "attention scores"]
    figures = dict(figure for section in found.sections for figure in section.figures)
    assert set(figures) == {"slowdown", "slowdown_by_tokens", "slowdown_steps"}
    maps = [axes for axes in figures["slowdown"].axes if axes.images]
    assert [axes.get_title() for axes in maps] == ["50 tokens in the cache", "500 tokens in the cache"]
    shown = maps[0].images[0].get_array()
    assert shown.shape == (len(KS), len(WS)) and not np.ma.is_masked(shown)  # width 0 at every k is the plain step
    assert shown[KS.index(10), WS.index(10)] == pytest.approx(101 / RIDGE)
    above, below = ({line.get_label() for line in axes.lines} for axes in figures["slowdown_by_tokens"].axes)
    assert {"50 cached", "500 cached"} <= above and "this machine's 20" in below


def test_a_cost_from_the_first_token_on_has_no_flat_part(undrawn):
    found = found_in(block_times(lambda k, w, tokens, context: 1e-3 * (4 + tokens)))
    assert found.metrics["transition/ridge"] == 1
    assert "there is no flat part" in text_of(found)
    found = found_in(block_times(lambda k, w, tokens, context: 1e-3))
    assert "transition/ridge" not in found.metrics
    assert "does not grow" in text_of(found)
    assert "at most 50% more at all sizes measured, up to 376 tokens" in text_of(found)


def test_tiles_are_named_only_where_calls_do_not_overlap(undrawn):
    def tiled(k, w, tokens, context):
        return 1e-3 * (4 + np.ceil(tokens / 8))

    text = text_of(found_in(block_times(tiled)))
    assert "from 8 to 9 (+20%)" in text
    scattered = block_times(tiled, noise=(0.6, 1.0, 1.4))
    assert Growth(scattered, 500).steps(64) == []


def test_one_disturbed_call_moves_neither_sentence_nor_curve(undrawn):
    times = block_times()
    times.loc[times.query("k == 2 and w == 1 and context == 500 and call == 0").index, "seconds"] = 10.0
    found = found_in(times)
    assert found.metrics["transition/tokens_within_10pct"] == 41
    assert found.metrics["transition/ridge"] == pytest.approx(RIDGE, rel=0.02)
    cells = slowdowns(times).set_index(["context", "k", "w"])
    assert cells["slowdown"][500, 2, 1] > 1000 and cells["spread"][500, 2, 1] > 1  # a cell is the mean of its calls


def test_context_and_evaluation(packed, undrawn):
    text = text_of(packed)
    assert "From 50 to 500 cached tokens t(1, 1) goes from 1.1 to 2 ms" in text and "the same behind" in text
    assert "most rows takes 1.00 times" in text and "share one cache" in text

    def copied(k, w, tokens, context):
        return 1e-3 * (5 + k * context / 100)

    times = block_times(copied, evaluation="rows")
    ratio, sizes = shape_effect(times, 500)
    pairs = {}
    for k in KS:
        for w in WS[1:]:
            pairs.setdefault(k * (w + 1), []).append(k)
    expected = [(5 + 5 * max(ks)) / (5 + 5 * min(ks)) for ks in pairs.values() if max(ks) >= 2 * min(ks)]
    assert ratio == pytest.approx(np.median(expected)) and sizes == len(expected)
    text = text_of(found_in(times))
    assert "Evaluated in rows" in text and "reads a copy of the cache" in text and "steeper behind" in text
    assert "k (w + 1) of them" in text


def test_rows_come_first_and_packed_stands_beside_them(packed):
    """In rows a call takes 2 ms more, and 1 ms more again for every row and 1,000 cached tokens."""

    def in_rows(k, w, tokens, context):
        return flat_then_linear(k, w, tokens, context) + 2e-3 + 1e-6 * k * context

    found = found_in(pd.concat([block_times(in_rows, evaluation="rows"), block_times()], ignore_index=True))
    metrics, text = found.metrics, text_of(found)
    for name in ("tokens_within_10pct", "ridge", "slowdown.10x10.50", "t11_ms.500"):
        assert metrics[f"transition/packed.{name}"] == packed.metrics[f"transition/{name}"]
    for context in (50, 500):
        seconds, unit = in_rows(10, 10, 110, context), in_rows(1, 1, 2, context)
        assert metrics[f"transition/slowdown.10x10.{context}"] == pytest.approx(seconds / unit)
        assert metrics[f"transition/rows_over_packed.10x10.{context}"] == pytest.approx(
            seconds / flat_then_linear(10, 10, 101, context)
        )
    assert f"(10, 10) {metrics['transition/rows_over_packed.10x10.50']:.2f}, " in text
    assert "in 0% of the" in text and "in a batch of k rows" in text and "at w = 0 a call evaluates k roots" not in text
    assert set(found.curves) == {f"curve/slowdown/{way}{c}" for way in ("", "packed.") for c in (50, 500)}
    figures = dict(figure for section in found.sections for figure in section.figures)
    maps = [axes for axes in figures["slowdown"].axes if axes.images]
    titles = [f"{context} cached, {way}" for context in (50, 500) for way in ("in rows", "packed")]
    assert [axes.get_title() for axes in maps] == titles
    # k roots at w = 0 have times of their own in rows, and are one plain step packed.
    rows, one_step = (each.images[0].get_array() for each in maps[:2])
    assert np.allclose(rows[:, 0], np.array([in_rows(k, 0, k, 50) for k in KS]) / in_rows(1, 1, 2, 50))
    assert (one_step[:, 0] == one_step[0, 0]).all()
    assert len({each.images[0].norm.vmax for each in maps}) == 1


def test_what_was_not_timed_is_said(undrawn):
    times = block_times()
    times.loc[(times["k"] == 25) & (times["w"] == 15), ["seconds", "missing"]] = [np.nan, "memory"]
    times.loc[(times["call"] == 2) & (times["missing"] == ""), ["seconds", "missing"]] = [np.nan, "time"]
    late = int((times["missing"] == "time").sum())
    found = found_in(times)
    text = text_of(found)
    assert f"Left out: 2 cells of {len(times) // 3} need more memory than there is" in text
    assert f"{late} of {len(times)} calls were not made because time" in text
    (caption, table) = found.sections[0].tables[0]
    assert "mean of 2 calls" in caption and not ((table["k"] == 25) & (table["w"] == 15)).any()


def test_a_single_cell_and_no_products_still_make_sentences():
    times = block_times(contexts=(50,), calls=1)
    times = times[(times["k"] == 1) & (times["w"] <= 1)]
    empty = intensity_of(times).iloc[:0]
    found = findings("phase_transition", {"block_times": times, "intensity": empty}, ABOUT)
    text = text_of(found)
    assert "One context was measured" in text and "n*" not in text
    assert roofline_ridge(empty, 50) is None and not product_lines(empty, 50)
