"""Foreign accepted lengths as a drafter: the rounds that walking the trace gives."""

import random

import numpy as np
import pytest

from specdec.analysis.read.foreign.imported import PositionText, walked
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.replay.walk import replay_stream
from specdec.structures import structures
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
        rounds = replay_stream(drafter, structures.build({"name": "chain", "gamma": gamma}), stream, 1000)
        lengths = np.array(stream.accepted_lengths["acc_eagle"])
        walk = walked(PositionText("a", "", 0, lengths, None, ended), gamma)
        accepted = walk.accepted.tolist()
        assert rounds.tokens == 200
        assert (rounds.accepted, rounds.offered) == (accepted, walk.offered.tolist())
        full = [gamma] * len(accepted)
        assert rounds.offered[:-1] == full[:-1] or not ended and sum(rounds.offered) < sum(full)
        assert all(
            offered == min(gamma, 199 - at) or ended
            for offered, at in zip(rounds.offered, rounds.position, strict=True)
        )
        inside = [at + took < 199 for at, took in zip(rounds.position, accepted, strict=True)]
        assert all(
            rejected == (took < offered)
            for rejected, took, offered, counts in zip(rounds.rejected, accepted, rounds.offered, inside, strict=True)
            if counts
        )
        assert set(rounds.strategy) <= {"acc_eagle", ""}


def test_its_cost_is_its_own_or_the_models(replay, group_values):
    stream = made(0)
    target = replay(stream)

    def seconds(**changes):
        drafter = priced(build(group_values, target, **changes), target)
        drafter.start(TextStart(stream.prompt, 300))
        before = target.clock().mark()
        assert len(drafter.draft(structures.build({"name": "chain", "gamma": 4}))) == 4
        return target.clock().seconds(before, target.clock().mark())

    assert seconds() == pytest.approx(0.00213526175 + 4 * 8.41429603e-7)
    assert seconds(fixed_ms=2.0, step_ms=0.5) == pytest.approx(4e-3)
    with pytest.raises(UsageError, match="Set both drafter.fixed_ms and drafter.step_ms"):
        seconds(fixed_ms=2.0)


def test_which_lengths(replay, group_values, table):
    stream = made(0)
    with pytest.raises(UsageError, match="drafter.field=acc_x: .* are: acc_draft, acc_eagle"):
        build(group_values, replay(stream), field="acc_x")
    with pytest.raises(UsageError, match="drafter.field=null: .* are: acc_draft, acc_eagle"):
        build(group_values, replay(stream), field=None)
    with pytest.raises(UsageError, match="not every stream has any"):
        build(group_values, replay(stream, Stream("none", "c", (9,), (1, 2))), field=None)
    one = Stream("one", "c", (9,), (1, 2), {"acc_only": (2, 1)})
    assert build(group_values, replay(one), field=None).capabilities.fills == {"chain"}
    with pytest.raises(UsageError, match="use target=replay target.path=FILE"):
        build(group_values, table([[0.5, 0.5], [0.5, 0.5]]))


def test_a_prompt_without_a_record_gets_no_proposals(replay, group_values):
    drafter = build(group_values, replay(made(0)))
    drafter.start(TextStart((4, 4), 100))
    assert len(drafter.draft(structures.build({"name": "chain", "gamma": 3}))) == 0
