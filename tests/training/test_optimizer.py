import math

import pytest

from specdec.config import typed, validated
from specdec.errors import UsageError
from specdec.training.recipes import Ramp, RateConfig, Weight
from specdec.training.student import rate_factor, warm_up


def rate(schedule: str, warmup_steps: int = 10, decay_share: float = 0.25) -> RateConfig:
    return RateConfig(schedule=schedule, warmup_steps=warmup_steps, decay_share=decay_share)


def test_a_ramp_is_zero_then_a_line_then_flat():
    ramp = Ramp(first=0.2, last=1.0, start=0.25, end=0.75)
    assert [ramp.at(step, 8) for step in range(8)] == pytest.approx([0, 0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert ramp.first_step(8) == 2
    assert Ramp(first=0.0, last=1.0, start=0.0, end=1.0).first_step(8) == 1  # it rises from 0
    assert Ramp(first=0.0, last=0.0, start=0.0, end=1.0).first_step(8) is None


@typed
class Loss:
    heads: Weight


def test_a_number_is_a_weight_that_never_changes():
    constant = validated(Loss, {"heads": 0.2}).heads
    assert {constant.at(step, 5) for step in range(5)} == {0.2}
    ramp = validated(Loss, {"heads": {"first": 0.0, "last": 1.0, "start": 0.5, "end": 1.0}}).heads
    assert [ramp.at(step, 4) for step in range(4)] == [0.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (-0.1, "greater than or equal to 0"),
        (True, "dictionary|object|valid"),
        ({"first": 0.0, "last": 1.0, "start": 0.5, "end": 0.2}, "cannot end its way at 0.2 before it starts at 0.5"),
        ({"first": 0.0, "last": 1.0}, "Missing key loss.heads.start"),
    ],
)
def test_a_bad_weight_is_named(value, sentence):
    with pytest.raises(UsageError, match=sentence) as refused:
        validated(Loss, {"heads": value}, where="loss")
    assert "loss.heads" in str(refused.value)


def test_learning_rates_warm_up_and_fall():
    cosine = [rate_factor(step, 110, rate("cosine")) for step in range(110)]
    assert cosine[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert cosine[10] == 1.0 and cosine[60] == pytest.approx(0.5)
    assert cosine[109] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.99))) and cosine[109] < 3e-4
    assert cosine[10:] == sorted(cosine[10:], reverse=True)
    trapezoid = [rate_factor(step, 100, rate("trapezoid")) for step in range(100)]
    assert trapezoid[10:75] == [1.0] * 65
    assert trapezoid[75:] == pytest.approx([(100 - step) / 25 for step in range(75, 100)])
    assert {rate_factor(step, 100, rate("constant", warmup_steps=0)) for step in range(100)} == {1.0}
    assert [warm_up(step, 3) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
