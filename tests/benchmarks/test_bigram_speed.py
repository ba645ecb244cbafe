"""What a model bigram costs: its table from the pocket target in under 60 s, from 110M parameters over 32,000 tokens in
under 15 minutes, both on one thread; and reading it again.
"""

import time

import pytest
from fixtures.measuring import load, seconds_of, target_of

from specdec.drafters.base import drafters

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize(
    ("names", "extend", "bound"),
    [(("causal",), "chain", 60), (("causal", "random_110m"), "chain", 15 * 60), (("causal",), "greedy", None)],
    ids=["pocket", "random_110m", "pocket_greedy"],
)
@pytest.mark.timeout(3600)
def test_time_of_a_table(names, extend, bound, group_values, tmp_path, log_figure):
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
