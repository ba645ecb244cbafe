"""Models of the tests in this folder, which build drafters of the same few hundreds of times, are read once."""

from collections.abc import Iterator
from functools import cache

import pytest
from fixtures.tiny_models import unprobed

from specdec.drafters import model_bigram, small_model
from specdec.models.load import load_model


@pytest.fixture(scope="module")
def models_opened_once() -> Iterator[None]:
    """Read the weights of a drafter's model from its files once in a module, and probe none."""
    with pytest.MonkeyPatch.context() as patch, unprobed():
        for module in (small_model, model_bigram):
            patch.setattr(module, "load_model", cache(load_model))
        yield
