"""Replaying a recorded greedy run takes the very rounds that decoding it took, round by round, without the model."""

import json
from dataclasses import fields

import pytest
import torch
from fixtures.decoding import decode
from fixtures.drafting import decoded

from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.structures import structures
from specdec.targets import targets
from specdec.targets.causal import Causal
from specdec.text.streams import Stream, write_streams
from specdec.timing.simulated import priced

DRAFT = {"fixed_s": 0.0, "step_s": 0.0, "cached_s": 0.0}
STREAM = Stream("one", "c", (3, 1, 2), (4, 0, 3, 1, 2, 4, 0, 3, 1))


def rounds_of(generation):
    """Everything of a round but the clock."""
    return [{f.name: getattr(row, f.name) for f in fields(row) if f.name != "marks"} for row in generation.rounds]


@pytest.fixture
def replay(tmp_path, group_values, sampling):
    """`replay(streams, cost=..., ...)`: the target of a file of them."""

    def make(streams, temperature=0.0, **changes):
        path = tmp_path / "streams.jsonl"
        write_streams(path, streams)
        values = group_values("target", "replay", path=str(path), **changes)
        return targets.build(values, sampling=sampling(temperature=temperature))

    return make


def same_rounds(live, replayed, drafter, structure, streams, limit):
    """Decode every prompt live and from the record with one drafter."""
    for stream in streams:
        one = decoded(live, drafter, structure, stream.prompt, limit)
        assert one.tokens == stream.generated[:limit]
        two = decoded(replayed, drafter, structure, stream.prompt, replayed.limit(stream.prompt, limit))
        assert rounds_of(two) == rounds_of(one) and two.finish == one.finish
    return two


def test_scores_choose_the_token_that_was_recorded_next(replay):
    target = replay([STREAM])
    scores = target.score(STREAM.prompt, STREAM.generated[:4])
    assert scores.argmax(-1).tolist() == list(STREAM.generated[:5]) and scores.sum() == 5
    # Behind the last token nothing is known; a law stands there for the shape.
    assert target.score(STREAM.prompt, STREAM.generated).argmax(-1).tolist()[:-1] == list(STREAM.generated)


@pytest.fixture(scope="module")
def tiny(tiny_model, sampling):
    """A model with random weights, and what it writes."""
    live = Causal(tiny_model("llama"), sampling(temperature=0.0))
    dice = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(live.vocab_size, (6,), generator=dice).tolist()) * 3 for _ in range(2)]
    written = [decode(live, "none", 0, prompt, 20) for prompt in prompts]
    return live, [Stream(str(number), "c", text.prompt, text.tokens) for number, text in enumerate(written)]


@pytest.mark.parametrize(
    ("name", "structure"), [("ngram", "chain"), ("ngram", "rows"), ("mixed", "tree"), ("model_unigram", "chain")]
)
def test_a_live_run_is_replayed_round_by_round(tiny, drafter_values, make_structure, replay, name, structure):
    """That a walk takes these rounds too is shown for every drafter in `session/test_recorded_walk.py`."""
    live, streams = tiny
    replayed = replay(streams, vocab_size=live.vocab_size)
    drafter = drafters.build(drafter_values(name, live.vocab_size), target=live)
    same_rounds(live, replayed, drafter, make_structure(structure, 4), streams, 20)


@pytest.mark.parametrize("structure", ["chain", "rows", "tree"])
def test_an_end_token_cuts_as_it_did(table, replay, drafter_values, make_structure, structure):
    """The live run offers drafts beyond the end token, and so does the replay; a limit below the end holds too."""
    law = torch.eye(6).roll(1, dims=1).tolist()  # 0 1 2 3 4 5 0 1 ...
    live = table(law, end_token=5)
    stream = Stream("a", "c", (0, 1, 2, 3, 4, 0, 1), (2, 3, 4, 5), {}, ended=True)
    replayed = replay([stream], vocab_size=6)
    drafter = drafters.build(drafter_values("ngram", 6), target=live)
    last = same_rounds(live, replayed, drafter, make_structure(structure, 4), [stream], 20)
    assert last.finish == "end_token" and last.rounds[-1].truncation == "end_token"
    last = same_rounds(live, replayed, drafter, make_structure(structure, 2), [stream], 3)
    assert last.finish == "limit" and last.tokens == (2, 3, 4)


