"""Predicted seconds: exact where the time really is a straight line, and never beyond what was timed."""

import numpy as np
import pandas as pd
import pytest
from fixtures.call_times import call_times

from specdec.analysis.cost.round_seconds import repeats_of, stream_seconds

BLOCKS = [(1, 0), (1, 1), (1, 3), (4, 1), (4, 3)]


def seconds(k, w, context, evaluation):
    tokens, copies = (k * (w + 1), k) if evaluation == "rows" else (1 + k * w, 1)
    return 1.0 + 0.1 * tokens + 0.01 * context * copies


def tables(evaluation, scale=(1.0, 2.0)):
    times = call_times(
        lambda k, w, _, context: seconds(k, w, context, evaluation), BLOCKS, (10, 110), evaluation, len(scale)
    )
    times["seconds"] *= np.take(scale, times["repeat"])
    host = [(r, k, w, float(k * w), 0.5 * bool(w), 0.25 + 0.01 * k * w) for r in range(len(scale)) for k, w in BLOCKS]
    columns = ["repeat", "k", "w", "nodes", "draft_s", "overhead_s"]
    return times, pd.DataFrame(host, columns=columns)


@pytest.mark.parametrize("evaluation", ["packed", "rows"])
def test_full_blocks_and_plain_steps_at_a_context_between(evaluation):
    full = {"k": 4, "w": 3, "tokens": 30.0, "rounds": 10.0, "nodes": 120.0, "paths": 40.0, "context": 60.0}
    blocks, plain = stream_seconds(pd.DataFrame([full]), repeats_of(*tables(evaluation)))
    call, step = seconds(4, 3, 60, evaluation), seconds(1, 0, 60, evaluation)
    rest = 0.5 + 0.25 + 0.12
    assert blocks[:, 0] == pytest.approx([10 * (call + rest), 10 * (2 * call + rest)])
    assert plain[:, 0] == pytest.approx([30 * (step + 0.25), 30 * (2 * step + 0.25)])


def test_merged_drafts_are_smaller_than_their_block():
    (packed,) = repeats_of(*tables("packed", (1.0,)))
    one = np.array([1.0])
    assert packed.call(3 * one, 7 * one, 3 * one, 10 * one) == pytest.approx(1 + 0.1 * 8 + 0.01 * 10)
    (rows,) = repeats_of(*tables("rows", (1.0,)))
    assert rows.call(3 * one, 7 * one, 2.5 * one, 10 * one) == pytest.approx(1 + 0.1 * 2.5 * 4 + 0.01 * 10 * 2.5)


def test_beyond_the_timed_contexts_the_nearest_counts_and_beyond_the_blocks_nothing():
    one, (times, host) = np.array([1.0]), tables("packed", (1.0,))
    (each,) = repeats_of(times, host)
    assert each.call(3 * one, 12 * one, 4 * one, 500 * one) == pytest.approx(seconds(4, 3, 110, "packed"))
    assert each.call(0 * one, 0 * one, 0 * one, 1 * one) == pytest.approx(seconds(1, 0, 10, "packed"))
    assert np.isnan(each.call(3 * one, 13 * one, 5 * one, 10 * one)).all()
    # Blocks without a time are passed over.
    times.loc[(times["k"] == 4) & (times["w"] == 3), ["seconds", "missing"]] = [np.nan, "memory"]
    (each,) = repeats_of(times, host)
    assert np.isnan(each.call(3 * one, 12 * one, 4 * one, 10 * one)).all()
    assert each.call(1 * one, 4 * one, 4 * one, 10 * one) == pytest.approx(seconds(4, 1, 10, "packed"))
