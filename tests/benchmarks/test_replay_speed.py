"""Replaying recorded text: at least 100,000 tokens a second and core for chains of drafters that look tokens up,
prompts included; and a run on a million tokens at 15 gammas, from the command to the report.
"""

import gzip
import math
import os
import random
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fixtures.measuring import VOCABULARY, Anywhere, gpt2_tokens, phrases, zipf

from specdec.drafters import drafters
from specdec.folder.rounds_table import GenerationKey, round_table
from specdec.records import Request
from specdec.replay.walk import replay_stream, walk
from specdec.session.arm import Arm
from specdec.session.recorded_walk import decode_by_walking
from specdec.structures import structures
from specdec.targets import targets
from specdec.text.streams import Stream, write_streams
from specdec.timing.simulated import priced
from specdec.verifiers import verifiers

pytestmark = pytest.mark.benchmark
PROMPT, LENGTH, STREAMS = 300, 512, 40
PLACE = GenerationKey("", "some", 4, 0, "", "")


def loop(length: int, dice: random.Random) -> list[int]:
    """A text that has fallen into a loop of seven tokens."""
    return [dice.randrange(VOCABULARY) for _ in range(PROMPT)] + [token % 7 for token in range(length - PROMPT)]


def streams(text) -> list[Stream]:
    made = []
    for number in range(STREAMS):
        sizes = {"count": 20} if text is phrases else {}
        tokens = text(PROMPT + LENGTH, random.Random(number), **sizes)
        made.append(Stream(str(number), text.__name__, tuple(tokens[:PROMPT]), tuple(tokens[PROMPT:])))
    return made


CHAIN, ROWS = {"name": "chain", "gamma": 4}, {"name": "rows", "k": 10, "w": 10, "budget": 1_000}


@pytest.mark.parametrize("text", [zipf, phrases, loop])
@pytest.mark.parametrize("shape", [CHAIN, ROWS], ids=lambda shape: shape["name"])
def test_tokens_per_second(text, shape, group_values, log_figure):
    drafter = drafters.build(group_values("drafter", "ngram"), target=Anywhere())
    structure, recorded = structures.build(shape), streams(text)
    times = []
    for _ in range(3):
        began, used = time.perf_counter(), time.process_time()
        rounds = [replay_stream(drafter, structure, stream, LENGTH) for stream in recorded]
        times.append((time.process_time() - used, time.perf_counter() - began))
    tokens = sum(each.tokens for each in rounds)
    best = tokens / min(times)[0]
    log_figure(
        what="replayed tokens a second and core",
        **{"drafter": "ngram", "structure": shape, "text": text.__name__},
        tokens_per_round=round(tokens / sum(map(len, rounds)), 3),
        tokens_per_cpu_second=round(best),
        tokens_per_second_last=round(tokens / times[-1][1]),
    )
    assert tokens == STREAMS * LENGTH
    assert best > (100_000 if shape is CHAIN else 10_000)


GAMMAS = range(1, 16)


def recorded_target(tmp_path, group_values, sampling, texts):
    """The target of some streams, with accepted lengths at random."""
    dice = random.Random(0)
    lengths = [tuple(dice.choices(range(1, 9), k=len(each.generated))) for each in texts]
    noted = [replace(each, accepted_lengths={"acc_some": own}) for each, own in zip(texts, lengths, strict=True)]
    write_streams(tmp_path / "streams.jsonl", noted)
    values = group_values("target", "replay", path=str(tmp_path / "streams.jsonl"))
    return targets.build(values, sampling=sampling(temperature=0.0))


def gutenberg(folder: Path, length: int, streams: int) -> list[Stream]:
    """Public-domain novels in GPT-2's tokens, cut into streams."""
    text = gzip.decompress((folder / "text" / "gutenberg" / "bronte.txt.gz").read_bytes()).decode("utf-8", "replace")
    tokens = gpt2_tokens(folder, text)
    cuts = [tokens[at : at + length] for at in range(0, len(tokens) - length, length)][:streams]
    return [Stream(str(n), "novel", tuple(cut[:PROMPT]), tuple(cut[PROMPT:])) for n, cut in enumerate(cuts)]


