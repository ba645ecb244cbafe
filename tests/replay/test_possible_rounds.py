"""Rounds that are read off a finished text in columns are those that its drafter takes, drafted one by one."""

import random
from types import SimpleNamespace

import pytest
import torch

import specdec.drafters.ngram
from specdec.drafters import drafters
from specdec.records import Request
from specdec.replay.expected_rounds import TextReplay
from specdec.replay.walk import walk
from specdec.structures import structures
from specdec.structures.tree import given

ANYWHERE = SimpleNamespace(device=torch.device("cpu"), sampling=SimpleNamespace(greedy=True))
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


def vars_in_lists(columns):
    return {name: values.tolist() for name, values in vars(columns).items()}


def unknown(prompt, text, limit, structures):
    """`possible_rounds` of a drafter that has to draft."""
    return [None] * len(structures)


@pytest.mark.parametrize(("name", "keys"), CASES, ids=str)
def test_columns_are_the_rounds_that_are_drafted(name, keys, group_values, monkeypatch):
    """Over random texts, for every structure; the blocks of a text are so small that it has several."""
    monkeypatch.setattr(specdec.drafters.ngram, "_BLOCK", 16)
    dice, rounds, several = random.Random(0), 0, 0
    for _ in range(9):
        drafter = drafters.build(group_values("drafter", name, **keys), target=ANYWHERE)
        for _ in range(dice.randint(0, 3)):
            prompt, text, limit = stream(dice)
            drafter.remember(prompt, text)
        prompt, text, limit = stream(dice)
        request = Request(prompt, limit)
        asked = shapes(dice, group_values)
        columns = walk(drafter, asked, request, text)
        with monkeypatch.context() as patch:
            patch.setattr(drafter, "possible_rounds", unknown)
            drafted = walk(drafter, asked, request, text)
        for structure, one, two in zip(asked, columns, drafted, strict=True):
            assert in_lists(one) == in_lists(two), (structure.label, prompt, text, limit)
            rounds += len(one)
            several += one.rank.sum()
    assert rounds > 200 and (several > 3 or keys["matches_max"] == 1)


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_no_draft_is_made_where_columns_say_it(name, group_values, monkeypatch):
    drafter, dice = drafters.build(group_values("drafter", name), target=ANYWHERE), random.Random(1)
    asked = shapes(dice, group_values)
    request, text = Request([1, 2, 3, 1, 2], 6), [3, 1, 2, 3, 1, 1]
    monkeypatch.setattr(drafter, "propose", None)
    assert all(len(rounds) for rounds in walk(drafter, asked, request, text))
    replay = TextReplay(drafter, ANYWHERE, asked[0], text, request)
    assert replay.agreement().proposed.any()
    assert replay.starts().reach.max() <= asked[0].gamma
    assert replay.expected_rounds() > 1


@pytest.mark.parametrize("name", ["ngram", "suffix"])
@pytest.mark.parametrize("shape", ["chain", "rows", "tree"])
def test_what_columns_say_of_positions_is_what_drafts_there_say(name, shape, group_values, make_structure, monkeypatch):
    drafter, dice = drafters.build(group_values("drafter", name), target=ANYWHERE), random.Random(2)
    structure, hits, drafts = make_structure(shape, 3), 0, 0
    for _ in range(15):
        prompt, text, limit = stream(dice)
        replay = TextReplay(drafter, ANYWHERE, structure, text, Request(prompt, limit))
        columns = replay.agreement()
        starts = replay.starts() if shape == "chain" else None
        with monkeypatch.context() as patch:
            patch.setattr(drafter, "possible_rounds", unknown)
            assert vars_in_lists(columns) == vars_in_lists(replay.agreement())
            assert starts is None or vars_in_lists(starts) == vars_in_lists(replay.starts())
        hits, drafts = hits + columns.beta.sum(), drafts + columns.proposed.sum()
    assert 0 < hits < drafts
