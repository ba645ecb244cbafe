"""Settings of every test, and the list of fixture files; what only one folder of tests uses stays in its conftest."""

import atexit
import copy
import gc
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share two cores, and so do the commands that they start
if "SPECDEC_CACHE" not in os.environ:  # one folder for this run of the tests, its workers and its commands
    os.environ["SPECDEC_CACHE"] = tempfile.mkdtemp(prefix="specdec-tests-")
    atexit.register(shutil.rmtree, os.environ["SPECDEC_CACHE"], ignore_errors=True)
# A command in a process of its own fails on a warning that a user would see: pytest's filters end with our process.
os.environ.setdefault("PYTHONWARNINGS", "error::FutureWarning")
# A full collection walks what torch and transformers left behind: half a second each, and a twentieth of all tests.
gc.set_threshold(10_000, 20, 50)
# A busy machine must not fail a test: no deadlines. Found examples are the same on every machine.
hypothesis.settings.register_profile("specdec", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("specdec")

FIXTURES = [  # a file stands below those that it imports
    "fixtures.small_parts",
    "fixtures.tiny_models",
    "fixtures.small_drafters",
    "fixtures.published_models",
    "fixtures.gguf_files",
    "fixtures.tiny_corpus",
    "fixtures.adapted_models",
    "fixtures.rounds_tables",
    "fixtures.commands",
    "fixtures.finished_runs",
    "fixtures.plain_rounds",
]
pytest.register_assert_rewrite(*FIXTURES)  # before a folder's conftest.py imports one


def pytest_configure(config: pytest.Config) -> None:
    """Load the files of fixtures, and torch and transformers with them, where tests run: not in the process that only
    hands them out to workers, which would wait for it before they start.
    """
    if config.getoption("dist", "no") == "no" or config.option.collectonly:
        for name in FIXTURES:
            config.pluginmanager.import_plugin(name)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute on one thread: tiny models run faster, and sums have one order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def texts_of_yaml_are_parsed_once() -> Iterator[None]:
    """Parse a text once: Hydra reads the same twenty files for each of hundreds of compositions."""
    load, known = yaml.load, {}

    def once(stream: Any, Loader: type) -> Any:  # noqa: N803, the library's own name
        text = stream if isinstance(stream, str | bytes) else stream.read()
        if (Loader.__name__, text) not in known:
            known[Loader.__name__, text] = load(text, Loader)
        return copy.deepcopy(known[Loader.__name__, text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_disturbed() -> Iterator[None]:
    """Watch for no other work, so that no test depends on what else the machine does."""
    from specdec import disturbance

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disturbance, "ProcessWatch", lambda *_: disturbance.Watch())
        yield


EXAMINED = ("test_probe.py", "test_planted_faults.py", "test_architectures.py")
"""Tests of the probe itself."""
BY_ROWS = ("test_recurrent_cache.py", "test_recurrent_runs.py", "test_mtp.py")
"""Tests of models that are said to take trees by rows only."""
SAVED = ("architectures", "dtype", "_name_or_path", "transformers_version")
"""Values of a configuration that are added when a model is saved."""


@pytest.fixture(scope="session", autouse=True)
def models_are_probed_once() -> Iterator[None]:
    """Probe each tiny model once for all workers: equal weights in equal modules are equally examined, and tests make
    the same models hundreds of times, in memory and in folders.
    """
    import torch

    from specdec.models import probe as probing  # after HF_HUB_OFFLINE was set
    from specdec.models.decoder import Probed
    from specdec.plugins import code_hash

    folder, examine = Path(os.environ["SPECDEC_CACHE"], "tiny_models"), probing.probe
    folder.mkdir(parents=True, exist_ok=True)

    def once(decoder: Any) -> Any:
        model, weights = decoder.model, decoder.model.state_dict().values()
        if os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0].endswith(EXAMINED) or (
            sum(weight.numel() for weight in weights) > 1_000_000
        ):
            return examine(decoder)
        config = {name: value for name, value in model.config.to_dict().items() if name not in SAVED}
        about = (code_hash(), type(decoder), model, config, model.config._attn_implementation, model.dtype)
        digest = hashlib.sha256(f"{about}{decoder.context_length}{decoder.device}".encode())
        for weight in weights:
            digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        known = folder / f"{digest.hexdigest()}.json"
        if known.is_file():
            return Probed.from_json(json.loads(known.read_text(encoding="utf-8")))
        probed = examine(decoder)
        if probed.attention is None:  # else the model was switched
            own = known.with_suffix(f".{os.getpid()}")  # another worker may be at the same
            own.write_text(json.dumps(asdict(probed)), encoding="utf-8")
            own.replace(known)
        return probed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "probe", once)
        yield


@pytest.fixture(autouse=True)
def models_pass_their_probe(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test whose model took another way than it was told to: a fault of ours would be served by rows, and so
    hidden.
    """
    yield
    if request.path.name not in (*EXAMINED, *BY_ROWS):
        records = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
        assert not [record.getMessage() for record in records if record.name == "specdec.models.probe"]