def test_nothing_is_decoded_beyond_the_record(replay):
    target = replay([STREAM])
    assert target.limit(STREAM.prompt, 100) == 9 and target.limit(STREAM.prompt, 4) == 4
    none = drafters.build({"name": "none"}, target=target)
    with pytest.raises(ValueError, match="beyond the 9 recorded tokens"):
        decoded(target, none, structures.build({"name": "chain", "gamma": 1}).resized(0), STREAM.prompt, 10)


def test_time_is_the_cost_models(replay, tmp_path, drafter_values, make_structure):
    """Every mark of every round, prefill included; the drafter's own part too."""
    stream = Stream("one", "c", (3, 1, 2, 3, 4, 3), (1, 2, 3, 4, 0, 3, 1, 2, 3))  # what follows a 3 varies
    cost = tmp_path / "mine.yaml"
    coefficients = {
        "fixed_s": 1.0, "token_s": 0.0, "weights_s": 0.0, "cached_s": 0.125, "row_s": 0.25, "key_s": 0.0,
        "lookup_s": 0.5, "lookup_share": 0.25, "overhead_s": 0.0625,
    }  # fmt: skip
    body = {"name": "mine", "source": "a test", "tile": 1, "overlap": False, "draft": DRAFT}
    cost.write_text(json.dumps(body | coefficients))
    for evaluation in ("packed", "rows"):
        target = replay([stream], cost=str(cost), evaluation=evaluation)
        clock = target.clock()
        drafter = priced(drafters.build(drafter_values("ngram", 5), target=target), target)
        generation = decode(target, drafter, make_structure("rows", 3), stream.prompt, 9, clock=clock)
        assert clock.seconds(*generation.prefill) == 1.0 + 0.25 * 5  # five rows, nothing in the cache
        several = 0
        for row in generation.rounds:
            nodes, branches = len(row.draft_tokens), len(row.tree.leaves)
            rows, copies = nodes + 1, 1
            if evaluation == "rows" and branches > 1:
                rows, copies = branches * (row.tree.depth + 1), branches
                several += 1
            marks = row.marks
            call = 1 + 0.25 * rows + 0.125 * (row.context - 1) * copies
            assert clock.seconds(marks.start, marks.drafted) == (0.5 + 0.25 * call if nodes else 0.0)
            assert clock.seconds(marks.drafted, marks.verified) == call
            assert clock.seconds(marks.verified, marks.accepted) == 0.0
            assert clock.seconds(marks.accepted, marks.committed) == 0.0625
        assert any(row.draft_tokens for row in generation.rounds) and (several > 0) == (evaluation == "rows")


def test_what_it_refuses(replay):
    with pytest.raises(UsageError, match="sampling.temperature=0.7: target=replay .* greedy only; use sampling=greedy"):
        replay([STREAM], temperature=0.7)
    with pytest.raises(
        UsageError, match=r"streams.jsonl:1: token id 4 in generated_token_ids is beyond the target's vocabulary"
    ):
        replay([STREAM], vocab_size=4)
    with pytest.raises(UsageError, match="no such cost model"):
        replay([STREAM], cost="h200")
    with pytest.raises(UsageError, match="No stream of target.path=.* has this prompt of 2 tokens"):
        replay([STREAM]).start(TextStart((1, 2), 10))


def test_a_priced_drafter_declares_what_its_own_does(replay, table, group_values):
    oracle = drafters.build(group_values("drafter", "oracle"), target=replay([STREAM]))
    assert not oracle.capabilities.reports_confidence and oracle.capabilities.needs_reference
    wrapped = priced(oracle, replay([STREAM]))
    assert wrapped.capabilities == oracle.capabilities
    other = table([[0.5, 0.5], [0.5, 0.5]])
    assert priced(drafter := drafters.build({"name": "none"}, target=other), other) is drafter
