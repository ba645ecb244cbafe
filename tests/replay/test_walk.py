"""A grid is the sum of its streams, whose rounds are those of the loop (`session/test_recorded_walk.py`)."""

import multiprocessing
import pickle
import random
from collections import Counter
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.drafters import drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.replay.walk import replay_stream
from specdec.structures import structures
from specdec.studies.base.replayed import Strategy, replay
from specdec.targets import targets
from specdec.text.streams import Stream, write_streams

SIZE = 12
END = SIZE - 1  # at the end of a text that says so, and nowhere else
LOOKUPS = [name for name in drafters.names() if issubclass(drafters.get(name), Lookup) and name != "recorded"]
NAMES = [name for name in LOOKUPS if drafters.get(name).capabilities.replay != "calling"]


def stream(seed, length=70, ended=False):
    """A text of phrases that come again, with noise: matches of every length, and wrong ones."""
    dice = random.Random(seed)
    book = [[dice.randrange(END) for _ in range(dice.randint(2, 9))] for _ in range(6)]
    text = []
    while len(text) < length + 20:
        text += [token if dice.random() < 0.93 else dice.randrange(END) for token in dice.choice(book)]
    text = [*text[: length + 20 - ended], *[END] * ended]
    return Stream(f"s{seed}", f"c{seed % 2}", tuple(text[:20]), tuple(text[20:]), ended=ended)


STREAMS = [stream(0), stream(1, ended=True), stream(2, 1), stream(3, 2)]


@pytest.fixture
def target(tmp_path, group_values, sampling):
    write_streams(tmp_path / "s.jsonl", STREAMS)
    values = group_values("target", "replay", path=str(tmp_path / "s.jsonl"), vocab_size=SIZE)
    return targets.build(values, sampling=sampling(temperature=0.0))


@pytest.fixture
def live(table, random_law):
    """What makes the tables of drafters that read a model."""
    return table(random_law(SIZE, 0))


@pytest.mark.parametrize("name", NAMES)
def test_drafters_can_be_sent_to_a_process(live, drafter_values, make_structure, name):
    drafter, chain = drafters.build(drafter_values(name, SIZE), target=live), make_structure("chain", 4)
    sent = pickle.loads(pickle.dumps(drafter))
    one, two = (replay_stream(each, chain, STREAMS[0], 100) for each in (drafter, sent))
    assert one.position.tolist() == two.position.tolist() and len(one) > 10


def strategies(group_values):
    ngram = group_values("drafter", "ngram")
    shapes = [group_values("structure", "chain", gamma=3), group_values("structure", "rows", k=3, w=4)]
    return [
        Strategy({"most": most, "shape": shape["name"]}, ngram | {"matches_max": most}, shape)
        for most in (32, 1)
        for shape in shapes
    ]


def replayed(chosen, streams, target, limit, workers=1, heartbeat=lambda: None):
    parts, measurement = SimpleNamespace(target=target, limit=limit), SimpleNamespace(workers=workers)
    bench = SimpleNamespace(parts=parts, plan=SimpleNamespace(measurement=measurement), heartbeat=heartbeat)
    return replay(bench, chosen, streams)


def test_a_grid_is_the_sum_of_its_streams(target, group_values):
    heard = []
    chosen = strategies(group_values)
    table, histograms = replayed(chosen, STREAMS, target, 100, heartbeat=lambda: heard.append(1))
    assert len(table) == len(heard) == len(chosen) * len(STREAMS)
    assert table["tokens"].sum() == len(chosen) * 143
    for strategy in chosen:
        drafter, structure = drafters.build(strategy.drafter, target=target), structures.build(strategy.structure)
        for each in STREAMS:
            own, counts = (
                columns[
                    (columns["most"] == strategy.keys["most"])
                    & (columns["shape"] == strategy.keys["shape"])
                    & (columns["stream"] == each.id)
                ]
                for columns in (table, histograms)
            )
            (row,) = own.itertuples()
            rounds = replay_stream(drafter, structure, each, 100)
            assert (row.tokens, row.rounds) == (min(100, len(each.generated)), len(rounds))
            for column in ("nodes", "offered", "accepted"):
                assert getattr(row, column) == getattr(rounds, column).sum(), column
            assert row.paths == rounds.leaves.sum()
            lengths = counts[counts["histogram"] == "accepted"]
            assert lengths["count"].sum() == row.rounds
            assert (lengths["count"] * lengths["value"]).sum() == row.accepted
            assert set(lengths[lengths["value"] == 0]["strategy"]) <= {""}
            assert counts[counts["histogram"] == "rank"]["count"].sum() == (rounds.accepted > 0).sum()
            assert counts[counts["histogram"] == "allotment"]["count"].sum() == row.proposals
    assert table["accepted"].sum() > 0


def test_a_draft_that_is_mixed_is_allotted_to_its_sources(live, target, drafter_values, group_values):
    """Rows of a mixed drafter, counted one by one from the drafts that were made."""
    rows = group_values("structure", "rows", k=4, w=3)
    mixed = Strategy({}, drafter_values("mixed", SIZE), rows)
    _, histograms = replayed([mixed], STREAMS[:1], live, 100)
    rounds = replay_stream(drafters.build(mixed.drafter, target=live), structures.build(rows), STREAMS[0], 100)
    wanted = Counter()
    for draft in rounds.proposals:
        wanted.update(Counter(draft.source[leaf].strategy for leaf in draft.tree.leaves).items())
    rows = histograms[histograms["histogram"] == "allotment"]
    assert dict(zip(zip(rows["strategy"], rows["value"], strict=True), rows["count"], strict=True)) == wanted
    assert len(set(rows["strategy"])) > 1


def test_processes_change_nothing(target, group_values, monkeypatch):
    """A thread in their place, which is given what would be sent to them."""
    pool = SimpleNamespace(Pool=lambda _, begin, sent: ThreadPool(1, begin, pickle.loads(pickle.dumps(sent))))
    monkeypatch.setattr(multiprocessing, "get_context", {"spawn": pool}.__getitem__)
    chosen = strategies(group_values)[:2]
    one, two = (replayed(chosen, STREAMS, target, 60, workers) for workers in (1, 2))
    for alone, shared in zip(one, two, strict=True):
        pd.testing.assert_frame_equal(alone, shared)


def test_what_a_grid_refuses(target, group_values):
    chain, tree = group_values("structure", "chain"), {"name": "tree"}
    for drafter, structure, words in (
        ("recycling", chain, "drafter=recycling: it learns from the target's calls"),
        ("ngram", tree, "structure"),
    ):
        strategy = Strategy({}, group_values("drafter", drafter), structure)
        with pytest.raises(UsageError, match=words):
            replayed([strategy], STREAMS, target, 9)
