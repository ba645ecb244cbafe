"""Models of the tests in this folder, which build drafters of the same few hundreds of times, are read once."""

from collections.abc import Iterator
from functools import cache

import pytest
from fixtures.tiny_models import unprobed

from specdec.drafters import parallel, small_model
from specdec.models.load import load_model
from specdec.ngrams import source_model


@pytest.fixture(scope="module")
def models_opened_once() -> Iterator[None]:
    """Read the weights of a drafter's model from its files once in a module, and probe none."""
    with pytest.MonkeyPatch.context() as patch, unprobed():
        for module in (parallel, small_model, source_model):
            patch.setattr(module, "load_model", cache(load_model))
        yield
