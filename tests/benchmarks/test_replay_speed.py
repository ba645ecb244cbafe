"""Replaying recorded text: the walk of drafters that look tokens up, ten times as fast as the decoding loop."""

import gzip
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.measuring import gpt2_tokens

from specdec.drafters import drafters
from specdec.folder.rounds_table import GenerationKey, round_table
from specdec.records import Request
from specdec.session.arm import Arm
from specdec.session.recorded_walk import decode_by_walking
from specdec.targets import targets
from specdec.text.streams import Stream, write_streams
from specdec.timing.simulated import priced
from specdec.verifiers import verifiers

pytestmark = pytest.mark.benchmark
PROMPT = 300
KEY = GenerationKey("", "some", 4, 0, "", "")


def gutenberg(folder: Path, length: int, streams: int) -> list[Stream]:
    """Public-domain novels in GPT-2's tokens, cut into streams."""
    text = gzip.decompress((folder / "text" / "gutenberg" / "bronte.txt.gz").read_bytes()).decode("utf-8", "replace")
    tokens = gpt2_tokens(folder, text)
    cuts = [tokens[at : at + length] for at in range(0, len(tokens) - length, length)][:streams]
    return [Stream(str(n), "novel", tuple(cut[:PROMPT]), tuple(cut[PROMPT:])) for n, cut in enumerate(cuts)]


@pytest.mark.parametrize("name", ["ngram", "recorded", "suffix"])
def test_the_loop_and_the_walk_side_by_side(
    name, shared_data, tmp_path, group_values, sampling, make_structure, log_figure
):
    """The same chains of gamma 4 by `generate`, with one-hot rows over GPT-2's vocabulary, and by a walk."""
    texts, dice = gutenberg(shared_data, 812, 3), random.Random(0)
    lengths = [tuple(dice.choices(range(1, 9), k=len(each.generated))) for each in texts]
    noted = [replace(each, accepted_lengths={"acc_some": own}) for each, own in zip(texts, lengths, strict=True)]
    write_streams(tmp_path / "streams.jsonl", noted)
    values = group_values("target", "replay", path=str(tmp_path / "streams.jsonl"))
    target = targets.build(values, sampling=sampling(temperature=0.0))
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
        rounds = [round_table(KEY, decode(request), target.clock()) for request in requests]
        tokens = sum(request.max_new_tokens for request in requests)
        rates[kind] = round(tokens / (time.process_time() - began))
        assert sum(map(len, rounds)) > 0
    log_figure(what="tokens a second and core, rounds table included", drafter=name, structure="chain", **rates)
    assert rates["walk"] > 10 * rates["loop"]
