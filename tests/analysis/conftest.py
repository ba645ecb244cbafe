"""Settings of tests that analyse whole runs."""

import sys
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure

from specdec.analysis.acceptance import model_sections, prediction, stretches
from specdec.analysis.cost import load_forecast
from specdec.analysis.figures import style


@pytest.fixture(scope="module", autouse=True)
def few_fits() -> Iterator[None]:
    """Fit one kind of stretches to one split of the prompts, refit seldom, and draw few unknowns; a test of how good
    predictions are asks for more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "KINDS", (1,))
        patch.setattr(prediction, "SPLITS", 1)
        patch.setattr(model_sections, "REPLICATES", 40)
        patch.setattr(model_sections, "REFITS", 4)
        patch.setattr(load_forecast, "DRAWS", 100)
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figure, where words and numbers are what counts: a figure has its title."""

    def draw(*_: object, title: str = "", **__: object) -> Figure:
        figure = Figure()
        figure.suptitle(title)
        return figure

    drawn = style.in_style(draw).__code__
    for module in [module for name, module in sys.modules.items() if name.startswith("specdec.analysis")]:
        for name, value in list(vars(module).items()):
            if getattr(value, "__wrapped__", None) and getattr(value, "__code__", None) == drawn:
                monkeypatch.setattr(module, name, draw)
