"""The loss of a training-time test, against one that makes every row of every step by itself, without masks."""

import pytest
import torch
import torch.nn.functional as F
from fixtures.slow_eagle import SlowEagle, doubles

from specdec.config import validated
from specdec.errors import UsageError
from specdec.targets.causal import Causal
from specdec.training.recipes import EagleLossConfig
from specdec.training.students.eagle_student import EagleLosses

EAGLE1 = dict(form="eagle1", boundaries=[], own_output=False)
STEPS, DECAY = 3, 0.8
TEXTS = torch.tensor([[5, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
SCORED = torch.tensor([[1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool()


@pytest.fixture(scope="module")
def target(tiny_llama, sampling):
    return Causal(tiny_llama(23), sampling(temperature=0.0))


def loss_config(**changes) -> EagleLossConfig:
    values = dict(steps=STEPS, later=1.0, decay=DECAY, teacher=1.0, cross_entropy=1.0, regression=0.0, noise=0.0)
    return validated(EagleLossConfig, values | changes)


def scales() -> list[float]:
    return [DECAY**step / int(SCORED[:, step + 2 :].sum()) for step in range(STEPS)]


def fast(network, target, config):
    features, logits = target.hidden.sequence(TEXTS, *network.config.offsets(target.hidden.layers))
    return EagleLosses(network, config)(TEXTS, SCORED, scales(), features.clone(), logits.clone())


def slow_steps(slow, network, target, text):
    """(step, place of the predicted token, carried state, logits), each drafted from its round's start on."""
    features = target.hidden.sequence(torch.tensor([text]), *network.config.offsets(target.hidden.layers))[0][0]
    rows = slow.text_rows(text, features[:-1].tolist())
    for i, (state, logits, own) in enumerate(rows):
        above = [row[2] for row in rows[:i]]
        for step in range(STEPS):
            if i + step + 2 >= len(text):
                break
            if step:
                above.append(own)
                state, logits, own = slow.row(text[i + step + 1], state, i + step, above)
            yield step, i + step + 2, state, logits


@pytest.mark.parametrize("teacher", [1.0, 0.3])
@pytest.mark.parametrize("form", [EAGLE1, dict(draft_vocabulary=11), dict(norm_output=True, layers=2, fc_norm=True)])
def test_the_loss_is_that_of_rounds_drafted_one_by_one(target, random_eagle, form, teacher):
    network = random_eagle(target, **form)
    regression = 0.7 if network.config.form == "eagle1" else 0.0
    ids = network.drafted_ids.tolist()
    slow = SlowEagle(network.state_dict(), network.config, target.hidden.embedding, target.hidden.output_layer)
    entropy, distance = 0.0, 0.0
    for text, scored in zip(TEXTS.tolist(), SCORED.tolist(), strict=True):
        last, laws = (each[0] for each in target.hidden.sequence(torch.tensor([text]), 0))
        for step, place, state, logits in slow_steps(slow, network, target, text):
            if not scored[place]:
                continue
            scale = scales()[step]
            distance += scale * float(F.smooth_l1_loss(doubles(state), last[place - 1])) if regression else 0.0
            can_be_drafted = int(laws[place - 1].argmax()) in ids and (teacher == 1.0 or text[place] in ids)
            if can_be_drafted:
                law = laws[place - 1][ids].softmax(0)
                own = doubles(logits).log_softmax(0)
                entropy -= scale * teacher * float((law * own).sum())
                if teacher < 1.0:
                    entropy -= scale * (1 - teacher) * float(own[ids.index(text[place])])
    found = fast(network, target, loss_config(teacher=teacher, regression=regression, cross_entropy=0.5))
    assert float(found[0]) == pytest.approx(0.5 * entropy, rel=1e-9)
    assert float(found[1]) == pytest.approx(regression * distance, rel=1e-9)


@pytest.mark.parametrize("form", [EAGLE1, dict(draft_vocabulary=11, fc_norm=True)])
def test_the_gradient_is_the_slope_of_the_loss(target, random_eagle, form):
    network = random_eagle(target, **form).requires_grad_(True)
    config = loss_config(regression=0.7 if network.config.form == "eagle1" else 0.0, teacher=0.6)
    sum(fast(network, target, config)).backward()
    generator = torch.Generator().manual_seed(0)
    ways = [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in network.parameters()]
    slope = sum(float((weight.grad * way).sum()) for weight, way in zip(network.parameters(), ways, strict=True))

    def moved(distance: float) -> float:
        with torch.no_grad():
            for weight, way in zip(network.parameters(), ways, strict=True):
                weight.add_(way, alpha=distance)
            return float(sum(fast(network, target, config)))

    step = 1e-6
    beyond, before = moved(step), moved(-2 * step)
    assert slope == pytest.approx((beyond - before) / (2 * step), rel=1e-5)


def test_noise_is_on_what_is_read_and_not_on_what_is_to_be_met(target, random_eagle):
    network = random_eagle(target, **EAGLE1)
    exact = fast(network, target, loss_config(regression=1.0))
    torch.manual_seed(1)
    disturbed = [fast(network, target, loss_config(regression=1.0, noise=0.01)) for _ in range(2)]
    assert disturbed[0][0] != disturbed[1][0] and disturbed[0] != exact
    assert float(disturbed[0][1]) == pytest.approx(float(exact[1]), rel=0.05)


@pytest.mark.parametrize("key", ["steps", "decay", "cross_entropy"])
def test_values_without_a_meaning_are_refused(key):
    with pytest.raises(UsageError, match=key):
        loss_config(**{key: 0})
