"""Token accounting of the loop: where a text ends, what a round records, what is censored (theory.md 5.1)."""

from collections.abc import Sequence

import pytest
import torch
from fixtures.decoding import decode, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.batching.batch_parts import batch_drafter, batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.clock import SimulatedClock
from specdec.decode import cut, generate
from specdec.disturbance import Watch
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.folder.rounds_table import GenerationKey, generation_line, round_table
from specdec.records import EMPTY, Draft, Request, Source, TextStart, Tree, chain_tree
from specdec.sampling import drawn
from specdec.structures.base import Structure, structures
from specdec.verifiers.base import verifiers

SIZE = 7


class Scripted(Drafter):
    """Offers the given tokens, round after round, and remembers what it was asked and told."""

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}))

    def __init__(self, *offers: Sequence[int], q: torch.Tensor | None = None, tree: Tree | None = None) -> None:
        self.offers, self.q, self.tree = list(offers), q, tree
        self.asked: list[int] = []
        self.told: list[tuple[int, ...]] = []

    def draft(self, structure: Structure) -> Draft:
        self.asked.append(structure.gamma)
        tokens = list(self.offers.pop(0) if self.offers else [])
        if self.tree is None:
            tokens = tokens[: structure.gamma]
        if not tokens:
            return EMPTY
        tree = self.tree or chain_tree(len(tokens))
        q = None if self.q is None else self.q[: len(tokens)]
        return Draft(torch.tensor(tokens), tree, q, (Source("scripted", 0),) * len(tokens))

    def commit(self, tokens: Sequence[int], states: torch.Tensor | None = None) -> None:
        self.told.append(tuple(tokens))


@pytest.fixture
def cycle(table):
    """Greedy text from root 0: 3, 6, 2, 5, 1, 4, 0, 3, ..."""

    def make(end_token=None):
        law = [[float(column == (row + 3) % SIZE) for column in range(SIZE)] for row in range(SIZE)]
        return table(law, end_token=end_token)

    return make


TEXT = (3, 6, 2, 5, 1, 4, 0, 3, 6, 2)


def run(target, drafter, gamma=4, limit=10, prompt=(0,), verifier="greedy"):
    return decode(target, drafter, gamma, prompt, limit, verifier, **seeded())


both = pytest.mark.parametrize("verifier", ["greedy", "speculative_sampling"])


@both
def test_accepted_rejected_and_bonus(cycle, verifier):
    drafter = Scripted([3, 6, 2, 5], [1, 0, 0, 0], [6, 6, 6, 6])
    generation = run(cycle(), drafter, limit=8, verifier=verifier)
    assert generation.tokens == TEXT[:8] and generation.finish == "limit"
    full, second, third, last = generation.rounds
    assert (full.committed, full.accepted, full.rejected) == ((3, 6, 2, 5, 1), 4, False), "a full round is censored"
    assert (second.draft_tokens, second.committed, second.accepted, second.rejected) == ((1, 0), (4,), 0, True)
    assert (third.draft_tokens, third.committed, third.rejected) == ((6,), (0,), True), "two were left: one offered"
    assert (last.draft_tokens, last.committed, last.rejected) == ((), (3,), False)


def test_what_a_round_records(cycle):
    drafter = Scripted([3, 6, 2, 5], [4, 0, 0, 0])
    generation = run(cycle(), drafter, limit=9)
    assert [row.committed for row in generation.rounds] == [(3, 6, 2, 5, 1), (4, 0, 3), (6,)]
    assert drafter.told == [row.committed for row in generation.rounds]
    assert [row.context for row in generation.rounds] == [1, 6, 9]
    assert [row.truncation for row in generation.rounds] == ["", "", "limit"]
    assert generation.rounds[0].source == (Source("scripted", 0),) * 4
    assert sum((row.committed for row in generation.rounds), ()) == generation.tokens


