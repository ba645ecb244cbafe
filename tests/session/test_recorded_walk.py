"""Walking along recorded texts writes what the decoding loop writes, all columns of the rounds table and its times; the
replay of a single stream has its rounds, too, and the drafts that were made.
"""

import random

import pytest

from specdec.clock import SimulatedClock
from specdec.drafters import drafters
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.none import NoDrafter
from specdec.folder.rounds_table import GenerationKey, generation_line, round_table
from specdec.records import Request
from specdec.replay.walk import replay_stream
from specdec.session.arm import Arm
from specdec.session.recorded_walk import decode_by_walking, walks
from specdec.targets import targets
from specdec.text.streams import Stream, write_streams
from specdec.timing.simulated import priced
from specdec.verifiers import verifiers

SIZE, END = 12, 11
GAMMAS = (1, 4)
LOOKUPS = [name for name in drafters.names() if issubclass(drafters.get(name), Lookup)]
CASES = [
    (name, shape, evaluation)
    for name in LOOKUPS
    if drafters.get(name).capabilities.replay != "calling"
    for shape in ("chain", "rows", "tree")
    if shape in drafters.get(name).capabilities.fills
    for evaluation in (("packed", "rows") if name == "ngram" else ("packed",))
]
KEY = GenerationKey("cell", "method", 3, 0, "a prompt", "a category")


def phrases(seed, length, **more):
    """A text of phrases that come again, with noise, and accepted lengths at random."""
    dice = random.Random(seed)
    book = [[dice.randrange(SIZE - 1) for _ in range(dice.randint(2, 9))] for _ in range(6)]
    text = []
    while len(text) < length + 20:
        text += [token if dice.random() < 0.93 else dice.randrange(SIZE - 1) for token in dice.choice(book)]
    lengths = tuple(dice.choices(range(1, 9), (8, 5, 4, 3, 2, 2, 1, 1), k=length))
    return Stream(f"s{seed}", "c", tuple(text[:20]), tuple(text[20 : length + 20]), {"acc_some": lengths}, **more)


def ending(stream, place):
    """The stream with the end token at `place`; what is recorded behind it is not written."""
    text = (*stream.generated[:place], END, *stream.generated[place + 1 :])
    return Stream(stream.id, "c", stream.prompt, text, stream.accepted_lengths, ended=place == len(text) - 1)


STREAMS = [phrases(0, 40), phrases(1, 1), ending(phrases(2, 25), 24), ending(phrases(3, 25), 12)]
LIMITS = [(STREAMS[0], 1000), (STREAMS[0], 17), *((stream, 100) for stream in STREAMS[1:])]


def arms_of(target, drafter, make_structure, shape):
    verifier = verifiers.build({"name": "greedy"})
    sizes = [make_structure(shape, gamma) for gamma in GAMMAS]
    common = {"target": target, "verifier": verifier}
    baseline = Arm(method="baseline", drafter=NoDrafter(), structure=sizes[0].resized(0), **common)
    wrapped = priced(drafter, target)
    return [Arm(method="some", drafter=wrapped, structure=size, **common) for size in sizes] + [baseline]


@pytest.fixture
def target_of(tmp_path, group_values, sampling):
    """`target_of("rows")` replays `STREAMS`, and evaluates drafts in this way."""
    write_streams(tmp_path / "s.jsonl", STREAMS)
    about = {"path": str(tmp_path / "s.jsonl"), "vocab_size": SIZE}
    greedy = sampling(temperature=0.0)
    return lambda how: targets.build(group_values("target", "replay", **about, evaluation=how), sampling=greedy)


def in_columns(key, generation, clock):
    """The rounds table, NaN as None, and the generation's line."""
    line = generation_line(key, generation, clock, "", False)
    line["decode_s"] = pytest.approx(line["decode_s"])
    return {**round_table(key, generation, clock).to_pydict(), "otherwise": []}, line


@pytest.mark.parametrize(("name", "shape", "evaluation"), CASES)
def test_a_walk_writes_what_the_loop_writes(
    target_of, group_values, table, random_law, drafter_values, make_structure, name, shape, evaluation
):
    target = target_of(evaluation)
    live = table(random_law(SIZE, 0))  # makes the tables of drafters that read a model
    own = group_values("drafter", name) if name == "recorded" else drafter_values(name, SIZE)
    drafter = drafters.build(own, target=target if name == "recorded" else live)
    assert walks(target, drafter) and not walks(live, drafter)
    arms, rejections = arms_of(target, drafter, make_structure, shape), 0
    for stream, limit in LIMITS:
        request = Request(stream.prompt, target.limit(stream.prompt, limit))
        clock = SimulatedClock()
        clock.reach(target.clock().mark())
        loop = [arm.decode(request, target.clock()) for arm in arms]
        found = decode_by_walking(arms, request, clock)
        assert clock.mark() == target.clock().mark()
        for one, two in zip(loop, found, strict=True):
            for field in ("prompt", "tokens", "finish", "prefill"):
                assert getattr(one, field) == getattr(two, field), field
            expected, written = (in_columns(KEY, each, clock) for each in (one, two))
            assert written == expected
            rejections += sum(written[0]["rejected"])
        whole = END not in stream.generated[:-1]  # as streams are that are replayed
        for arm, one, two in zip(arms[:-1], loop, found, strict=False) if whole else ():
            fast, walked = replay_stream(drafter, arm.structure, stream, limit), two.rounds.columns()
            for column in ("offered", "accepted", "rejected", "rank"):
                assert getattr(fast, column).tolist() == walked[column].tolist(), column
            assert (fast.position + len(stream.prompt)).tolist() == walked["context"].tolist()
            assert fast.nodes.tolist() == walked["offered_nodes"].tolist()
            assert [fast.strategies[number] for number in fast.strategy] == walked["source"].to_pylist()
            assert fast.leaves.tolist() == [len(row.tree.leaves) for row in one.rounds]
            for draft, row in zip(fast.proposals or (), one.rounds, strict=fast.proposals is not None):
                assert draft == (row.draft_tokens, row.tree, row.source)
    assert rejections > 5


def test_a_drafter_is_led_along_the_text_once(target_of, group_values, make_structure, monkeypatch):
    """The tokens of a text are committed to a drafter that has to draft once for all gammas."""
    target = target_of("packed")
    drafter = drafters.build(group_values("drafter", "ngram", occurrence="leftmost"), target=target)
    heard = []
    commit = drafter.commit
    monkeypatch.setattr(drafter, "commit", lambda tokens, states=None: heard.extend(tokens) or commit(tokens, states))
    arms = arms_of(target, drafter, make_structure, "chain")
    decode_by_walking(arms, Request(STREAMS[0].prompt, 40), SimulatedClock())
    assert tuple(heard) == STREAMS[0].generated[: len(heard)] and len(heard) > 30
