"""Measures drafters on a real model, SmolLM2-135M-Instruct, by set of prompts and temperature: for notebook 12 and the
table of claims. What is decoded lies below `outputs/real_model/` of the working folder, by which a benchmark that was
killed goes on where it stood: within a run, and from run to run. Nothing but these lines is needed:

    python -m pytest -n 0 -m benchmark tests/benchmarks/test_real_model.py -k along     (may share the machine)
    python -m pytest -n 0 -m benchmark tests/benchmarks/test_real_model.py -k decoding  (needs a quiet machine)

`along` writes longer answers to more prompts, in batches, and walks along them: tokens per round at gamma 1 to 15,
alpha and the errors of predictions of every drafter whose rounds follow from a text. `decoding` times five drafters at
three gammas in turn with plain decoding, compiled: speedup, account, tests of the i.i.d. model, and how many outputs
are plain decoding's own; and asks `specdec.advise`, which sees the plain texts alone. It holds the plain texts of
greedy sessions against `generate` of transformers, too. `heads` times grounded heads, independent ones and the
feature drafter in turn, `study` what else claims rest on.

Every session writes down its minutes. On two cores `along` takes 16 to 25, and two sessions fit beside one another,
each on one thread (MT-Bench's take 22 and 30, since conversations are written one by one); `decoding` takes 12 to 24. A
table is made once, in 3 to 5 minutes, and the layers of `layer_skip` are searched once for each temperature, in 2. All
sixteen sessions together took three hours and a half so. Greedy GSM8K's timed a sixth drafter then, the feature
drafter. Grids took 11 and 17 minutes, phase transitions 9.
"""

import gzip
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fixtures import recorded_lengths
from fixtures.claim_figures import grounded_figures, run_figures, study_figures
from fixtures.measured_commands import finished, provenance
from fixtures.measuring import kept_figures, target_of, write_lines
from fixtures.small_parts import composed

from specdec.analysis.acceptance.prediction import Undetermined, predict
from specdec.analysis.read.runs import Run
from specdec.analysis.research import real_model
from specdec.analysis.rounds import Arms, prompt_sums
from specdec.drafters.base.lookup import Lookup
from specdec.plan.plan import plan
from specdec.records import Request
from specdec.replay.expected_rounds import Starts, TextReplay
from specdec.replay.walk import RoundColumns, TextReading, walk
from specdec.sampling import generator_for
from specdec.session.parts import open_parts
from specdec.text.streams import read_streams

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(0)]

