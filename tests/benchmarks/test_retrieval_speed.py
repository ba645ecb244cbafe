"""The price of retrieval: a datastore of 100 MB of tokens built in under 5 minutes, and queried in under 200 us in the
median; and of suffix matches at long contexts.
"""

import random
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
from fixtures.measuring import CORPUS, Anywhere, alone, draft_seconds, in_microseconds, load, loop, seconds_of, zipf
from fixtures.small_parts import read_group_values

from specdec.config import validated
from specdec.drafters.retrieval import Retrieval, RetrievalConfig
from specdec.drafters.suffix import Suffix, SuffixConfig
from specdec.models.load import load_tokenizer, model_path
from specdec.ngrams.datastore import open_datastore, read_manifest
from specdec.records import TextStart
from specdec.structures.base import structures

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
MEGABYTES = 100  # of tokens, in two bytes each

BUILD = """
from pathlib import Path
from specdec.ngrams.datastore import in_memory, write_datastore
stream = tokenize(corpus, tokenizer, len(tokenizer))[:int(sys.argv[3])]
read, about = time.perf_counter(), (corpus.name, corpus.digest())
write_datastore(Path(sys.argv[2]), in_memory(stream, len(tokenizer)), tokenizer_digest(tokenizer), about)
written = time.perf_counter()
print(read - start, written - read, time.process_time() - spent, len(stream), before, peak())
"""


@pytest.fixture(scope="module")
def folder(copied_library, tmp_path_factory, log_figure):
    folder = tmp_path_factory.mktemp("stores") / "store"
    # 150 MB of text, of which 50 million tokens are taken.
    figures = alone(CORPUS + BUILD, copied_library(3 * MEGABYTES // 2), folder, MEGABYTES * 10**6 // 2)
    read, written, spent, tokens, before, peak = map(float, figures)
    log_figure(
        what="building a datastore",
        megabytes_of_tokens=round((folder / "tokens.npy").stat().st_size / 1e6, 1),
        tokens=int(tokens),
        **{"tokenize_s": round(read, 1), "sort_and_write_s": round(written, 1), "processor_s": round(spent, 1)},
        **{**load(), "peak_mb": round(peak), "of_which_before_mb": round(before)},
    )
    assert tokens * 2 >= 0.95 * MEGABYTES * 1e6
    assert spent < 300
    return folder


SHAPES = [
    {"name": "chain", "gamma": 4},
    {"name": "chain", "gamma": 10},
    {"name": "rows", "k": 4, "w": 8, "budget": 100},
    {"name": "tree", "file": None, "parents": None, "accuracy": [0.5, 0.2, 0.1, 0.05], "nodes": 32, "depth": 8},
    {"name": "dynamic", "nodes": 64, "depth": 10, "branching": 8, "beam": 8},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: structures.build(shape).label)
def test_time_of_a_query(folder, shape, log_figure):
    """On held-out code; the first look at a place reads it from the disk's cache."""
    began = time.perf_counter()
    store = open_datastore(folder, read_manifest(folder))
    opened = time.perf_counter() - began
    structure = structures.build(shape)
    tokens = load_tokenizer(model_path("pocket"))(Path(textwrap.__file__).read_text())["input_ids"]
    config = validated(RetrievalConfig, read_group_values("drafter", "retrieval"))
    drafter = Retrieval(store, config, Anywhere(), {})
    queries, drafts, found = [], [], 0
    drafter.start(TextStart(tokens[:50], 0))
    for token in tokens[50:1550]:
        drafter.commit([token])
        queries.append(seconds_of(partial(store.continuations, drafter._text[-16:], 2, 16, structure.gamma, 64)))
        drafts.append(seconds_of(partial(drafter.draft, structure)))
        found += len(drafter.draft(structure)) > 0
    query, draft = in_microseconds(queries), in_microseconds(drafts)
    log_figure(
        what="query of 50 million tokens, and a whole draft with it",
        structure=structure.label,
        **{"query_us": query["median_us"], "query_p99_us": query["p99_us"]},
        **{"draft_us": draft["median_us"], "draft_p99_us": draft["p99_us"]},
        **{"proposals": round(found / len(drafts), 3), "open_s": round(opened, 2)},
        **load(),
    )
    assert query["median_us"] < 200


@pytest.mark.parametrize("text", [zipf, loop])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=lambda shape: structures.build(shape).label)
@pytest.mark.parametrize("earlier", [0, 65_536])
def test_time_of_a_suffix_draft(text, shape, earlier, log_figure):
    """At 100,000 tokens: take note of three committed tokens and draft; and what a token of the prompt costs."""
    length, rounds, structure = 100_000, 3000, structures.build(shape)
    tokens = text(length + 3 * rounds, random.Random(0))
    config = validated(SuffixConfig, read_group_values("drafter", "suffix", earlier_outputs=earlier))
    drafter = Suffix(config, Anywhere())
    if earlier:
        drafter.remember([0], tokens[: earlier - 1])
    prompt_us = seconds_of(lambda: drafter.start(TextStart(tokens[:length], 0))) * 1e6 / length
    figures = in_microseconds(draft_seconds(drafter, structure, tokens, length, 3))
    log_figure(
        what="suffix draft at 100,000 tokens",
        **{"text": text.__name__, "structure": structure.label, "earlier_outputs": earlier},
        **{**figures, "prompt_us_per_token": round(prompt_us, 2), **load()},
    )
    assert figures["median_us"] < 300
