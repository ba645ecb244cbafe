"""Targets of tiny models, for the tests of this folder."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder


@pytest.fixture(scope="module")
def target_of(tiny_model, tiny_encoder_decoder, sampling) -> Callable[..., Any]:
    """`target_of("llama", "rows")`: temperature 1, so that every logit shows in p. Each is an object of its own."""

    @cache
    def make(name: str, evaluation: str = "packed") -> Any:
        if name.startswith("t5"):
            return EncoderDecoder(tiny_encoder_decoder(name), sampling(temperature=1.0))
        target = Causal(tiny_model(name), sampling(temperature=1.0))
        target.evaluation = evaluation
        return target

    return make