@pytest.mark.parametrize("shape", ["chain", "rows", "tree"])
@pytest.mark.parametrize("name", ["ngram", "recorded", "suffix"])
def test_all_gammas_in_one_walk(name, shape, shared_data, tmp_path, group_values, sampling, make_structure, log_figure):
    """Tokens times gammas a second, on novels: one walk for gamma 1 to 15, beside a walk for each."""
    target = recorded_target(tmp_path, group_values, sampling, gutenberg(shared_data, 1_324, 8))
    drafter = drafters.build(group_values("drafter", name), target=target)
    if shape not in drafter.capabilities.fills:
        pytest.skip(f"{name} fills no {shape}")
    depths = GAMMAS if shape == "chain" else range(1, 9)
    sizes = [make_structure(shape, gamma) for gamma in depths]
    used = {}
    for kind, groups in (("together", [sizes]), ("apart", [[size] for size in sizes])):
        began = time.process_time()
        for group in groups:
            for stream in target.streams:
                request = Request(stream.prompt, len(stream.generated))
                found = walk(drafter, group, request, stream.generated)
                assert len(found) == len(group)
        used[kind] = time.process_time() - began
    tokens = sum(len(stream.generated) for stream in target.streams) * len(sizes)
    log_figure(
        what="tokens times gammas a second and core",
        **{"drafter": name, "structure": shape, "gammas": len(sizes), "text": "novels"},
        together_per_cpu_second=round(tokens / used["together"]),
        apart_per_cpu_second=round(tokens / used["apart"]),
    )
    assert tokens / max(used.values()) > 100_000


@pytest.mark.parametrize("name", ["ngram", "recorded", "suffix"])
def test_the_loop_and_the_walk_side_by_side(
    name, shared_data, tmp_path, group_values, sampling, make_structure, log_figure
):
    """The same chains of gamma 4 by `generate`, with one-hot rows over GPT-2's vocabulary, and by a walk."""
    target = recorded_target(tmp_path, group_values, sampling, gutenberg(shared_data, 812, 3))
    drafter = drafters.build(group_values("drafter", name), target=target)
    parts = {"structure": make_structure("chain", 4), "verifier": verifiers.build({"name": "greedy"})}
    arm = Arm(method=name, drafter=priced(drafter, target), target=target, **parts)
    requests = [Request(each.prompt, len(each.generated)) for each in target.streams]
    rates = {}
    for kind, decode in (
        ("loop", lambda request: arm.decode(request, target.clock())),
        ("walk", lambda request: decode_by_walking([arm], request, target.clock())[0]),
    ):
        began = time.process_time()
        rounds = [round_table(PLACE, decode(request), target.clock()) for request in requests]
        tokens = sum(request.max_new_tokens for request in requests)
        rates[kind] = round(tokens / (time.process_time() - began))
        assert sum(map(len, rounds)) > 0
    log_figure(what="tokens a second and core, rounds table included", drafter=name, structure="chain", **rates)
    assert rates["walk"] > 10 * rates["loop"]


PARTS = ("environment.json", "session.json", "generations.jsonl", "rounds.parquet", "summary.json", "trace.html")


def test_a_run_on_a_million_tokens(tmp_path, log_figure):
    """1,000 texts of 1,000 tokens with recorded lengths at gamma 1 to 15: prediction and report in 4 minutes and 1 GB.

    Processor time, and the largest resident set, of the whole command; the parts are counted by the clock.
    """
    dice = random.Random(0)
    chances = [dice.betavariate(6, 2) for _ in range(1_000)]
    texts = []
    for number, alpha in enumerate(chances):
        lengths = [min(16, 1 + int(math.log(1 - dice.random()) / math.log(alpha))) for _ in range(1_000)]
        tokens = tuple(dice.choices(range(50_000), k=1_100))
        texts.append(Stream(str(number), f"c{number % 4}", tokens[:100], tokens[100:], {"acc_some": tuple(lengths)}))
    write_streams(tmp_path / "trace.jsonl", texts)
    out = tmp_path / "out"
    gammas = ",".join(map(str, GAMMAS))
    command = [sys.executable, "-m", "specdec.run", "target=replay", f"target.path={tmp_path / 'trace.jsonl'}"]
    command += ["+drafter=recorded", f"measurement.gammas=[{gammas}]", "tracking.enabled=false", f"hydra.run.dir={out}"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    marks = [(out / name).stat().st_mtime for name in PARTS]
    begins = [began, *marks[:-1]]
    log_figure(
        what="a run on a million tokens at 15 gammas",
        cpu_seconds=round(seconds, 1),
        peak_mb=round(after.ru_maxrss / 1024),
        rounds=pq.read_metadata(out / "rounds.parquet").num_rows,
        seconds_by_part={name: round(mark - then, 1) for name, then, mark in zip(PARTS, begins, marks, strict=True)},
    )
    assert seconds < 240
