"""Foreign accepted lengths as a drafter: the rounds that walking the trace gives."""

import gzip
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from fixtures.drafting import chain

from specdec.analysis.read.imported import ImportChoices, PositionText, walked
from specdec.analysis.read.importers import IMPORTERS
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.replay.walk import replay_stream
from specdec.targets import targets
from specdec.text.streams import Stream, write_streams
from specdec.timing.simulated import priced


def made(seed, size=200, **more):
    dice = random.Random(seed)
    lengths = {
        name: tuple(dice.choices(range(1, 9), (8, 5, 4, 3, 2, 2, 1, 1), k=size)) for name in ("acc_eagle", "acc_draft")
    }
    text = tuple(dice.randrange(50) for _ in range(size))
    return Stream(f"s{seed}", "c", (seed, 1), text, lengths, **more)


@pytest.fixture
def replay(tmp_path, group_values, sampling):
    def make(*streams):
        write_streams(tmp_path / "s.jsonl", streams)
        values = group_values("target", "replay", path=str(tmp_path / "s.jsonl"))
        return targets.build(values, sampling=sampling(temperature=0.0))

    return make


def build(group_values, target, **changes):
    return drafters.build(group_values("drafter", "recorded", **{"field": "acc_eagle", **changes}), target=target)


@pytest.mark.parametrize("gamma", [1, 3, 10])
@pytest.mark.parametrize("ended", [False, True])
def test_rounds_are_those_of_the_trace(replay, group_values, gamma, ended):
    for seed in range(3):
        stream = made(seed, ended=ended)
        drafter = build(group_values, replay(stream))
        rounds = replay_stream(drafter, chain(gamma), stream, 1000)
        lengths = np.array(stream.accepted_lengths["acc_eagle"])
        walk = walked(PositionText("a", "", 0, lengths, None, ended), gamma)
        assert rounds.tokens == 200 and set(rounds.strategies) <= {"acc_eagle", ""}
        for column in ("accepted", "offered"):
            assert getattr(rounds, column).tolist() == getattr(walk, column).tolist(), column


def test_its_cost_is_its_own_or_the_models(replay, group_values):
    stream = made(0)
    target = replay(stream)

    def seconds(**changes):
        drafter = priced(build(group_values, target, **changes), target)
        drafter.start(TextStart(stream.prompt, 300))
        before = target.clock().mark()
        assert len(drafter.draft(chain(4))) == 4
        return target.clock().seconds(before, target.clock().mark())

    eagle = 0.00213526175 + 5 * 8.41429603e-7 + 2.37768493e-9  # behind one cached token; the source counts the root
    assert seconds() == pytest.approx(eagle, rel=1e-9)
    look = 0.005875 * target.cost.seconds(5, 1)
    assert seconds(kind="lookup") == pytest.approx(look, rel=1e-9) and look < eagle / 50
    assert seconds(kind="lookup", fixed_ms=2.0, step_ms=0.0) == pytest.approx(2e-3), "a time of its own comes first"
    assert seconds(fixed_ms=2.0, step_ms=0.5) == pytest.approx(4e-3)
    with pytest.raises(UsageError, match="Set both drafter.fixed_ms and drafter.step_ms"):
        seconds(fixed_ms=2.0)


def test_which_lengths(replay, group_values, table):
    stream = made(0)
    one = Stream("one", "c", (9,), (1, 2), {"acc_only": (2, 1)})
    assert build(group_values, replay(one), field=None).capabilities.fills == {"chain"}
    for target, field, sentence in (
        (replay(stream), "acc_x", "drafter.field=acc_x: .* are: acc_draft, acc_eagle"),
        (replay(stream), None, "drafter.field=null: .* are: acc_draft, acc_eagle"),
        (replay(stream, Stream("none", "c", (9,), (1, 2))), None, "not every stream has any"),
        (table([[0.5, 0.5], [0.5, 0.5]]), "acc_eagle", "use target=replay target.path=FILE"),
    ):
        with pytest.raises(UsageError, match=sentence):
            build(group_values, target, field=field)


def test_only_the_field_in_use_has_to_fit_the_text(replay, group_values):
    """Lengths of another run beside the text concern no drafter but the one that replays them."""
    good, other = made(0), made(1)
    other = replace(other, accepted_lengths=other.accepted_lengths | {"acc_draft": (1, 2)})
    target = replay(good, other)
    assert build(group_values, target).capabilities.replay == "copying"
    refusal = r"s.jsonl:2: acc_draft.acc_len has 2 entries .* target.skip_bad=true and drafter.field=acc_draft\.$"
    with pytest.raises(UsageError, match=refusal):
        build(group_values, target, field="acc_draft")