FOLDER = Path("outputs/real_model")
SETS = {  # name: values of prompts=, and its file in the shared data
    "mt_bench": ("mt_bench", "mt_bench/question.jsonl"),
    "gsm8k": ("gsm8k", "gsm8k/test.jsonl"),
    "humaneval": ("humaneval", "humaneval/HumanEval.jsonl.gz"),
    "spec_bench": ("spec_bench", "spec_bench/question.jsonl"),
}
TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")  # of Spec-Bench; the sixth is MT-Bench
TEMPERATURES = (0, 1)
GAMMAS = tuple(range(1, 16))
DRAWS = 4  # of what is accepted along a sampled text, where it is no lookup: one alone is much of an error of 2%
LEARNING_FREE = ("ngram", "suffix", "mixed", "model_bigram", "bigram", "unigram", "retrieval")
WALKED = (*LEARNING_FREE, "early_exit", "layer_skip", "medusa", "grounded", "eagle")
WALKED_SIZES = ("prompts.limit=40", "measurement.max_new_tokens=192")
TIMED = ("ngram", "suffix", "mixed", "lookahead", "layer_skip")
TIMED_SIZES = ("prompts.limit=20", "measurement.max_new_tokens=64")
VALUES: dict[str, dict[str, object]] = {  # of drafters, where they are not those of their YAMLs
    "model_bigram": {"k": 64, "begin": "true"},  # alone, a token says nothing to this model
    "mixed": {"bigram": "{begin: true}"},
    "layer_skip": {"evaluations": 64},  # of 1,024 tokens each: minutes instead of half an hour
    "lookahead": {"window": 4, "ngram": 3, "candidates": 3},  # two cores verify it in little more time than one token
}
CHAIN = {"name": "chain", "gamma": 4}
SHAPES: dict[str, dict[str, object]] = {  # likewise
    **dict.fromkeys(("ngram", "suffix", "mixed", "layer_skip"), CHAIN),
    "lookahead": {"name": "lookahead", "nodes": 13, "depth": 4, "branching": 5, "beam": 5},
}
FORETOLD = ("ngram", "suffix", "mixed", "layer_skip")  # by `specdec.advise`: those whose rounds follow from a text
HEADS_ON = ("mt_bench", "humaneval")  # the heads that ship for it, in turn with one another
SHAPES_OF_GRID = ("study.k=[1,5,10]", "study.w=[1,4,10]", "study.repeats=2")
BEGIN = "drafter.bigram.begin=true"  # see VALUES
OF_PAPER = {  # N-Grammys'
    "ngrammys_topk": ("+experiment=ngrammys_topk", "study.k=[1,5,10,25]", "study.drafters.model_bigram.begin=true"),
    "ngrammys_ablation": ("+experiment=ngrammys_ablation", BEGIN),
    "ngrammys_grid": ("+experiment=ngrammys_grid", BEGIN, "target.evaluation=rows", *SHAPES_OF_GRID),
    "phase_transition": (
        *("+experiment=phase_transition", "study.contexts=[50,500,1000]"),
        *("study.k=[1,2,5,10]", "study.w=[0,1,2,4,10]"),
    ),
}
STUDIES = {(prompts, name): OF_PAPER[name] for name in OF_PAPER for prompts in ("humaneval", "mt_bench", "gsm8k")} | {
    ("humaneval", "lenience"): ("+experiment=lenience", "drafter=layer_skip", "drafter.evaluations=64"),
    **{
        ("mt_bench", f"tree_search_{name}"): ("+experiment=tree_search", f"drafter={name}", "study.budgets=[2,4,8,16]")
        for name in ("grounded", "eagle")
    },
    ("humaneval", "bigram"): ("+drafter=bigram", "structure.gamma=3", "measurement.gammas=[]"),
}
STUDY_SIZES = ("prompts.limit=12", "measurement.max_new_tokens=48")
SHARED = ("target=smollm2", "measurement.cost_contexts=[]", "measurement.sampled_temperature=null")
SHARED += ("tracking.enabled=false",)
KEPT = ("account/", "iid/", "lossless/", "cost/", "category/", "null/", "repetition/")
KEPT += ("speedup", "tokens_per_round", "alpha")
MODELS = ("capped_geometric.text", "markov", "stretches", "stretches.ends")

BEGUN: list[float] = []  # when this session began, or went on

each_session = pytest.mark.parametrize(
    ("prompts", "temperature"), [(name, value) for value in TEMPERATURES for name in SETS]
)


@pytest.fixture
def session(prompts, request, shared_data):
    """The overrides of one set of prompts, in an order that a seed draws, and of its temperature."""
    BEGUN[:] = [time.monotonic()]
    temperature = request.node.callspec.params.get("temperature", 0)
    values, name = SETS[prompts]
    source = shared_data / "prompts" / name
    if not source.is_file():
        pytest.skip(f"{source} does not exist")
    with (gzip.open if source.suffix == ".gz" else open)(source, "rt", encoding="utf-8") as stream:
        lines = [line for line in stream if line.strip()]
    if prompts == "spec_bench":
        lines = [line for line in lines if json.loads(line)["category"] in TASKS]
    random.Random(0).shuffle(lines)  # runs take the first ones, of each category in turn
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = (FOLDER / f"{prompts}.jsonl").resolve()
    file.write_text("".join(lines), encoding="utf-8")
    sampling = () if not temperature else ("sampling=temperature", f"sampling.temperature={temperature}")
    return (*SHARED, f"prompts={values}", f"prompts.path={file}", *sampling)


