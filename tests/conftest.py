"""Settings of every test, and the list of fixture files; what only one folder of tests uses stays in its conftest."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share two cores, and so do the commands that they start
if "SPECDEC_CACHE" not in os.environ:  # one folder for this run of the tests, its workers and its commands
    os.environ["SPECDEC_CACHE"] = tempfile.mkdtemp(prefix="specdec-tests-")
    atexit.register(shutil.rmtree, os.environ["SPECDEC_CACHE"], ignore_errors=True)
# What a user would see on standard error, a command in a process of its own fails on: pytest's filters end with ours.
os.environ.setdefault("PYTHONWARNINGS", "error::FutureWarning")
# A busy machine must not fail a test: no deadlines. Found examples are the same on every machine.
hypothesis.settings.register_profile("specdec", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("specdec")

pytest_plugins = [  # a file stands below those that it imports
    "fixtures.small_parts",
    "fixtures.enumeration",
    "fixtures.tiny_models",
    "fixtures.small_drafters",
    "fixtures.published_models",
    "fixtures.tiny_corpus",
    "fixtures.adapted_models",
    "fixtures.rounds_tables",
    "fixtures.commands",
    "fixtures.finished_runs",
    "fixtures.plain_rounds",
]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute on one thread: tiny models run faster, and sums have one order."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def models_pass_their_probe(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test whose model took another way than it was told to: a fault of ours would be served by rows, and so
    hidden.
    """
    yield
    if request.path.name not in ("test_probe.py", "test_planted_faults.py", "test_architectures.py"):
        records = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
        assert not [record.getMessage() for record in records if record.name == "specdec.models.probe"]
