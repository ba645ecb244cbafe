"""Files that trainings on a target's states write: one safetensors file with the config of the network, the hash of the
weights that it reads, and the trainer's record.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specdec.config import validated
from specdec.errors import UsageError
from specdec.text.writing import write_atomically

C = TypeVar("C")


@dataclass(frozen=True)
class TrainedFile(Generic[C]):
    """The contents of a file.

    Attributes:
        target: hash of the weights that the network reads (`HiddenStates.identity`).
        training: how it was made, as the trainer recorded it.
    """

    config: C
    target: str
    training: dict[str, Any]
    weights: dict[str, Tensor]


def write_trained(kind: str, network: Any, path: Path, target: str, training: dict[str, Any]) -> None:
    """Write a network, folders included; a reader never sees half a file.

    Args:
        kind: key of the metadata, which tells files of different kinds apart.
        network: a module with its typed `config`.
        target: `HiddenStates.identity` of the target that it reads.
        training: JSON values.
    """
    about = {"config": asdict(network.config), "target": target, "training": training}
    weights = {name: weight.detach().cpu().contiguous() for name, weight in network.state_dict().items()}
    write_atomically(path, save(weights, metadata={kind: json.dumps(about, sort_keys=True)}))


def read_trained(kind: str, config_type: type[C], path: str | Path) -> TrainedFile[C]:
    """Read a file of `write_trained`, without comparing it with any target.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is of another kind, or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[kind])
            weights = {name: file.get_tensor(name) for name in file.keys()}
        config = validated(config_type, about["config"], where=kind)
        return TrainedFile(config, str(about["target"]), dict(about["training"]), weights)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, UsageError) as error:
        raise ValueError(f"{path} is not a file of {kind}") from error


def training_of(kind: str, path: str | Path) -> dict[str, Any]:
    """Return the trainer's record of a file that `read_trained` can read; no weights are read."""
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()[kind])["training"])