@each_session
def test_along_answers(prompts, temperature, session):
    """All drafters walk along an answer in turn; those that the file has already are left out."""
    kept = {(*_key(line), line["name"]) for line in kept_figures(real_model.RESULT)}
    names = [name for name in WALKED if ("along", prompts, temperature, name) not in kept]
    if not names:
        return
    writing = ["+drafter=none", *session, *WALKED_SIZES, "measurement.null=false", "measurement.gammas=[]"]
    writing += ["measurement.warmup_tokens=0", "measurement.calibration_calls=1"]  # nothing is timed
    writing += ["prompts.limit=20"] if prompts == "mt_bench" else ["measurement.batch_size=16"]  # two turns, one by one
    run = finished(FOLDER / f"{prompts}_{temperature}_texts", writing)
    lines = along(names, session, read_streams(run.fetch("generations.jsonl")).streams)
    record("along", prompts, temperature, run, [{"name": name, **line} for name, line in lines.items()])


def along(names: list[str], session: tuple[str, ...], streams: Any) -> dict[str, dict[str, Any]]:
    """Return what each drafter's rounds along all texts say, by its name."""
    command = [*drafting(names, dict.fromkeys(names, {"name": "chain", "gamma": 1})), *session]
    opened = open_parts(plan(composed(*command, "prompts.limit=1", "measurement.gammas=[]", "target.compile=false")))
    target, reading = opened.target, TextReading(opened.target)
    draws = DRAWS if not target.sampling.greedy else 1
    rounds, lengths, sums = (defaultdict(list) for _ in range(3))
    for number, stream in enumerate(streams):
        text, prompt = stream.generated, stream.id
        request = Request(stream.prompt, stream.limit(len(text) + max(GAMMAS)), reference=text)
        for each in opened.drafters:
            drafter, single, can = each.drafter, each.primary.structure, each.drafter.capabilities
            chains = [single.resized(gamma) for gamma in GAMMAS if gamma <= (can.deepest or gamma)]
            request = replace(request, draft_generator=generator_for(0, stream.id, "draft"))
            replay = TextReplay(drafter, target, chains[-1], text, request, reading)
            alike = replay.agreement()
            sums[each.name].append((prompt, float(alike.beta.sum()), float(alike.proposed.sum())))
            if isinstance(drafter, Lookup):  # whose tokens may differ by gamma
                walked = zip(chains, walk(drafter, chains, request, text), strict=True)
                rounds[each.name] += [by_round(columns, chain.gamma, prompt) for chain, columns in walked]
            else:
                position = can.replay == "position"
                starts = Starts.of_positions(alike, chains[-1].gamma) if position else replay.starts()
                coins = np.random.default_rng(number).random((draws, *starts.m.shape))  # given the text, one a token
                lengths[each.name].append((np.cumprod(coins < starts.m, axis=2).sum(axis=2), starts.reach))
            drafter.remember(stream.prompt, text)
    deepest = {each.name: each.drafter.capabilities.deepest or max(GAMMAS) for each in opened.drafters}
    for name, texts in lengths.items():
        gammas, ids = [gamma for gamma in GAMMAS if gamma <= deepest[name]], [stream.id for stream in streams]
        for draw in range(draws):
            drawn = [(accepted[draw], offers) for accepted, offers in texts]
            rounds[name].append(recorded_lengths.rounds_table(drawn, gammas, ids).assign(repeat=draw))
    return {name: judged(pd.concat(rounds[name], ignore_index=True), sums[name]) for name in names}


