"""Drafters that draft for several texts in one call: what each text gets is what a drafter of its own would propose."""

from collections.abc import Mapping

import pytest
import torch
from fixtures.drafting import chain

from specdec.batching.batch_drafter import twin
from specdec.batching.batch_target import batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.clock import CpuClock
from specdec.drafters.base.contract import BatchDrafter
from specdec.drafters.grounded import Grounded
from specdec.drafters.medusa import Medusa
from specdec.drafters.small_model import SmallModel
from specdec.heads.choices import IndependentChoices
from specdec.records import Request, TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.verifiers.base.contract import verifiers

# Prompts of unequal lengths and limits; one prompt of a single token, before which heads have no state.
PROMPTS = [[7, 3, 19, 44, 3, 19, 52, 7, 3, 19], [5], [40, 12, 33, 12], [60, 2], [9, 8, 9, 8, 9, 21, 22, 9, 8, 9]]
LIMITS = [9, 4, 12, 7, 10]
HEADS = {"medusa": (Medusa, {}), "prefix": (Medusa, {"prefix": True, "output": "own"}), "grounded": (Grounded, {})}
SHAPES = ("chain", "rows", "tree", "dynamic")


class Compared(BatchDrafter):
    """Drafts by the first of two drafters, and requires the same of the second, whose texts have generators of their
    own in the same state.
    """

    def __init__(self, own: BatchDrafter, each: BatchDrafter) -> None:
        self.own, self.each, self.slots = own, each, own.slots
        self.lengths: list[int] = []

    def reserve(self, capacity: int) -> None:
        self.own.reserve(capacity)

    def start(self, slot, text, states=None):
        self.own.start(slot, text, states)
        generator = torch.Generator()
        generator.set_state(text.generator.get_state())
        self.each.start(slot, TextStart(text.prompt, text.capacity, generator=generator), states)

    def draft(self, asked: Mapping):
        together, apart = self.own.draft(asked), self.each.draft(asked)
        assert list(together) == list(asked)
        for slot in asked:
            one, other = together[slot], apart[slot]
            assert one.tokens.tolist() == other.tokens.tolist()
            assert (one.tree, one.source, one.draws) == (other.tree, other.source, other.draws)
            assert (one.q is None) == (other.q is None)
            if one.q is not None:
                torch.testing.assert_close(one.q, other.q, rtol=1e-11, atol=1e-12)
            self.lengths.append(len(one))
        return together

    def commit(self, slot, tokens, states=None):
        self.own.commit(slot, tokens, states)
        self.each.commit(slot, tokens, states)

    def release(self, slot):
        self.own.release(slot)
        self.each.release(slot)


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return tiny_model("llama")


@pytest.fixture
def made(tiny, tiny_model, sampling, random_heads):
    """`made("grounded", temperature)`: a target and its drafter."""

    def make(name: str, temperature: float, **how):
        target = Causal(tiny, sampling(temperature=temperature))
        if name == "small_model":
            return target, SmallModel(tiny_model("qwen3"), target, **how)
        cls, changes = HEADS[name]
        heads = random_heads(target, grounded=cls is Grounded, **changes)
        return target, cls(heads, target, **how)

    return make


def decoded(target, drafter, structure, slots=3):
    requests = [
        Request(prompt, limit, generator_for(0, f"p{place}", "draft"), generator_for(0, f"p{place}", "accept"))
        for place, (prompt, limit) in enumerate(zip(PROMPTS, LIMITS, strict=True))
    ]
    return decode_batch(
        target=batch_target(target, slots),
        drafter=drafter,
        verifier=verifiers.build({"name": "speculative_sampling"}),
        structure=structure,
        requests=requests,
        clock=CpuClock(),
    )


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*HEADS, "small_model"])
def test_drafts_are_those_of_a_drafter_for_each_text(made, make_structure, name, shape, temperature):
    target, drafter = made(name, temperature)
    compared = Compared(drafter.batched(3), BatchDrafter([twin(drafter, target) for _ in range(3)]))
    done = decoded(target, compared, make_structure(shape, 3))
    assert sum(compared.lengths) > 20 and all(each.finish for each in done.generations)


@pytest.mark.parametrize("name", ["medusa", "grounded"])
def test_independent_siblings_too(made, make_structure, name):
    """Draws that come twice merge into one node, so that the drafts of a batch ask for unequally many laws."""
    target, drafter = made(name, 1.0, siblings="independent")
    compared = Compared(drafter.batched(3), BatchDrafter([twin(drafter, target) for _ in range(3)]))
    decoded(target, compared, make_structure("rows", 3))
    assert sum(compared.lengths) > 20


def test_a_threshold_ends_the_draft_of_one_text_and_not_of_the_others(made):
    target, drafter = made("small_model", 1.0)
    compared = Compared(drafter.batched(3), BatchDrafter([twin(drafter, target) for _ in range(3)]))
    decoded(target, compared, chain(4).until(1e-3))
    assert len(set(compared.lengths)) > 2


def test_texts_longer_than_the_models_context_get_no_draft(made, tiny_llama, sampling):
    target, _ = made("small_model", 0.0)
    drafter = SmallModel(tiny_llama(61, context=8), target)
    compared = Compared(drafter.batched(3), BatchDrafter([twin(drafter, target) for _ in range(3)]))
    done = decoded(target, compared, chain(3))
    assert sum(compared.lengths) > 0
    assert any(not each.draft_tokens for text in done.generations for each in text.rounds[:-1])


def test_a_step_takes_as_many_calls_as_a_single_text_does(made, monkeypatch):
    """Gamma calls of a model, each on all texts; one pass of independent heads."""
    target, drafter = made("small_model", 0.0)
    calls: list[tuple[int, int]] = []
    handle = drafter.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    batch = drafter.batched(3)
    batch.reserve(32)
    for slot in range(3):
        batch.start(slot, TextStart(PROMPTS[0], 32))
    calls.clear()
    batch.draft(dict.fromkeys(range(3), chain(4)))
    handle.remove()
    assert calls == [(3, 1)] * 4

    target, drafter = made("medusa", 0.0)
    passes: list[tuple[int, ...]] = []
    whole = IndependentChoices.logits

    def noted(self, states, count):
        passes.append(states.shape)
        return whole(self, states, count)

    monkeypatch.setattr(IndependentChoices, "logits", noted)
    batch = drafter.batched(3)
    states = torch.zeros(9, target.hidden.output_layer.shape[1], dtype=torch.float64)
    for slot in range(3):
        batch.start(slot, TextStart(PROMPTS[0], 32), states)
    batch.draft(dict.fromkeys(range(3), chain(4)))
    assert [shape[0] for shape in passes] == [3]


def test_the_drafters_own_text_is_left_alone(made):
    target, drafter = made("small_model", 0.0)
    drafter.start(TextStart(PROMPTS[0], 32))
    before = drafter.draft(chain(3)).tokens.tolist()
    batch = drafter.batched(2)
    batch.reserve(32)
    batch.start(0, TextStart([1, 2, 3], 32))
    batch.draft({0: chain(3)})
    drafter.commit([before[0]])
    assert drafter.draft(chain(3)).tokens.tolist()[:1] == before[1:2]
