"""Loops against a brute-force count, against what a reader calls one, and against text that people wrote."""

import gzip
import inspect
import json
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import specdec
from specdec.text.repetition import loop_marks, loop_share, repeated_share

CONF = Path(__file__).parents[2] / "conf"
LABELLED = Path(__file__).parent / "labelled_outputs.jsonl.gz"
VALUES = yaml.safe_load((CONF / "measurement/default.yaml").read_text(encoding="utf-8"))
PERIOD, SHARE = VALUES["repetition_period"], VALUES["repetition_share"]
MODULES = "argparse calendar configparser csv difflib doctest heapq mailbox"


@pytest.fixture(scope="module")
def tokens_of():
    tokenizer = AutoTokenizer.from_pretrained(Path(specdec.__file__).parent / "pocket" / "target")
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids


@pytest.mark.parametrize("half", [0, 1])
def test_what_a_reader_calls_a_loop_is_found_and_nothing_else(tokens_of, half):
    """Outputs of 64, 128 and 256 tokens, greedy and drawn, of the pocket target and drafter. They were labelled before
    anything was measured, by this rule:

    An output loops when a passage of it, from one token to several lines, stands there three times or more in a row
    (the last may be cut short), word for word or with no more changed than a name, a number or a few words that say
    nothing new, so that a reader who has seen two would skip the rest, and these passages fill at least a third of it.
    A form that is filled with new content each time (entries, conditions, arguments), a text that comes back after
    something else, and a loop that fills less than a third are no loops.

    The parameters were chosen on half 0; half 1 judges them. An exact loop of at most 32 tokens that fills a half, as
    looked for before, is in 29 of all 103.
    """
    lines = [json.loads(line) for line in gzip.open(LABELLED, "rt", encoding="utf-8")][half::2]
    flagged = {True: [], False: []}
    for line in lines:
        flagged[line["loops"]].append(loop_share(tokens_of(line["text"]), PERIOD) >= SHARE)
    assert len(flagged[True]) >= 50 and len(flagged[False]) >= 45
    assert sum(flagged[True]) / len(flagged[True]) >= 0.9
    assert sum(flagged[False]) / len(flagged[False]) <= 0.05


def test_text_that_people_wrote_hardly_ever_loops(tokens_of):
    """Tables and chains of conditions among it repeat their form; what was chosen flags 2% of these."""
    looping = []
    for name in MODULES.split():
        ids = tokens_of(inspect.getsource(import_module(name)))
        looping += [loop_share(ids[start : start + 128], PERIOD) >= SHARE for start in range(0, len(ids) - 128, 512)]
    assert len(looping) > 100 and sum(looping) / len(looping) <= 0.05


def by_definition(tokens, period):
    """Every phrase against every other: looping where two more of it are in reach, one after the other."""
    phrases = [tuple(tokens[start : start + 6]) for start in range(max(len(tokens) - 5, 0))]
    marked = set()
    for phrase in set(phrases):
        places = [start for start, other in enumerate(phrases) if other == phrase]
        for three in zip(places, places[1:], places[2:], strict=False):
            if three[1] - three[0] <= period and three[2] - three[1] <= period:
                marked |= {start + step for start in three for step in range(6)}
    share, passage = 0, []
    for place in [*sorted(marked), 10**9]:
        if passage and place - passage[-1] > 3:
            share += (length := passage[-1] - passage[0] + 1) * (length >= 14)
            passage = []
        passage.append(place)
    return share / max(len(tokens), 1)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 5)), max_size=5), st.integers(1, 30))
def test_loops_equal_the_definition(pieces, period):
    tokens = [token for piece, times in pieces for token in piece * times]
    assert loop_share(tokens, period) == pytest.approx(by_definition(tokens, period))


def runs(tokens, period_max):
    """Every longest run of places that equal the token one period earlier, place by place, with its period."""
    for period in range(1, min(period_max, len(tokens) // 2) + 1):
        same = [place >= period and tokens[place] == tokens[place - period] for place in range(len(tokens))]
        for equal, places in groupby(range(len(tokens)), key=same.__getitem__):
            if equal:
                yield period, list(places)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 8))
def test_equals_the_definition(tokens, period_max):
    longest = max((len(run) for period, run in runs(tokens, period_max) if len(run) >= period), default=0)
    assert repeated_share(tokens, period_max) == pytest.approx(longest / max(len(tokens), 1))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1), max_size=24), st.integers(1, 6), st.integers(1, 8))
def test_marks_equal_the_definition(tokens, period_max, least):
    found = [run[period:] for period, run in runs(tokens, period_max) if len(run) >= max(2 * period, least)]
    marked = {place for places in found for place in places}
    assert loop_marks(tokens, period_max, least).tolist() == [place in marked for place in range(len(tokens))]
