"""A model over several devices: its weights shared out by tensor parallelism, or its layers placed one by one.

Both are transformers' own ways of loading; here stands what is checked before they begin, and what they leave behind.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
import yaml
from torch import Tensor

from specdec import ranks
from specdec.errors import ModelLoadError, UsageError, near_misses
from specdec.models.random_weights import RANDOM

DeviceMap = str | dict[str, int | str]


def sharded(name: str, size: int, device: torch.device) -> dict[str, Any]:
    """Meet the other processes, `size` in all, and return the options with which transformers loads this rank's share
    of a model, a folder or a hub id. Raises UsageError: heads or widths that `size` does not divide, a device that
    transformers would not use; ModelLoadError: no configuration, a model whose layers transformers cannot share out.
    """
    from transformers import AutoConfig
    from transformers.distributed import DistributedConfig

    said = f"Bad value target.tensor_parallel={size}:"
    if name == RANDOM:
        raise UsageError(f"{said} random weights are made, not read in shares; give a model's folder or hub id.")
    available = torch.accelerator.current_accelerator() or torch.device("cpu")
    if available.type != device.type:
        raise UsageError(
            f"{said} it uses the {available.type} devices of this machine, and target.device is {device.type}; use "
            "target.device=auto (an empty CUDA_VISIBLE_DEVICES hides the GPUs)."
        )
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False).get_text_config()
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Model {name} cannot be loaded: {' '.join(str(error).split())[:300]}") from None
    if not config.base_model_tp_plan:
        raise ModelLoadError(
            f"Model {name} ({config.model_type}) has no plan in transformers by which its layers are shared out: use "
            "target.tensor_parallel=1."
        )
    heads = config.num_attention_heads
    for count, what in (
        (heads, "attention heads"),
        (getattr(config, "num_key_value_heads", None) or heads, "key-value heads"),
        (getattr(config, "intermediate_size", None) or 0, "columns in its MLP"),
    ):
        if count % size:
            raise UsageError(
                f"{said} model {name} has {count} {what}, which {size} processes cannot share evenly; use a number "
                "that divides them."
            )
    ranks.join(size, device.type)
    return {"distributed_config": DistributedConfig(tp_size=size)}


def mapped(device_map: DeviceMap) -> dict[str, Any]:
    """Return the options with which transformers places the layers of a model as `target.device_map` says; those on
    disk are kept in a temporary folder while it is in use. Raises UsageError: no map in a file, a missing device.
    """
    placed = device_map
    if isinstance(device_map, str) and device_map != "auto":
        try:
            found = yaml.safe_load(Path(device_map).expanduser().read_text(encoding="utf-8"))  # JSON is YAML too
        except OSError as error:
            raise UsageError(
                f"Bad value target.device_map={device_map}: it cannot be read ({error.strerror}); give auto, a YAML or "
                "JSON file, or a mapping of modules to devices."
            ) from None
        except (yaml.YAMLError, ValueError):
            found = None
        if not isinstance(found, dict) or not found:
            raise UsageError(
                f"Bad value target.device_map={device_map}: the file holds no mapping of modules to devices, such as "
                '{"model.layers.0": "cpu"}.'
            )
        placed = {str(module): place for module, place in found.items()}
    gpus = torch.cuda.device_count()
    devices = ["cpu", "disk", *range(gpus), *(f"cuda:{number}" for number in range(gpus)), *(["cuda"] if gpus else [])]
    for place in placed.values() if isinstance(placed, Mapping) else ():
        if type(place) not in (int, str) or place not in devices:  # False and 0.0 equal the number 0
            raise UsageError(
                f"Bad value target.device_map: there is no device {place!r}; use cpu, disk, or one of the {gpus} GPUs "
                "by its number."
            )
    folder = tempfile.TemporaryDirectory(prefix="specdec-offload-")
    _OFFLOADED.append(folder)
    return {"device_map": placed, "offload_folder": folder.name}


def check_modules(model: Any, device_map: Any) -> None:
    """Raise UsageError for the first module of a map that the model does not have: transformers would ignore it."""
    if not isinstance(device_map, Mapping):
        return
    known = {name for name, _ in (*model.named_modules(), *model.named_parameters())}
    for name in device_map:
        if name not in known:
            raise UsageError(
                f"Bad value target.device_map: the model has no module {name!r}.{near_misses(name, sorted(known))}"
            )


_OFFLOADED: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def placement(model: Any) -> dict[str, int]:
    """Return how many modules of a model lie on each device, by its name; empty for a model that is in one piece."""
    places = getattr(model, "hf_device_map", {}).values()
    return dict(Counter(f"cuda:{place}" if isinstance(place, int) else str(place) for place in places))


def whole(weight: Tensor) -> Tensor:
    """Return all of a weight, gathered from the ranks where each holds a share. Every rank has to ask at once."""
    return weight.full_tensor() if _shared(weight) else weight


def own_share(weight: Tensor) -> Tensor | None:
    """Return the part of a weight that this process holds in memory; None for one that lies on disk."""
    if weight.device.type == "meta":
        return None
    return weight.to_local() if _shared(weight) else weight


def _shared(weight: Any) -> TypeGuard[Any]:
    if not torch.distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def spread_in_words(placed: Mapping[str, int]) -> str:
    """Return a placement as text: "cpu: 3 modules, disk: 1 module"."""
    return ", ".join(f"{device}: {count} module{'s' * (count != 1)}" for device, count in placed.items())
