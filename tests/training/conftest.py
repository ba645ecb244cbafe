"""A tiny Llama to train on the states of, and what YAML would give for such a training."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.state import AcceleratorState
from accelerate.utils import memory
from fixtures.adapted_models import completed


@pytest.fixture(autouse=True)
def fresh_accelerate(monkeypatch):
    """Forget the first Accelerator's settings, which are kept for the whole process, and let it collect no garbage:
    that walks all that the tests before have left.
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setattr(memory, "gc", SimpleNamespace(collect=lambda: None))


@pytest.fixture(scope="session")
def target_folder(tiny_model, tmp_path_factory):
    """Save a tiny Llama as `from_pretrained` reads it, in float32."""
    folder = tmp_path_factory.mktemp("target")
    deepcopy(tiny_model("llama")).float().save_pretrained(folder)
    return folder


@pytest.fixture
def state_values(group_values, target_folder, tmp_path):
    """`state_values("eagle", "pocket", sequence_length=24)` gives what YAML would: a shipped recipe, with 8 steps."""

    def make(group: str, name: str, micro_batch: int, **data: Any) -> dict[str, Any]:
        text = group_values("head_data", "python_sources") | {"source": group_values("corpus", "text", path="none")}
        text |= {"sequences": None, "passes": None, "steps": 8} | data
        text["states"] |= {"cache": "none"}
        values = group_values(group, name) | {
            "target": group_values("target", "causal", model=str(target_folder)),
            "data": text,
            "micro_batch": micro_batch,
            "bfloat16": False,
            "save_dtype": "float32",
        }
        return completed(values, group, tmp_path)

    return make
