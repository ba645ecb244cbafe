"""Settings of tests that analyse whole runs."""

from collections.abc import Iterator

import pytest

from specdec.analysis.acceptance import model_sections, prediction, stretches
from specdec.analysis.cost import load_forecast


@pytest.fixture(scope="module", autouse=True)
def few_fits() -> Iterator[None]:
    """Fit at most two kinds of stretches to one split of the prompts, refit seldom, and draw few unknowns; a test of
    how good predictions are asks for more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "KINDS", (1, 2))
        patch.setattr(prediction, "SPLITS", 1)
        patch.setattr(model_sections, "REPLICATES", 40)
        patch.setattr(model_sections, "REFITS", 4)
        patch.setattr(load_forecast, "DRAWS", 100)
        yield
