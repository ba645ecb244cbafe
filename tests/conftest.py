"""Settings of every test, and the list of fixture files; what only one folder of tests uses stays in its conftest."""

import os

import hypothesis
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share two cores, and so do the commands that they start
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
    "fixtures.rounds_tables",
    "fixtures.commands",
    "fixtures.plain_rounds",
]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute on one thread: tiny models run faster, and sums have one order."""
    torch.set_num_threads(1)
