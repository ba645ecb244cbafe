"""Weights that are spoiled at random, headers and configs: each is loaded, or refused in one sentence with code 2."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_checkpoints import PUBLISHED, write_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.answers import answered, files_of, spoiled, torn
from specdec.drafters import drafters
from specdec.models.load import load_model
from specdec.published.checkpoint_files import open_checkpoint
from specdec.published.network_files import TRAINED_EAGLE, TRAINED_HEADS, shipped_file
from specdec.published.recognise import matching
from specdec.targets.causal import Causal

pytestmark = pytest.mark.slow  # many examples of bad input


SETTINGS = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORMATS = ("medusa_1", "medusa_vllm_some_tokens", "hydra_prefix", "accelerator", "accelerator_tied")


def opened(content: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    """Return the header of a safetensors file, and what makes a file of another header."""
    (size,) = struct.unpack("<Q", content[:8])

    def packed(header: Any) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    return json.loads(content[8 : 8 + size]), packed


def of_header(content: bytes) -> st.SearchStrategy[bytes]:
    """Safetensors with a spoiled header, or torn anywhere."""
    header, packed = opened(content)
    return st.one_of(spoiled(header).map(packed), torn(content))


def write_one_spoiled(folder: Path, file: str, weights: bytes, config: Any, data: st.DataObject) -> None:
    """Write weights and config of a checkpoint, one of the two spoiled."""
    if data.draw(st.booleans()):
        config = data.draw(spoiled(config))
    else:
        weights = data.draw(of_header(weights))
    (folder / file).write_bytes(weights)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def target(tiny_llama, sampling):
    return Causal(tiny_llama(40, context=128), sampling(temperature=0.0))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """`published[name]` is the content of the weights and of the config of a tiny checkpoint of each format."""
    found = {}
    for name in FORMATS:
        folder = tmp_path_factory.mktemp(name)
        write_checkpoint(folder, PUBLISHED[name], 16, 40)
        found[name] = ((folder / PUBLISHED[name].file).read_bytes(), json.loads((folder / "config.json").read_text()))
    return found


@pytest.mark.parametrize("name", FORMATS)
@SETTINGS
@given(data=st.data())
def test_published_heads(tmp_path: Path, published: Any, target: Any, group_values: Any, name: str, data: Any) -> None:
    write_one_spoiled(tmp_path, PUBLISHED[name].file, *published[name], data)
    values = group_values("drafter", PUBLISHED[name].drafter, model=str(tmp_path))
    answered(lambda: drafters.build(values, target=target))


INDEX = {"metadata": {"total_size": 3}, "weight_map": {"a": "model.safetensors"}}


@SETTINGS
@given(index=files_of(INDEX))
def test_indexes_of_shards(tmp_path: Path, published: Any, index: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(published["medusa_1"][0])
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    answered(lambda: matching(open_checkpoint(str(tmp_path))))


@pytest.fixture(scope="module")
def model_files(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(folder)
    return (folder / "model.safetensors").read_bytes(), json.loads((folder / "config.json").read_text())


@SETTINGS
@given(data=st.data())
def test_models(tmp_path: Path, model_files: Any, data: Any) -> None:
    write_one_spoiled(tmp_path, "model.safetensors", *model_files, data)
    answered(lambda: load_model(str(tmp_path), dtype=None, device=torch.device("cpu"), attention="auto"))


@pytest.mark.parametrize("kind", ["heads", "eagle"])
@SETTINGS
@given(data=st.data())
def test_files_of_trainings(tmp_path: Path, target: Any, kind: str, data: Any) -> None:
    shipped = shipped_file("medusa" if kind == "heads" else "eagle")
    load = (TRAINED_HEADS if kind == "heads" else TRAINED_EAGLE).load
    header, packed = opened(shipped.read_bytes())
    about = data.draw(spoiled({key: json.loads(value) for key, value in header["__metadata__"].items()}))
    header["__metadata__"] = {key: json.dumps(value) for key, value in about.items()} if isinstance(about, dict) else {}
    path = tmp_path / "heads.safetensors"
    path.write_bytes(packed(header))
    answered(lambda: load(path, target))
