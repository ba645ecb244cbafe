"""Which drafter pays on which prompts of a real model, from `results/real_model.json`, which a benchmark writes."""

from .committed import BENCHMARK, RESULTS

RESULT = RESULTS / "real_model.json"
COMMAND = BENCHMARK.format("test_real_model")