@both
@pytest.mark.parametrize(
    ("end", "offered", "committed", "accepted", "rejected"),
    [
        (6, [3, 6, 2, 5], (3, 6), 2, False),  # among accepted tokens
        (6, [3, 6, 2, 0], (3, 6), 2, False),  # the rejection behind it is hidden: censored
        (2, [3, 6, 2, 0], (3, 6, 2), 3, False),  # the last accepted one, just before a rejection
        (6, [3, 0, 0, 0], (3, 6), 1, True),  # the correction: the rejection before it was observed
        (6, [3], (3, 6), 1, False),  # the bonus
    ],
)
def test_an_end_token_ends_its_round_and_the_text(cycle, verifier, end, offered, committed, accepted, rejected):
    generation = run(cycle(end_token=end), Scripted(offered), gamma=len(offered), verifier=verifier)
    (row,) = generation.rounds
    assert generation.tokens == row.committed == committed
    assert row.truncation == generation.finish == "end_token"
    assert (row.accepted, row.rejected) == (accepted, rejected)
    assert len(row.beta) == accepted + rejected, "tested inside the text"
    assert len(row.draft_tokens) == len(offered), "what was offered stays as it was"


@pytest.mark.parametrize(
    ("ends", "offers", "limit", "prompt", "tokens", "finish"),
    [
        ({6}, [], 10, [0], (3, 6), "end_token"),  # without any proposal
        ({6}, [[3, 6]], 2, [0], (3, 6), "end_token"),  # at the limit, too
        ({0}, [[0, 0], [6, 0]], 4, [0, 0, 0], TEXT[:4], "limit"),  # in the prompt, or in a rejected draft
        ({5, 2}, [[3, 6, 2, 5]], 10, [0], (3, 6, 2), "end_token"),  # the first of several
    ],
)
def test_the_first_end_token_that_is_committed_ends_a_text(cycle, ends, offers, limit, prompt, tokens, finish):
    target = cycle()
    target.end_tokens = frozenset(ends)
    generation = run(target, Scripted(*offers), limit=limit, prompt=prompt)
    assert (generation.tokens, generation.finish) == (tokens, finish)
    assert [row.truncation for row in generation.rounds] == [*[""] * (len(generation.rounds) - 1), finish]


@pytest.mark.parametrize("limit", range(1, 11))
@both
def test_every_limit_is_met_exactly(cycle, limit, verifier):
    """Right drafts, wrong drafts and none: the text is the same, no token too many, none too few."""
    for offers in ([TEXT[i : i + 4] for i in range(0, 10, 5)], [[1, 1, 1, 1]] * 10, []):
        drafter = Scripted(*offers)
        generation = run(cycle(), drafter, limit=limit, verifier=verifier)
        assert generation.tokens == TEXT[:limit] and generation.finish == "limit"
        done = [sum(len(row.committed) for row in generation.rounds[:i]) for i in range(len(generation.rounds))]
        assert drafter.asked == [min(4, limit - count - 1) for count in done], "nothing is offered past the last token"
        assert [row.truncation for row in generation.rounds[:-1]] == [""] * (len(generation.rounds) - 1)
        assert generation.rounds[-1].truncation == "limit"


@pytest.mark.parametrize("point", [False, True])
def test_beta_is_the_overlap_of_p_and_q(table, random_law, point):
    """Where the draft is deterministic, and q a point, it is the chance of its token."""
    target, offered = table(random_law(SIZE, 0), temperature=1.0), [3, 6, 2]
    q = torch.eye(SIZE, dtype=torch.float64)[offered] if point else random_law(SIZE, 1)[:3]
    drafter = Scripted(offered, q=None if point else q)
    row = run(target, drafter, gamma=3, limit=8, verifier="speculative_sampling").rounds[0]
    target.start(TextStart([0], 0))
    p = target.verify(Draft(torch.tensor(offered), chain_tree(3)))
    expected = [1 - 0.5 * float((p[i] - q[i]).abs().sum()) for i in range(row.accepted + row.rejected)]
    assert row.beta == pytest.approx(expected, abs=1e-12) and len(row.beta) > 0


