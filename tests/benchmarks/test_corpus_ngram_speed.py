"""Measures fitting a corpus n-gram to 100 MB of text: in under 2 minutes and 4 GB."""

import pytest
from fixtures.measuring import CORPUS, alone, load

pytestmark = pytest.mark.benchmark
MEGABYTES = 100

FIT = """
from specdec.ngrams.kneser_ney import NgramTable
stream = tokenize(corpus, tokenizer, len(tokenizer))
read = time.perf_counter()
table = NgramTable.fit(stream, len(tokenizer), int(sys.argv[2]), 0.75)
counted = time.perf_counter()
rows = len(table.levels[-1].tokens) if table.levels else len(tokenizer)
print(read - start, counted - read, time.process_time() - spent, len(stream), rows, before, peak())
"""


@pytest.fixture(scope="module")
def text(copied_library):
    return copied_library(MEGABYTES)


@pytest.mark.parametrize("order", [2, 3])
def test_fitting_100_megabytes(text, order, log_figure):
    read, counted, spent, tokens, rows, before, peak = map(float, alone(CORPUS + FIT, text, order))
    log_figure(
        what=f"fitting {MEGABYTES} MB of text",
        order=order,
        megabytes=round(text.stat().st_size / 1e6, 1),
        **{"tokens": int(tokens), "ngrams": int(rows)},
        **{"tokenize_s": round(read, 1), "count_s": round(counted, 1), "processor_s": round(spent, 1)},
        **{**load(), "peak_mb": round(peak), "of_which_before_mb": round(before)},
    )
    assert spent < 120
    assert peak < 4096
