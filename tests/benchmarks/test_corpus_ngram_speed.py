"""Measures a corpus n-gram: fitting 100 MB of text in under 2 minutes and 4 GB, a draft, replays of 10,000 tokens."""

import statistics
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fixtures.measuring import CORPUS, alone, draft_seconds, load

from specdec.drafters.base import drafters
from specdec.models.load import load_tokenizer, model_path
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.structures.base import structures

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


@pytest.fixture(scope="module")
def target():
    tokenizer = load_tokenizer(model_path("pocket"))
    return SimpleNamespace(tokenizer=tokenizer, vocab_size=len(tokenizer), device=torch.device("cpu"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_time_of_a_draft_and_of_a_replay(
    target, group_values, sampling, tmp_path_factory, order, temperature, log_figure
):
    """On the standard library; positions of held-out code."""
    target.sampling = sampling(temperature=temperature)
    values = group_values("drafter", "corpus_ngram", order=order, cache_dir=str(tmp_path_factory.getbasetemp()))
    drafter = drafters.build(values, target=target)
    tokens = target.tokenizer(Path(textwrap.__file__).read_text())["input_ids"] * 4
    structure = structures.build({"name": "chain", "gamma": 4})
    drafter.start(TextStart(tokens[:100], 0, generator=generator_for(0, "p", "draft")))
    times = draft_seconds(drafter, structure, tokens[:2100], 100, 1)
    began = time.perf_counter()
    laws = drafter.laws(tokens[:100], tokens[100:10_100])
    seconds = time.perf_counter() - began
    assert laws.shape == (10_000, target.vocab_size)
    log_figure(
        what="a drafted token, and a replay of 10,000 positions, at a vocabulary of 4,096",
        **{"order": order, "temperature": temperature},
        **{"token_us": round(statistics.median(times) * 1e6 / 4, 1), "replay_s": round(seconds, 2)},
    )
    assert seconds < 30
