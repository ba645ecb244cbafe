"""Files that trainings on a target's states write: one safetensors file with the config of the network, the hash of the
weights that it reads, and the trainer's record.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specdec.config import validated
from specdec.errors import UsageError
from specdec.models.load import training_cost
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


@dataclass(frozen=True)
class TrainedKind(Generic[C]):
    """A kind of network that `specdec.train` writes, with the words of its messages.

    Attributes:
        key: of the metadata, which tells files of different kinds apart.
        config: the type of its config.
        group: of its recipes: a training with one writes models/GROUP/RECIPE/GROUP.safetensors.
        name, content: words for a file, and for what it holds.
        several: the name is a plural.
    """

    key: str
    config: type[C]
    group: str
    name: str
    content: str
    several: bool

    def write(self, network: Any, path: Path, target: str, training: dict[str, Any]) -> None:
        """Write a network, folders included; a reader never sees half a file.

        Args:
            network: a module with its typed `config`.
            target: `HiddenStates.identity` of the target that it reads.
            training: JSON values.
        """
        about = {"config": asdict(network.config), "target": target, "training": training}
        weights = {name: weight.detach().cpu().contiguous() for name, weight in network.state_dict().items()}
        write_atomically(path, save(weights, metadata={self.key: json.dumps(about, sort_keys=True)}))

    def read(self, path: str | Path, key: str = "drafter.model") -> TrainedFile[C]:
        """Read a file of `write`, without comparing it with any target.

        Args:
            key: configuration key of the file, for messages.
        Raises:
            UsageError: the file does not exist, is of another kind, or damaged.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})[self.key])
                weights = {name: file.get_tensor(name) for name in file.keys()}
            config = validated(self.config, about["config"], where=self.key)
            return TrainedFile(config, str(about["target"]), dict(about["training"]), weights)
        except FileNotFoundError:
            recipe = re.search(rf"(?:^|/)models/{self.group}/(.+)/{self.group}\.safetensors$", Path(path).as_posix())
            ones = "those that come" if self.several else "the one that comes"
            remedy = f"give a file that specdec.train wrote, or in a drafter pocket for {ones} with specdec"
            if recipe:
                made = "them" if self.several else "it"
                remedy = f"python -m specdec.train +{self.group}={recipe[1]} makes {made}"
            does = "do" if self.several else "does"
            raise UsageError(f"{self.name} {key}={path} {does} not exist: {remedy}.") from None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, UsageError):
            raise UsageError(
                f"{self.name} {key}={path} is not a file of {self.content}: give the {self.group}.safetensors that "
                "specdec.train wrote."
            ) from None

    def about(self, path: Path) -> dict[str, Any]:
        """Return what is recorded of a file that `read` can read: its hash, and what the training cost."""
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with safe_open(path, framework="pt") as stored:
            training = dict(json.loads(stored.metadata()[self.key])["training"])
        return {"sha256": sha256, "training": training_cost(training)}


def shipped_file(name: str) -> Path:
    """Return the file of a network that comes with specdec, trained on the pocket target."""
    return Path(__file__).parents[1] / "pocket" / "heads" / f"{name}.safetensors"
