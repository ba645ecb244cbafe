"""Measures a llama.cpp server on SmolLM2 with and without drafts: explained from outside by the sums of its answers,
from inside by the counters of every round, and beside specdec's own run of the same prompts. It takes ten minutes on a
quiet machine:

    python -m pytest -n 0 -m benchmark tests/benchmarks/test_llama_server.py

`LLAMA_SERVER_PROMPTS=2 LLAMA_SERVER_TOKENS=16 LLAMA_SERVER_THREADS=1` in the environment tries it at the size of a toy,
and writes no result. Beside other work two threads wait for one another without end: one thread, or a quiet machine.
"""

import gzip
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fixtures.gguf_files import NO_SMOLLM2
from fixtures.measured_commands import finished

from specdec import explain
from specdec.analysis.read.foreign.llama_server import Answer, answered
from specdec.analysis.read.importers import read_loads
from specdec.errors import ModelLoadError
from specdec.models.model_files import installed_smollm2
from specdec.serving.llama_cpp_server import PACKAGE

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        find_spec(PACKAGE) is None, reason=f"llama.cpp's server is not installed: pip install {PACKAGE}"
    ),
]
PROMPTS, TOKENS, THREADS = (
    int(os.environ.get(f"LLAMA_SERVER_{name}", of)) for name, of in (("PROMPTS", 20), ("TOKENS", 128), ("THREADS", 2))
)
GAMMA = 4
DRAFTS = {"ngram": "n-grams of the text", "itself": "SmolLM2 itself"}
NAMES = ("tokens", "step", "rest", "gain")


@pytest.fixture(scope="module")
def answers(tmp_path_factory, shared_data):
    """The folder of the answers of three servers, which are asked in turn, and of the prompts."""
    try:
        installed_smollm2()
    except ModelLoadError:
        pytest.skip(NO_SMOLLM2)
    folder = tmp_path_factory.mktemp("server")
    lines = gzip.open(shared_data / "prompts" / "humaneval" / "HumanEval.jsonl.gz", "rt").read().splitlines()
    texts = [json.dumps({"prompt": json.loads(line)["prompt"].rstrip()}) for line in lines[:PROMPTS]]
    (folder / "prompts.jsonl").write_text("\n".join(texts) + "\n", encoding="utf-8")
    options = {"plain": (), "ngram": ("--gamma", f"{GAMMA}")}
    options["itself"] = (*options["ngram"], "--draft", "smollm2")
    module = "specdec.serving.llama_cpp_server"
    command = (sys.executable, "-m", module, "smollm2", "--port", "0", "--threads", f"{THREADS}")
    with ExitStack() as held:
        named = []
        for name, more in options.items():
            server = held.enter_context(subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True))
            held.callback(server.terminate)
            named.append(f"{name}={server.stdout.readline().partition(' on ')[2].partition(';')[0]}")
        asked = ("--prompts", str(folder / "prompts.jsonl"), "--requests", str(PROMPTS), "--tokens", str(TOKENS))
        explain.main([*named, *asked, "--out", str(folder)])
    return folder


def factors(plain: list[Answer], fast: list[Answer]) -> np.ndarray:
    """Return `NAMES` of some answers, from the counters of every round; seconds of prompts are in the rest."""
    tokens, rounds = (sum(getattr(one, name) for one in fast) for name in ("tokens", "rounds"))
    step = [sum(sum(one.by_round[3]) for one in side) / sum(one.rounds for one in side) for side in (plain, fast)]
    speeds = [sum(one.tokens + 1 for one in side) / sum(one.seconds for one in side) for side in (plain, fast)]
    gain, made = speeds[1] / speeds[0], (tokens / rounds, step[0] / step[1])
    return np.array([*made, gain / np.prod(made), gain])


@pytest.mark.parametrize("drafts", DRAFTS)
def test_a_server(answers, drafts, log_figure, tmp_path):
    values = {name: [json.loads(line) for line in (answers / f"{name}.jsonl").open()] for name in ("plain", drafts)}
    inside = {name: [answered(name, value) for value in each] for name, each in values.items()}
    points = {}
    for name, each in values.items():  # from outside: sums alone
        path = tmp_path / f"{name}.jsonl"
        sums = [{key: value for key, value in one.items() if key != "steps"} for one in each]
        path.write_text("".join(json.dumps(one) + "\n" for one in sums), encoding="utf-8")
        points[name] = read_loads(path).points.iloc[0]
    plain, fast = points["plain"], points[drafts]
    gain, step = fast["throughput"] / plain["throughput"], plain["step_ms"] / fast["step_ms"]
    outside = dict(zip(NAMES, (fast["pooled"], step, gain / fast["pooled"] / step, gain), strict=True))
    random = np.random.default_rng(0)
    draws = [random.integers(PROMPTS, size=PROMPTS) for _ in range(2000)]
    drawn = [factors(*([inside[name][place] for place in draw] for name in ("plain", drafts))) for draw in draws]
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    measured = factors(inside["plain"], inside[drafts])
    ways = {"from outside, sums": {name: [outside[name]] * 3 for name in NAMES}}
    ways["from inside, every round"] = {name: [measured[at], low[at], high[at]] for at, name in enumerate(NAMES)}
    if drafts == "ngram":
        ways["specdec, the same prompts"] = own_run(tmp_path / "run", answers / "prompts.jsonl")
    same = [one["tokens"] == other["tokens"] for one, other in zip(values["plain"], values[drafts], strict=True)]
    steps = {"plain_ms": plain["step_ms"], "round_ms": fast["step_ms"]}
    if (PROMPTS, TOKENS) == (20, 128):
        for way, figures in ways.items():
            log_figure(what=DRAFTS[drafts], way=way, **figures, identical=sum(same) / len(same), **steps)
    print(json.dumps({drafts: ways, "identical": sum(same) / len(same), **steps}, indent=1))
    for at, name in enumerate(NAMES):  # the cut last round of a text is all that sums do not tell
        assert low[at] - 0.02 * measured[at] <= outside[name] <= high[at] + 0.02 * measured[at], name


def own_run(folder: Path, prompts: Path) -> dict[str, list[float]]:
    """Return the same factors of a run of specdec with n-grams of as long a match, compiled."""
    sizes = (f"prompts.limit={PROMPTS}", f"measurement.max_new_tokens={TOKENS}", f"structure.gamma={GAMMA}")
    run = finished(
        folder,
        (
            *("+drafter=ngram", "drafter.order_min=2", "drafter.order_max=2", "target=smollm2", *sizes),
            *("prompts=jsonl", f"prompts.path={prompts}", "prompts.chat=never", "measurement.gammas=[]"),
            *(f"measurement.threads={THREADS}", "measurement.budget_seconds=null", "tracking.enabled=false"),
            *("measurement.cost_contexts=[]", "measurement.sampled_temperature=null"),
        ),
    )
    metrics = run.metrics
    made = {}
    for name, of in (("tokens", "tokens_per_round"), ("gain", "speedup.end_to_end"), ("decoding", "speedup")):
        made[name] = [metrics[f"{of}{end}"] for end in ("", ".ci_low", ".ci_high") if f"{of}{end}" in metrics]
    made["step"] = [made["decoding"][0] / made["tokens"][0]]
    made["rest"] = [made["gain"][0] / made["decoding"][0]]
    del made["decoding"]
    return {name: (values * 3)[:3] if len(values) == 1 else values for name, values in made.items()}
