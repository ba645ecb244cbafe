"""Rounds that are read off a finished text in columns are those that its drafter takes, drafted one by one."""

import random
from types import SimpleNamespace

import pytest
import torch

import specdec.drafters.ngram
from specdec.drafters import drafters
from specdec.records import TextStart
from specdec.replay.shared_walk import Track, first_tokens, lead, walk
from specdec.structures import structures
from specdec.structures.tree import given

ANYWHERE = SimpleNamespace(device=torch.device("cpu"))
NGRAMS = [("auto", 32, 1), ("longest", 3, 1), (2, 1, 1), (1, 8, 1), ("auto", 2, 2)]
SUFFIXES = [(1, 1.0, 0.0, 16), (2, 2.0, -1.0, 2), (1, 0.5, 1.5, 16), (1, 100.0, 0.0, 3)]
CASES = [
    *(("ngram", {"q": q, "matches_max": most, "order_min": least}) for q, most, least in NGRAMS),
    *(
        ("suffix", {"match_min": least, "factor": factor, "offset": offset, "matches_max": most})
        for least, factor, offset, most in SUFFIXES
    ),
]


def shapes(dice, group_values):
    """A chain, rows, a tree of any topology, and the default one, which is 8 deep."""
    nodes = dice.randint(1, 14)
    return [
        structures.build({"name": "chain", "gamma": dice.randint(1, 9)}),
        structures.build({"name": "rows", "k": dice.randint(1, 6), "w": dice.randint(1, 7), "budget": 1000}),
        structures.build(given([dice.randint(-1, node - 1) for node in range(nodes)])),
        structures.build(group_values("structure", "tree")),
    ]


def stream(dice):
    """A text of few tokens, so that matches of every length come again; a third of them fall into a loop."""
    size, length = dice.randint(1, 5), dice.randint(0, 45)
    prompt, text = ([dice.randrange(size) for _ in range(some)] for some in (dice.randint(1, 20), length))
    if dice.random() < 0.3:
        text = (text[: dice.randint(1, 7)] * length)[:length]
    return prompt, text, length + dice.choice([0, 0, 1, 3, 20])


def in_lists(columns):
    names = ("position", "offered", "nodes", "leaves", "accepted", "rejected", "rank")
    strategies = [columns.strategies[number] for number in columns.strategy]
    return {name: getattr(columns, name).tolist() for name in names} | {"strategy": strategies}


@pytest.mark.parametrize(("name", "keys"), CASES, ids=str)
def test_columns_are_the_rounds_that_are_drafted(name, keys, group_values, monkeypatch):
    """Over random texts, for every structure; the blocks of a text are so small that it has several."""
    monkeypatch.setattr(specdec.drafters.ngram, "_BLOCK", 16)
    dice, rounds, several = random.Random(0), 0, 0
    for _ in range(20):
        drafter = drafters.build(group_values("drafter", name, **keys), target=ANYWHERE)
        for _ in range(dice.randint(0, 3)):
            prompt, text, limit = stream(dice)
            drafter.remember(prompt, text)
        prompt, text, limit = stream(dice)
        start = TextStart(prompt, 1000)
        asked = shapes(dice, group_values)
        for structure, found in zip(asked, walk(drafter, asked, start, text, limit), strict=True):
            track = Track(structure)
            lead(drafter, [track], start, text, limit)
            assert in_lists(found) == in_lists(track.columns(len(text))), (structure.label, prompt, text, limit)
            rounds += len(found)
            several += sum(track.rank)
    assert rounds > 500 and (several > 10 or keys["matches_max"] == 1)


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_no_draft_is_made_where_columns_say_it(name, group_values, monkeypatch):
    drafter, dice = drafters.build(group_values("drafter", name), target=ANYWHERE), random.Random(1)
    asked = shapes(dice, group_values)
    prompt, text = [1, 2, 3, 1, 2], [3, 1, 2, 3, 1, 1]
    monkeypatch.setattr(drafter, "propose", None)
    assert all(len(found) for found in walk(drafter, asked, TextStart(prompt, 100), text, 6))


@pytest.mark.parametrize("name", ["ngram", "suffix"])
@pytest.mark.parametrize("shape", ["chain", "rows", "tree"])
def test_first_tokens_are_those_of_drafts_at_every_position(name, shape, group_values, make_structure, monkeypatch):
    drafter, dice = drafters.build(group_values("drafter", name), target=ANYWHERE), random.Random(2)
    structure, counted = make_structure(shape, 3), [0, 0]
    for _ in range(30):
        prompt, text, _ = stream(dice)
        start = TextStart(prompt, 1000)
        found = first_tokens(drafter, structure, start, text)
        with monkeypatch.context() as patch:
            patch.setattr(drafter, "possible_rounds", lambda *some: [None])
            assert found == first_tokens(drafter, structure, start, text)
        counted = [one + two for one, two in zip(counted, found, strict=True)]
    assert 0 < counted[0] < counted[1]
