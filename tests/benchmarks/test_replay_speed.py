"""Replaying recorded text: at least 100,000 tokens a second and core for `ngram` chains, prompts included.

Run by hand: `python -m pytest -n 0 -m benchmark tests/benchmarks`. What is asserted is processor time, because a shared
machine may be busy; the figures logged in `analysis/results/replay_speed.json` are what counts.
"""

import random
import time

import pytest
import torch

from specdec.drafters import drafters
from specdec.replay.walk import replay_stream
from specdec.structures import structures
from specdec.text.streams import Stream

pytestmark = pytest.mark.benchmark
VOCABULARY, PROMPT, LENGTH, STREAMS = 4_096, 300, 512, 40


class _Anywhere:
    device = torch.device("cpu")


def zipf(length: int, dice: random.Random) -> list[int]:
    """Words at random with the frequencies of text: hardly a match that goes on."""
    return dice.choices(range(VOCABULARY), [1 / rank for rank in range(1, VOCABULARY + 1)], k=length)


def phrases(length: int, dice: random.Random) -> list[int]:
    """The same 20 phrases again and again in random order, one token in twenty replaced: code, or a chat."""
    book = [dice.choices(range(VOCABULARY), k=dice.randint(3, 30)) for _ in range(20)]
    text: list[int] = []
    while len(text) < length:
        text += [token if dice.random() > 0.05 else dice.randrange(VOCABULARY) for token in dice.choice(book)]
    return text[:length]


def loop(length: int, dice: random.Random) -> list[int]:
    """A text that has fallen into a loop of seven tokens."""
    return [dice.randrange(VOCABULARY) for _ in range(PROMPT)] + [token % 7 for token in range(length - PROMPT)]


def streams(text) -> list[Stream]:
    made = []
    for number in range(STREAMS):
        tokens = text(PROMPT + LENGTH, random.Random(number))
        made.append(Stream(str(number), text.__name__, tuple(tokens[:PROMPT]), tuple(tokens[PROMPT:])))
    return made


CHAIN, ROWS = {"name": "chain", "gamma": 4}, {"name": "rows", "k": 10, "w": 10, "budget": 1_000}


@pytest.mark.parametrize("text", [zipf, phrases, loop])
@pytest.mark.parametrize("shape", [CHAIN, ROWS], ids=lambda shape: shape["name"])
def test_tokens_per_second(text, shape, group_values, log_figure):
    drafter = drafters.build(group_values("drafter", "ngram"), target=_Anywhere())
    structure, recorded = structures.build(shape), streams(text)
    best = 0.0
    for _ in range(3):
        began, used = time.perf_counter(), time.process_time()
        rounds = [replay_stream(drafter, structure, stream, LENGTH) for stream in recorded]
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
        tokens = sum(each.tokens for each in rounds)
        best = max(best, tokens / cpu)
    log_figure(
        what="replayed tokens a second and core",
        drafter="ngram",
        structure=shape,
        text=text.__name__,
        tokens_per_round=round(tokens / sum(map(len, rounds)), 3),
        tokens_per_cpu_second=round(best),
        tokens_per_second_last=round(tokens / seconds),
    )
    assert tokens == STREAMS * LENGTH
    assert best > (100_000 if shape is CHAIN else 10_000)