def test_lengths_of_other_texts_are_refused(tmp_path, replay, group_values):
    texts = [made(seed) for seed in range(3)]
    target, path = replay(*texts), tmp_path / "lengths.jsonl"
    write_streams(path, texts)
    assert build(group_values, target, path=str(path)).capabilities.replay == "copying"
    write_streams(path, [texts[0], replace(texts[1], generated=texts[2].generated)])
    with pytest.raises(UsageError, match="of the target's 3 streams it lacks 1 and has another text for 1"):
        build(group_values, target, path=str(path))


@pytest.mark.parametrize("first", ["prompt's length", 0])
def test_import_and_replay_of_one_file_take_the_same_rounds(tmp_path, group_values, sampling, first):
    """Packed lines, floats, placeholders, a byte order mark, an empty output and a repeated id are read alike."""
    records = []
    for stream in map(made, range(4)):
        record = {"id": "same", "prompt_token_ids": [*stream.prompt, *range(20)]}
        record |= {"generated_token_ids": list(stream.generated)}
        record |= {name: {"acc_len": list(lengths)} for name, lengths in stream.accepted_lengths.items()}
        lengths = record["acc_eagle"]["acc_len"]
        lengths[:3] = [22 if first else 0, float(lengths[1]), float(lengths[2])]
        records.append(record)
    records.insert(2, records[0] | {"generated_token_ids": [], "acc_eagle": {"acc_len": []}})
    content = b"\xef\xbb\xbf" + "".join(json.dumps(record) + "\n" for record in records).encode()
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress(content))
    (source,) = IMPORTERS["accepted_lengths"](path, ImportChoices(gamma=4, field="acc_eagle"))
    target = targets.build(group_values("target", "replay", path=str(path)), sampling=sampling(temperature=0.0))
    drafter = build(group_values, target)
    replayed = [replay_stream(drafter, chain(4), stream, 1000) for stream in target.streams]
    imported = [part for _, part in source.rounds.groupby("prompt", sort=False)]
    assert len(imported) == 4 and {stream.id for stream in target.streams} == set(source.rounds["prompt"])
    for part, rounds in zip(imported, replayed, strict=True):
        for column in ("accepted", "offered", "rejected"):
            assert part[column].tolist() == getattr(rounds, column).tolist()
        assert part["accepted"].iloc[0] == 0
    for notes in (source.notes, drafter.read_notes):
        assert any("stands for the token that the prefill gives" in note for note in notes)


NAMED = dict.fromkeys(("acc_ngram", "prompt-lookup", "acc_n_gram", "SAM"), True)
NAMED |= dict.fromkeys(("acc_eagle3", "acc_rested"), False)


def test_what_it_stands_for_is_read_off_its_name_or_said(replay, group_values):
    """A recorded n-gram is not charged a feature drafter's time, and the run says what it took it for."""
    for field, kind, looks_up in (
        *((name, None, whether) for name, whether in NAMED.items()),
        ("acc_ngram", "model", 0),
        ("acc_eagle", "lookup", 1),
    ):
        stream = Stream("one", "c", (9,), (1, 2), {field: (2, 1)})
        drafter = build(group_values, replay(stream), field=None, kind=kind)
        (note,) = drafter.notes
        assert field in note and drafter.looks_up == ("look-up" in note) == looks_up
        assert (f"drafter.kind={kind}" if kind else "by its name") in note


def test_texts_that_are_not_the_drafters_own_are_drafted(replay, group_values):
    """The short way along recorded lengths is taken only where the drafter's text is the one that is written."""
    stream = made(0)
    drafter = build(group_values, replay(stream))
    text = stream.generated
    shape = chain(30)
    (rounds,) = drafter.possible_rounds(stream.prompt, text[:50], 1000, [shape])
    lengths = [length - 1 for length in stream.accepted_lengths["acc_eagle"][:50]]
    assert rounds.accepted.tolist() == [min(length, 50 - place, 30) for place, length in enumerate(lengths)]
    assert set(rounds.offered.tolist()) == {30} and rounds.strategy == "acc_eagle"
    assert drafter.possible_rounds((7, 7), text, 1000, [shape]) == [None], "a prompt without a record"
    drafter.start(TextStart((7, 7), 100))
    assert len(drafter.draft(shape)) == 0
    assert drafter.possible_rounds(stream.prompt, (*text[:9], text[9] + 1), 1000, [shape]) == [None]
