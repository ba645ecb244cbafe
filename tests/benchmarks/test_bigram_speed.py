"""What a model bigram costs: its table from the pocket target in under 60 s, from 110M parameters over 32,000 tokens in
under 15 minutes, both on one thread; reading it again; a proposal at (10, 10) in under 50 us.
"""

import statistics
import time

import pytest
import torch
from fixtures.measuring import load, seconds_of, target_of

from specdec.drafters.base import drafters
from specdec.records import TextStart
from specdec.structures.base import structures

pytestmark = pytest.mark.benchmark


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("names", "extend", "bound"),
    [(("causal",), "chain", 60), (("causal", "random_110m"), "chain", 15 * 60), (("causal",), "greedy", None)],
    ids=["pocket", "random_110m", "pocket_greedy"],
)
@pytest.mark.timeout(3600)
def test_time_of_a_table(names, extend, bound, group_values, tmp_path, one_thread, log_figure):
    target = target_of(*names)
    drafter = group_values("drafter", "model_bigram", extend=extend, cache_dir=str(tmp_path))
    times = []
    for _ in ("made", "read"):
        spent = time.process_time()
        clocked = seconds_of(lambda: drafters.build(drafter, target=target))
        times.append((clocked, time.process_time() - spent))
    (made, processor), (read, _) = times
    described = target.describe()
    sizes = ("k", "batch_size", *(("extend_k", "extend_w") if extend == "greedy" else ()))
    log_figure(
        what="a table of p(. | x), and reading it again",
        model=names[-1] if len(names) > 1 else "pocket",
        **{key: described[key] for key in ("parameters", "dtype")},
        vocabulary=target.vocab_size,
        extend=extend,
        **{key: drafter[key] for key in sizes},
        **{"threads": 1, "made_s": round(made, 2), "processor_s": round(processor, 2), "read_s": round(read, 3)},
        file_mb=round(sum(file.stat().st_size for file in tmp_path.iterdir()) / 1e6, 2),
        **load(),
    )
    assert bound is None or processor < bound
    assert read < made


SHAPES = [
    {"name": "chain", "gamma": 4},
    {"name": "rows", "k": 10, "w": 10, "budget": 1024},
    {"name": "rows", "k": 25, "w": 14, "budget": 1024},
]


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "rows_10_10", "rows_25_14"])
def test_time_of_a_proposal(shape, group_values, tmp_path, log_figure):
    """After every token of the pocket target's vocabulary."""
    target = target_of("causal")
    drafter = drafters.build(group_values("drafter", "model_bigram", cache_dir=str(tmp_path)), target=target)
    structure, times = structures.build(shape), []
    for token in range(target.vocab_size):
        drafter.start(TextStart([token], 0))
        times.append(seconds_of(lambda: drafter.propose(structure)))
    median = round(statistics.median(times) * 1e6, 1)
    log_figure(what="a proposal", **{key: shape[key] for key in shape if key != "budget"}, us=median)
    assert median < 100  # 50 at (10, 10) on an idle machine