def drafting(names: Sequence[str], shapes: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the overrides for drafters in one session, the first of which has `+drafter=`."""
    first, *others = names
    shape = dict(shapes[first])
    command = [f"+drafter={first}", f"structure={shape.pop('name')}", f"measurement.drafters=[{','.join(others)}]"]
    for group, values in (("drafter", VALUES.get(first, {})), ("structure", shape)):
        command += [f"{group}.{key}={value}" for key, value in values.items()]
    for name in others:
        for group, values in (("drafter", VALUES.get(name, {})), ("structure", shapes[name])):
            written = ", ".join(f"{key}: {value}" for key, value in values.items())
            command += [f"+measurement.drafter_settings.{name}.{group}={{{written}}}"] if written else []
    return command


def by_round(columns: RoundColumns, gamma: int, prompt: str) -> pd.DataFrame:
    """Return the rounds of one walk as lines."""
    counts = {name: getattr(columns, name) for name in ("offered", "accepted", "committed", "rejected")}
    return pd.DataFrame({"gamma": gamma, "prompt": prompt, "repeat": 0, **counts})


def judged(rounds: pd.DataFrame, chances: list[tuple[str, float, float]]) -> dict[str, Any]:
    """Return alpha, tokens per round by gamma, and the error of each model's prediction there, with their bounds."""
    sums = pd.DataFrame(chances, columns=["prompt", "numerator", "denominator"])
    by_text = rounds.groupby(["gamma", "prompt", "repeat"])
    rounds = rounds.assign(cell="real", method="walked", round=by_text.cumcount())
    rounds["tokens_left"] = by_text["committed"].transform(lambda tokens: tokens[::-1].cumsum()[::-1])
    totals = rounds.groupby("gamma").agg(tokens=("committed", "sum"), rounds=("committed", "size"))
    found: dict[str, Any] = {
        "tokens": int(totals["tokens"].iloc[0]) // rounds["repeat"].nunique(),
        "prompts": list(sums["prompt"]),
        "alpha": {end: [_rounded(value) for value in sums[end]] for end in ("numerator", "denominator")},
        "gammas": [int(gamma) for gamma in totals.index],
        "tokens_per_round": [round(float(value), 5) for value in totals["tokens"] / totals["rounds"]],
        "errors": {},
    }
    try:
        prediction = predict(Arms.of(rounds), sums, replicates=200, refits=100)
    except Undetermined as reason:
        return found | {"undetermined": str(reason)}
    table = prediction.table.sort_values("gamma")
    for model in [model for model in MODELS if model in set(table["model"])]:
        errors = table.loc[table["model"] == model, ["error", "error_low", "error_high"]].to_numpy()
        found["errors"][model] = [[_rounded(value) for value in line] for line in errors]
    bounds = table[table["model"] == prediction.chosen]
    found["intervals"] = [[_rounded(value) for value in line] for line in bounds[["ci_low", "ci_high"]].to_numpy()]
    return found | {"chosen": prediction.chosen, "luck": _rounded(prediction.luck)}


@each_session
def test_decoding(prompts, temperature, session):
    """All drafters of a session take turns with plain decoding, prompt by prompt."""
    shared = [*session, *TIMED_SIZES, "target.compile=true", "measurement.gammas=[2,8]", "measurement.threads=2"]
    shared += ["prompts.limit=10"] if prompts == "mt_bench" else []  # conversations of two turns: 20 prompts, too
    folder = FOLDER / f"{prompts}_{temperature}_timed"
    run = finished(folder, [*drafting(TIMED, SHAPES), *shared])
    lines = {each.method or TIMED[0]: decoded(each) for each in run.drafters}
    if not temperature:
        lines[TIMED[0]]["as_generate"] = as_generate(read_streams(run.fetch("generations.jsonl")).streams)
    for name in [name for name in lines if name in FORETOLD]:
        lines[name]["advised"] = advised(f"{folder}_{name}", run, [*drafting([name], SHAPES), *shared])
    record("decoding", prompts, temperature, run, [{"name": name, **line} for name, line in lines.items()])
    assert not run.refuted and len({*lines[TIMED[0]].get("as_generate", [0])}) == 1


@pytest.mark.parametrize("prompts", HEADS_ON)
def test_heads(prompts, session):
    """Grounded heads, independent ones, the feature drafter and plain decoding, all in turn, on one tree."""
    command = ["+experiment=grounded_bars", *session, *TIMED_SIZES, "target.compile=true", "measurement.threads=2"]
    command += ["measurement.drafters=[medusa,grounded,eagle]"]
    command += ["+measurement.drafter_settings.eagle.structure.name=heads"]
    run = finished(FOLDER / f"{prompts}_heads", command)
    count = len(prompt_sums(run.arms().plain()))
    record("heads", prompts, 0, run, [{"name": "grounded", "count": count, "figures": grounded_figures(run)}])
    assert not run.refuted


def as_generate(streams: Any) -> tuple[int, int]:
    """Return how many texts are token by token what `generate` of transformers writes, and of how many."""
    target, equal = target_of("causal", "smollm2", compile=False), 0
    for stream in streams:
        ids = torch.tensor([stream.prompt])
        options = {"do_sample": False, "max_new_tokens": len(stream.generated)}
        text = target.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        equal += text[0, len(stream.prompt) :].tolist() == list(stream.generated)
    return equal, len(streams)


@pytest.mark.parametrize(("prompts", "name"), STUDIES)
def test_study(prompts, name, session):
    """The studies of N-Grammys on the paper's sets of prompts, and what else claims are tested by."""
    command = [*STUDIES[prompts, name], *session, *STUDY_SIZES, "target.compile=true", "measurement.threads=1"]
    run = finished(FOLDER / f"{prompts}_{name}", command)
    figures = run_figures(run) if name == "bigram" else study_figures(name, run)
    record("study", prompts, 0, run, [{"name": name, **figures}])


def decoded(run: Run) -> dict[str, Any]:
    """Return what was logged of one drafter, and its curves by gamma."""
    figures = run_figures(run)
    logged = {name: _rounded(value) for name, value in run.metrics.items() if name.startswith(KEPT)}
    curves = {
        name: {str(gamma): _rounded(value) for gamma, value in points.items()}
        for name, points in run.curves.items()
        if name.startswith("curve/")
    }
    metrics = {**logged, **figures.pop("metrics")}
    gamma = run.params.get("structure.gamma") or run.params["structure.depth"]
    return {"gamma": int(gamma), **figures, "metrics": metrics, "curves": curves}


def advised(folder: str, run: Run, overrides: list[str]) -> dict[str, list[float | None]]:
    """Return the speedup that `specdec.advise` foretells by gamma, with its bounds, from the run's plain texts."""
    file = Path(folder, "advice.json").resolve()
    if not file.is_file():
        text = f"advice.text={run.fetch('generations.jsonl')}"
        command = [sys.executable, "-m", "specdec.advise", *overrides, text, f"hydra.run.dir={file.parent}"]
        subprocess.run(command, check=True)
    predictions = json.loads(file.read_text(encoding="utf-8"))["predictions"]
    return {
        str(line["gamma"]): [_rounded(line["speedup"][end]) for end in ("estimate", "low", "high")]
        for line in predictions
    }


def record(part: str, prompts: str, temperature: int, run: Run, lines: list[Mapping[str, Any]]) -> None:
    """Write lines of one session into the file, in the place of earlier ones of the same drafters."""
    about, environment = provenance(run), run.environment()
    own = {key: about[key] for key in ("command", "date", "commit", "load_average")}
    own |= {"processor": environment["cpu"]["model"], "threads": environment["cpu"]["torch_threads"]}
    own["minutes"] = round((time.monotonic() - BEGUN[0]) / 60, 1)
    rows = [{"part": part, "set": prompts, "temperature": temperature, **line, **own} for line in lines]
    taken = {(*_key(row), row["name"]) for row in rows}
    rows += [row for row in kept_figures(real_model.RESULT) if (*_key(row), row["name"]) not in taken]
    rows.sort(key=lambda row: (row["part"], row["temperature"], list(SETS).index(row["set"])))
    processors = " and ".join(sorted({row["processor"] for row in rows if "processor" in row}))
    head = {"date": about["date"], "machine": f"{processors}, two cores each, session by session"}
    head |= {key: environment[key] for key in ("cpu", "versions")}
    write_lines(real_model.RESULT, head, figures=rows)


def _key(line: Mapping[str, Any]) -> tuple[str, str, int]:
    return line["part"], line["set"], line["temperature"]


def _rounded(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), 5)
