"""A float64 target of two layers, and heads of every make."""

from typing import Any

import pytest

from specdec.targets.causal import Causal

MAKES: dict[str, dict[str, Any]] = {
    "medusa": {},
    "medusa_wide": {"width": 24, "layers": 2, "output": "shared"},
    "medusa_prefix": {"prefix": True},
    "grounded": {"grounded": True},
    "grounded_deep": {"grounded": True, "layers": 2, "width": 24, "output": "own"},
    "attention": {"grounded": True, "mixer": "attention", "prefix": True, "width": 24, "layers": 2},
    "gru": {"grounded": True, "mixer": "gru", "layers": 2, "prefix": True},
}


@pytest.fixture(scope="module")
def target(tiny_llama, sampling):
    return Causal(tiny_llama(23), sampling(temperature=0.0))


@pytest.fixture(params=MAKES)
def make(request):
    return MAKES[request.param]
