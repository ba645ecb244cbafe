"""The price of retrieval: a datastore of 100 MB of tokens built in under 5 minutes, and queried in under 200 us in the
median.
"""

import textwrap
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.measuring import CORPUS, alone, in_microseconds, load, seconds_of
from fixtures.small_parts import read_group_values

from specdec.config import validated
from specdec.drafters.retrieval import Retrieval, RetrievalConfig
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
store = in_memory(stream, len(tokenizer), corpus.name)
write_datastore(Path(sys.argv[2]), store, tokenizer_digest(tokenizer), corpus.digest())
print(time.process_time() - spent, len(stream))
"""


@pytest.fixture(scope="module")
def folder(copied_library, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores") / "store"
    # 150 MB of text, of which 50 million tokens are taken.
    figures = alone(CORPUS + BUILD, copied_library(3 * MEGABYTES // 2), folder, MEGABYTES * 10**6 // 2)
    spent, tokens = map(float, figures)
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
    tokenizer = load_tokenizer(model_path("pocket"))
    tokens = tokenizer(Path(textwrap.__file__).read_text())["input_ids"]
    config = validated(RetrievalConfig, read_group_values("drafter", "retrieval", model=str(folder)))
    drafter = Retrieval(config, SimpleNamespace(device="cpu", tokenizer=tokenizer, vocab_size=len(tokenizer)))
    queries, drafts, found = [], [], 0
    drafter.start(TextStart(tokens[:50], 0))
    for token in tokens[50:1550]:
        drafter.commit([token])
        queries.append(seconds_of(partial(store.continuations, drafter._text[-16:], 2, structure.gamma, 64)))
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
