"""Decoding several sequences at once gives each the text, and the rounds, that it has when it is decoded alone."""

from dataclasses import replace

import pytest
import torch
from fixtures.drafting import chain, rows

from specdec.batching.batch_parts import batch_drafter, batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.clock import CpuClock, SimulatedClock
from specdec.decode import generate
from specdec.drafters.base import Drafter, drafters
from specdec.drafters.grounded import Grounded
from specdec.drafters.medusa import Medusa
from specdec.drafters.small_model import SmallModel
from specdec.errors import NumericsError, UsageError
from specdec.folder.rounds_table import GenerationKey, generation_line, round_table
from specdec.records import Request, TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder
from specdec.verifiers.base import verifiers

# Texts of unequal lengths and limits, so that sequences finish at different times: some before the queue is empty,
# some after.
PROMPTS = [[0, 3, 1, 4, 0, 3, 1, 2, 0, 3], [2], [1, 4, 1], [4, 4, 0, 2, 1, 3, 2, 2, 0, 1, 4, 2, 3], [3, 0, 2, 3, 0]]
LIMITS = [5, 2, 7, 3, 4]


def requests(prompts=PROMPTS, limits=LIMITS, references=None):
    """Requests with generators of their own, anew at each call."""
    return [
        Request(
            prompt,
            limit,
            draft_generator=generator_for(0, f"prompt {place}", "draft"),
            accept_generator=generator_for(0, f"prompt {place}", "accept"),
            reference=None if references is None else references[place],
        )
        for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


def decoded(target, drafter, structure, asked, slots, verifier="speculative_sampling"):
    """All requests at once, in `slots` slots; with 0 slots one after another, by the loop for one sequence."""
    how = {"verifier": verifiers.build({"name": verifier}), "structure": structure, "clock": CpuClock()}
    if slots == 0:
        return [generate(target=target, drafter=drafter, request=each, **how) for each in asked]
    batches = {"target": batch_target(target, slots), "drafter": batch_drafter(drafter, target, slots)}
    return decode_batch(**batches, requests=asked, **how).generations


def told(generation):
    """All that is recorded of a text but the clock's readings and the size of the batch."""
    rounds = [replace(row, marks=None, batch=1, beta=()) for row in generation.rounds]
    return generation.tokens, generation.finish, rounds


def assert_as_alone(target, drafter, structure, slots, prompts=PROMPTS, references=None):
    """Require of every text in a batch what it has alone, drafts and their laws included; return both."""
    alone, together = (
        decoded(target, drafter, structure, requests(prompts, references=references), count) for count in (0, slots)
    )
    assert [told(each) for each in together] == [told(each) for each in alone]
    for one, other in zip(alone, together, strict=True):
        for mine, theirs in zip(one.rounds, other.rounds, strict=True):
            assert theirs.beta == pytest.approx(mine.beta, abs=1e-9), "where p is right, q is too"
    return alone, together


def of_every_drafter():
    """Drafters of batches in every structure, those of which each slot has one in one of theirs, in turn."""
    for turn, name in enumerate(drafters.names()):
        can = drafters.get(name).capabilities
        fills, own = sorted(can.fills), drafters.get(name).batched is not Drafter.batched and not can.runs_target
        yield from ((name, shape) for shape in (fills if own else [fills[turn % len(fills)]]))


@pytest.mark.parametrize(("name", "shape"), list(of_every_drafter()))
def test_every_drafter_decodes_in_a_batch_as_it_does_alone(small_target, drafter_values, make_structure, name, shape):
    can = drafters.get(name).capabilities
    target = small_target(name, 5, temperature=0.0 if can.needs_reference else 1.0)
    drafter = drafters.build(drafter_values(name, 5, target), target=target)
    assert_as_alone(target, drafter, make_structure(shape, 3), 3, references=[[1, 2, 0, 4, 3] * 3] * len(PROMPTS))


# Longer than the windows of 6, and repetitive, so that n-grams match.
TEXTS = [[7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8, 3, 19], [5, 5], [40, 12, 33, 12, 40, 12, 33, 2, 40], [60]]
TEXTS += [[9, 8, 9, 8, 9, 21, 22, 9, 8, 9, 21, 22, 3, 3, 3, 9, 8, 30]]


@pytest.mark.parametrize(
    ("architecture", "name", "temperature", "shape", "slots"),
    [
        ("gemma3", "small_model", 1.0, "tree", 3),
        ("gpt2", "small_model", 0.0, "chain", 5),
        ("llama", "small_model", 1.0, "tree", 2),
        # These drafters read a model's states or layers; Medusa and Grounded are among the drafts of unequal sizes.
        *(("llama", name, 0.7, "tree", 3) for name in ("eagle", "early_exit", "layer_skip")),
        ("llama", "mtp", 0.7, "chain", 3),
    ],
)
def test_texts_of_a_model_are_those_of_batch_one(
    tiny_model, sampling, make_structure, drafter_values, architecture, name, temperature, shape, slots
):
    """Drafts of random quality, so that sequences drift apart. The states of a text are its own; a drafter over the
    target's first layers keeps a cache for each text.
    """
    target = Causal(tiny_model(architecture), sampling(temperature=temperature), prefill_chunk=5)
    drafter = drafters.build(drafter_values(name, target.vocab_size, target), target=target)
    _, together = assert_as_alone(target, drafter, make_structure(shape, 3), slots, TEXTS)
    assert any(row.batch == slots for each in together for row in each.rounds)


def test_drafts_of_unequal_sizes_are_those_of_each_text_alone(tiny_model, tiny_llama, sampling, random_heads):
    """Draws that come twice merge, a threshold ends the draft of one text and not of the others, and a text may be
    longer than the drafting model's context.
    """
    target = Causal(tiny_model("llama"), sampling(temperature=1.0), prefill_chunk=5)
    for drafter, structure in (
        (Medusa(random_heads(target), target, siblings="independent"), rows(3, 3)),
        (Grounded(random_heads(target, grounded=True), target, siblings="independent"), rows(3, 3)),
        (Grounded(random_heads(target, grounded=True), target, drafts="greedy"), rows(3, 3)),
        (SmallModel(tiny_model("qwen3"), target), chain(4).until(1e-3)),
        (SmallModel(tiny_llama(61, context=8), target), chain(3)),
    ):
        _, together = assert_as_alone(target, drafter, structure, 3, TEXTS)
        assert len({len(row.draft_tokens) for each in together for row in each.rounds}) > 2


def test_the_law_of_a_round_is_that_of_the_text_alone(tiny_model, sampling, random_draft):
    """Acceptance sees p and the draft only, so an equal p means that what is committed has exactly the same law."""
    target = Causal(tiny_model("gemma3"), sampling(temperature=0.8, top_k=20))
    batch = batch_target(target, 5)
    batch.reserve(40)
    drafts = {slot: random_draft(3 * slot, 61, seed=slot) for slot in range(5)}
    paths = {slot: draft.tree.path(len(draft) - 1) for slot, draft in drafts.items()}
    for slot, prompt in enumerate(TEXTS):
        batch.start(slot, TextStart(prompt, 40))
    batch.verify({slot: drafts[4 - slot] for slot in drafts})
    for slot in drafts:
        batch.discard(slot)
    first = batch.verify(drafts)
    for slot, path in paths.items():
        batch.commit(slot, path, 9 + slot)
    second = batch.verify(drafts)  # behind committed paths
    for slot, prompt in enumerate(TEXTS):
        target.start(TextStart(prompt, 60))
        torch.testing.assert_close(first[slot], target.verify(drafts[slot]), rtol=0, atol=1e-12)
        target.commit(paths[slot], 9 + slot)
        torch.testing.assert_close(second[slot], target.verify(drafts[slot]), rtol=0, atol=1e-12)
        torch.testing.assert_close(batch.logits[slot], target.logits, rtol=1e-10, atol=1e-10)


class Ticking(SimulatedClock):
    """Moves by one second at every look."""

    def mark(self) -> float:
        self.advance(1.0)
        return super().mark()


@pytest.fixture
def plain_steps(small_target, group_values, make_structure):
    """Plain decoding of five requests in two slots: a text of n tokens takes n steps."""
    target = small_target("ngram", 5, temperature=1.0)
    drafter = drafters.build(group_values("drafter", "none"), target=target)
    batch, plain = (batch_target(target, 2), batch_drafter(drafter, target, 2)), make_structure("chain", 1).resized(0)
    greedy, asked = verifiers.build({"name": "greedy"}), requests(limits=[4, 1, 3, 6, 1])
    return decode_batch(*batch, greedy, plain, asked, Ticking())


def test_a_free_slot_is_given_to_the_next_request(plain_steps):
    """Who is at work when follows from the limits: the fourth text has company in its first step only."""
    assert [len(each.tokens) for each in plain_steps.generations] == [4, 1, 3, 6, 1]
    assert [len(step.rounds) for step in plain_steps.steps] == [2] * 5 + [1] * 5
    assert [step.prefill_s for step in plain_steps.steps] == [2, 1, 0, 0, 2, 0, 0, 0, 0, 0]  # a second for each
    assert [row.batch for row in plain_steps.generations[3].rounds] == [2, 1, 1, 1, 1, 1]
    assert sum(step.tokens for step in plain_steps.steps) == 15


def test_shares_of_a_step_add_up(plain_steps):
    """A step of four verbs takes four seconds, whoever is at work; a prefill belongs to its own text."""
    key = GenerationKey("cell", "baseline", 0, 0, "prompt", "")
    tables = [round_table(key, each, Ticking()).to_pandas() for each in plain_steps.generations]
    assert sum(table["round_s"].sum() for table in tables) == 4 * len(plain_steps.steps)
    for verb in ("draft_s", "verify_s", "accept_s", "commit_s"):
        assert sum(table[verb].sum() for table in tables) == sum(getattr(step, verb) for step in plain_steps.steps)
    lines = [generation_line(key, each, Ticking(), "", False) for each in plain_steps.generations]
    assert [line["prefill_s"] for line in lines] == [1.0] * 5
    assert sum(line["decode_s"] for line in lines) == 4 * len(plain_steps.steps)
    assert sum(step.prefill_s for step in plain_steps.steps) == 5.0
    assert [tables[3]["batch"].tolist(), tables[3]["round_s"].tolist()] == [[2, 1, 1, 1, 1, 1], [2, 4, 4, 4, 4, 4]]


@pytest.mark.parametrize("slots", [1, 3])
def test_end_tokens_end_one_text_only(table, random_law, group_values, make_structure, slots):
    target = table(random_law(5, 2), temperature=1.0, end_token=4)
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    alone, _ = assert_as_alone(target, drafter, make_structure("chain", 3), slots)
    assert {each.finish for each in alone} == {"end_token", "limit"}


def test_logits_that_are_not_finite_end_the_run_and_keep_what_was_decoded(
    tiny_llama, sampling, group_values, make_structure
):
    """The token that makes them is the third text's, which waits for a slot, so that one text is whole by then."""
    model = tiny_llama(20)
    target = Causal(model, sampling(temperature=0.0))
    drafter = drafters.build(group_values("drafter", "none"), target=target)
    structure, prompts, limits = make_structure("chain", 1).resized(0), [[0], [1, 2], [3, 4, 0]], [2, 9, 4]
    sound = decoded(target, drafter, structure, requests(prompts, limits), 2)
    prompts[2][2] = min(set(range(5, 20)) - {token for each in sound for token in each.tokens})
    model.get_input_embeddings().weight[prompts[2][2]] = torch.nan
    with pytest.raises(NumericsError, match="after position 2 of a text in a batch of 2") as caught:
        decoded(target, drafter, structure, requests(prompts, limits), 2)
    partials = caught.value.partials
    assert {place: len(each.tokens) for place, each in partials.items()} == {0: 2, 1: 2, 2: 0}
    assert [partials[place].finish for place in range(3)] == ["limit", "failed", "failed"]


def test_targets_that_take_one_sequence_are_refused(tiny_encoder_decoder, tiny_model, sampling):
    seq2seq = EncoderDecoder(tiny_encoder_decoder("t5"), sampling(temperature=0.0))
    with pytest.raises(UsageError, match="batch_size=2: target EncoderDecoder decodes one sequence at a time"):
        batch_target(seq2seq, 2)
    rows = Causal(tiny_model("llama"), sampling(temperature=0.0), evaluation="rows")
    with pytest.raises(UsageError, match="evaluation=rows .* use target.evaluation=packed"):
        batch_target(rows, 2)
