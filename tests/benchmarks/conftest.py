"""Files for what benchmarks measure: `analysis/results/NAME.json`, with the machine that it was measured on.

A benchmark is run by hand: `python -m pytest -n 0 -m benchmark tests/benchmarks/FILE`. What it asserts is generous, or
about processor time, because a shared machine may be busy; the figures are what counts.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures.measuring import machine

from specdec.ngrams.corpus import open_corpus

RESULTS = Path(__file__).resolve().parents[2] / "analysis" / "results"


@pytest.fixture(autouse=True)
def alone() -> None:
    """Refuse a second worker, which would be measured too."""
    assert "PYTEST_XDIST_WORKER" not in os.environ, "benchmarks run one at a time: add -n 0"


@pytest.fixture(scope="module")
def log_figure(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """`log_figure(**values)` keeps one line; the lines of a module are written when its last test is done.

    Where a module says by `KEY` what names a line, and only some of the file's lines were measured again, these take
    the places of the old ones and say their date; the rest, and the machine and date of the whole, stay.
    """
    rows: list[dict[str, object]] = []
    yield lambda **values: rows.append(values)
    if rows:
        RESULTS.mkdir(exist_ok=True)
        name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
        path, key, found = RESULTS / f"{name}.json", getattr(request.module, "KEY", None), machine()
        if key is not None and path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            again = {row[key]: row for row in rows}
            if not {row[key] for row in old["figures"]} <= again.keys():
                again = {name: {**row, "date": found["date"]} for name, row in again.items()}
                found, rows = old, [again.pop(row[key], row) for row in old["figures"]] + list(again.values())
        path.write_text(json.dumps({**found, "figures": rows}, indent=1) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def copied_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """`copied_library(100)` is a file of so many MB: the standard library again and again, every copy with other names,
    so that not everything is repeated.
    """

    def make(megabytes: int) -> Path:
        path = tmp_path_factory.mktemp("corpus") / "text.txt"
        source = "\n".join(str(block.content) for block in open_corpus(None, None).parts())
        copy = written = 0
        with path.open("w", encoding="utf-8") as stream:
            while written < megabytes * 10**6:
                piece = source.replace("self", f"self{copy}").replace("e", "aeiou"[copy % 5])
                written += stream.write(piece[: megabytes * 10**6 - written])
                copy += 1
        return path

    return make
