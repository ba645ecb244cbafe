"""Files for what benchmarks measure: `analysis/results/NAME.json`, with the machine that it was measured on."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specdec.experiment.environment import cpu, versions

RESULTS = Path(__file__).resolve().parents[2] / "analysis" / "results"


@pytest.fixture(autouse=True)
def alone() -> None:
    """Refuse a second worker, which would be measured too."""
    assert "PYTEST_XDIST_WORKER" not in os.environ, "benchmarks run one at a time: add -n 0"


@pytest.fixture(scope="module")
def log_figure(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """`log_figure(**values)` keeps one line; the lines of a module are written when its last test is done."""
    rows: list[dict[str, object]] = []
    yield lambda **values: rows.append(values)
    if rows:
        RESULTS.mkdir(exist_ok=True)
        name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
        machine = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu(), "versions": versions()}
        text = json.dumps({**machine, "figures": rows}, indent=1) + "\n"
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
