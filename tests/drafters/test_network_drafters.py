"""Drafters over networks: a draft whose q is not finite ends the run when it is committed, and drafts for several texts
are made in one call; `tests/batching/` has what each text gets.
"""

import pytest
import torch
from fixtures.drafting import begun, chain, tokens_of_calls
from torch.nn.functional import linear

from specdec.drafters.base import drafters, network_drafter
from specdec.drafters.base.heads import IndependentChoices
from specdec.drafters.medusa import Medusa
from specdec.drafters.small_model import SmallModel
from specdec.errors import NumericsError
from specdec.records import TextStart
from specdec.targets.causal import Causal

PROMPT = [7, 3, 19, 44, 3, 19, 52, 7, 3, 19]


@pytest.fixture
def target(tiny_model, sampling):
    return Causal(tiny_model("llama"), sampling(temperature=0.0))


@pytest.fixture
def small(tiny_model, target):
    return SmallModel(tiny_model("qwen3"), target)


def test_a_step_takes_as_many_calls_as_a_single_text_does(target, small, random_heads, monkeypatch):
    """Gamma calls of a model, each on all texts; one pass of independent heads."""
    batch = small.batched(3)
    batch.reserve(32)
    for slot in range(3):
        batch.texts[slot].start(TextStart(PROMPT, 32))
    with tokens_of_calls(small.model) as calls:
        batch.draft(dict.fromkeys(range(3), chain(4)))
    assert list(map(len, calls)) == [1] * 4

    passes, whole = [], IndependentChoices.logits
    monkeypatch.setattr(IndependentChoices, "logits", lambda *given: passes.append(given[1].shape) or whole(*given))
    batch = Medusa(random_heads(target), target).batched(3)
    states = torch.zeros(9, target.hidden.output_layer.shape[1], dtype=torch.float64)
    for slot in range(3):
        batch.texts[slot].start(TextStart(PROMPT, 32), states)
    batch.draft(dict.fromkeys(range(3), chain(4)))
    assert [shape[0] for shape in passes] == [3]


def test_the_drafters_own_text_is_left_alone(small):
    small.start(TextStart(PROMPT, 32))
    before = small.draft(chain(3)).tokens.tolist()
    batch = small.batched(2)
    batch.reserve(32)
    batch.texts[0].start(TextStart([1, 2, 3], 32))
    batch.draft({0: chain(3)})
    small.commit([before[0]])
    assert small.draft(chain(3)).tokens.tolist()[:1] == before[1:2]


NAMES = [name for name in drafters.names() if issubclass(drafters.get(name), network_drafter.NetworkDrafter)]


@pytest.mark.parametrize("name", sorted({*NAMES} - {"blockwise"}))  # which drafts point masses
def test_a_q_that_is_not_finite_stops_the_run(drafter_values, small_target, monkeypatch, name):
    target = small_target(name, 5, temperature=1.0)
    drafter = begun(drafters.build(drafter_values(name, 5, target), target=target), target, [0, 3, 1])
    monkeypatch.setattr(network_drafter, "all_finite", lambda q: torch.tensor(False))
    drafter.draft(chain(2))
    with pytest.raises(NumericsError, match="not finite"):
        drafter.commit([1])


@pytest.mark.parametrize("name", ["blockwise", "eagle", "grounded", "medusa", "mlp_speculator", "mtp"])
def test_where_calls_are_compiled_the_output_layer_is_multiplied_by_a_kernel(
    drafter_values, small_target, monkeypatch, name
):
    target, drafts, wanted, shapes = small_target(name, 5), [], [], []
    target.compilation = "inductor"

    def kernel(vectors, weight):
        shapes.append(tuple(weight.shape))
        return linear(vectors, weight)

    monkeypatch.setattr(network_drafter, "compiled_product", lambda weight, packages: wanted.append(weight) or kernel)
    for prepared in (False, True):
        drafter = drafters.build(drafter_values(name, 5, target), target=target)
        if prepared:
            drafter.prepare(64, chain(2))
            assert not shapes and drafter.passes == {"products with the output layer": {"pass": "inductor"}}
        drafts.append(begun(drafter, target, [0, 3, 1]).draft(chain(2)).tokens.tolist())
    assert drafts[0] == drafts[1] and set(shapes) == {tuple(weight.shape) for weight in wanted}