def test_acceptance_leaves_the_drafts_numbers_alone(table, random_law):
    """A drafter draws the same numbers whatever is accepted: acceptance has a generator of its own, and uses it."""
    target, q, numbers = table(random_law(SIZE, 0), temperature=1.0), random_law(SIZE, 1)[0], []

    class Drawing(Scripted):
        def start(self, text, states=None):
            self.generator = text.generator

        def draft(self, structure):
            numbers.append(torch.rand(structure.gamma, 1, generator=self.generator, dtype=torch.float64))
            rows = q.expand(structure.gamma, -1)
            return Draft(drawn(rows, numbers[-1]), chain_tree(structure.gamma), rows)

    generators = seeded()
    ours, theirs = generators.values()
    decode(target, Drawing(), 3, [0], 20, "speculative_sampling", **generators)
    again, unused = seeded().values()
    assert all(torch.equal(torch.rand(each.shape, generator=again, dtype=torch.float64), each) for each in numbers)
    assert torch.equal(ours.get_state(), again.get_state())
    assert not torch.equal(theirs.get_state(), unused.get_state())


def test_a_tree_commits_its_accepted_path(cycle):
    """Root's children 1 and 3; below 3: 5, 6; below 6: 2. The path 3, 6, 2 is accepted, then the bonus 5."""
    drafter = Scripted([1, 3, 5, 6, 2], tree=Tree((-1, -1, 1, 1, 3)))
    row = run(cycle(), drafter, limit=8).rounds[0]
    assert row.committed == (3, 6, 2, 5) and row.acceptance.path == (1, 3, 4)
    assert (row.accepted, row.rejected, row.beta) == (3, False, ())


TOKENS = st.integers(0, 5)


@settings(max_examples=100)
@given(st.lists(TOKENS, min_size=1, max_size=9), st.integers(1, 12), st.frozensets(TOKENS, min_size=1, max_size=2))
def test_cut_keeps_up_to_the_end_token_and_the_limit(whole, room, ends):
    kept = cut(whole, room, ends)
    assert 1 <= len(kept) <= room and list(kept) == whole[: len(kept)]
    assert not set(kept[:-1]) & ends
    assert kept[-1] in ends or len(kept) in (room, len(whole))


class Watching(Watch):
    """Reads that `lost` seconds were lost between any two readings; logs when it is read."""

    def __init__(self, lost, log):
        self.lost, self.log = lost, log

    def read(self):
        self.log.append("watch")
        return float(len(self.log))

    def waited(self, before, after):
        return self.lost * (after - before)


class Logging(SimulatedClock):
    """Advances by a second at each reading, and logs it."""

    def __init__(self, lost):
        super().__init__()
        self.log = []
        self.watch = Watching(lost, self.log)

    def mark(self):
        self.log.append("mark")
        self.advance(1.0)
        return super().mark()


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("lost", "hit"), [(0.05, False), (0.1, True)])
def test_every_round_is_watched_outside_of_its_durations(cycle, drafter_values, batch, lost, hit):
    clock = Logging(lost)
    how = {"verifier": verifiers.build({"name": "greedy"}), "clock": clock}
    how["structure"] = structures.build({"name": "chain", "gamma": 4})
    target, drafter, asked = cycle(), drafters.build(drafter_values("ngram", SIZE), target=cycle()), Request((0,), 10)
    if batch:
        batches = {"target": batch_target(target, 1), "drafter": batch_drafter(drafter, target, 1)}
        (made,) = decode_batch(**batches, requests=[asked], **how).generations
    else:
        made = generate(target=target, drafter=drafter, request=asked, **how)
    prefill = "mm" if batch else "wmmw"
    assert "".join(word[0] for word in clock.log) == prefill + "wmmmmmw" * len(made.rounds)
    table = round_table(GenerationKey("", "", 4, 0, "", ""), made, clock).to_pandas()
    assert table["waited_s"].to_numpy() == pytest.approx(6 * lost) and table["round_s"].eq(4.0).all()
    assert table["disturbed"].eq(hit).all()
    line = generation_line(GenerationKey("", "", 4, 0, "", ""), made, clock, "", False)
    assert line["prefill_s"] == 1.0 and line["prefill_disturbed"] is not batch  # batches share theirs
