"""The network that `drafter.model` names: a file that `specdec.train` wrote, or a published checkpoint."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specdec.config import validated
from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.eagle_network import eagle_network
from specdec.errors import UsageError
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads
from specdec.models.load import content_hash, training_cost
from specdec.models.model_files import SMOLLM2, check_place
from specdec.progress import tell
from specdec.published.checkpoint_files import PICKLES, open_checkpoint
from specdec.published.recognise import NetworkFormat, recognise, recorded_target
from specdec.targets.base import Target
from specdec.text.lines import file_digest
from specdec.text.writing import write_atomically

_SMOLLM2_OUTPUT = (49152, 576)  # tokens and width of SmolLM2-135M's output layer


def load_published(model: str, target: Target, drafter: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load the network of a published checkpoint, a folder or hub id, for a target and the drafter of this name; with
    format, the target's name in it, commit, and the hash of a folder's safetensors, "" for a hub id. Raises
    ModelLoadError: see `open_checkpoint`, `recognise`, `NetworkFormat.load`; UsageError: no hidden states.
    """
    files = open_checkpoint(model)
    name, form = recognise(files, drafter)
    assert isinstance(form, NetworkFormat)
    network = form.load(files, target, **options).eval().requires_grad_(False)
    about = {"format": name, "made_for": recorded_target(files), "commit": files.commit}
    return network, about | {"sha256": content_hash(str(Path(model).expanduser()))}


@dataclass(frozen=True)
class TrainedFile:
    """The contents of a file."""

    config: Any  # HeadsConfig or EagleConfig
    target: str  # hash of the weights that the network reads (`HiddenStates.identity`)
    training: dict[str, Any]  # how it was made, as the trainer recorded it
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class TrainedKind:
    """A kind of network that `specdec.train` writes, with the words of its messages."""

    config: type[Any]
    network: Callable[[Any, Tensor, Tensor], Any]  # of a config, the target's input embeddings and output layer
    group: str  # of its recipes: one writes models/GROUP/RECIPE/GROUP.safetensors, with the metadata specdec.GROUP
    name: str  # of a file
    content: str  # of it
    several: bool  # the name is a plural

    def write(self, network: Any, path: Path, target: str, training: dict[str, Any]) -> None:
        """Write a network whole or not at all, with its config, the identity of its target's states and JSON values."""
        about = {"config": asdict(network.config), "target": target, "training": training}
        weights = {name: weight.detach().cpu().contiguous() for name, weight in network.state_dict().items()}
        write_atomically(path, save(weights, metadata={f"specdec.{self.group}": json.dumps(about, sort_keys=True)}))

    def read(self, path: str | Path, key: str = "drafter.model") -> TrainedFile:
        """Read a file of `write`, which stands at this key of the configuration, whatever target it was made for.
        Raises UsageError: the file does not exist, is of another kind, or damaged.
        """
        check_place(str(Path(path).absolute()), f"File {key}={path}", f"give a file of {self.content}, or pocket")
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})[f"specdec.{self.group}"])
                weights = {name: file.get_tensor(name) for name in file.keys()}
            config = validated(self.config, about["config"])
            return TrainedFile(config, str(about["target"]), dict(about["training"]), weights)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, UsageError):
            raise UsageError(
                f"{self.name} {key}={path} is not a file of {self.content}: give the {self.group}.safetensors that "
                "specdec.train wrote."
            ) from None

    def load(self, path: str | Path, target: Target, alike: bool = False) -> Any:
        """Load a network for the target that it was trained on, in its dtype and on its device; where `alike`, also for
        another one of the same sizes, which is said. Raises UsageError: it was trained on other weights (both hashes
        are named), the target has no hidden states, or the tensors are not those of the config.
        """
        stored, hidden = self.read(path), target.hidden
        if stored.target != hidden.identity and alike:
            tell(
                f"{self.name} drafter.model=pocket learned from the GGUF file of SmolLM2-135M-Instruct, and this "
                "target has other weights of the same sizes: outputs stay its own, and the more the weights differ, "
                "the fewer drafts are accepted."
            )
        elif stored.target != hidden.identity:
            several = ("they", "were", "heads for this one")
            they, were, one = several if self.several else ("it", "was", "one for this target")
            raise UsageError(
                f"{self.name} drafter.model={path} {were} trained on a target whose weights have the hash "
                f"{stored.target[:16]}; this one's have {hidden.identity[:16]}: use the target that {they} {were} "
                f"trained on, or train {one} with specdec.train."
            )
        embedding, output_layer = hidden.embedding, hidden.output_layer  # a table target makes them when asked
        with torch.device("meta"):  # makes no weights, because those of the file are assigned
            network = self.network(stored.config, embedding, output_layer)
        wanted = {name: list(weight.shape) for name, weight in network.state_dict().items()}
        shapes = {name: list(weight.shape) for name, weight in stored.weights.items()}
        for name in sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name)):
            if name not in shapes:
                fault = "is missing; use a complete file"
            elif name not in wanted:
                fault = "has no place in the network of its config; use the config that the file was made for"
            else:
                fault = f"has the shape {shapes[name]}, and config and target ask for {wanted[name]}; use the target "
                fault += "and the config that the file was made for"
            raise UsageError(f"Bad value drafter.model={path}: the tensor {name} {fault}.")
        network.load_state_dict(stored.weights, assign=True)
        return network.to(target.device, output_layer.dtype).eval().requires_grad_(False)

    def open(
        self, model: str, target: Target, drafter: str, shipped: str, **options: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Load the network that `drafter.model` names, for the drafter of this name; with the hash of a training's file
        and what that cost, otherwise see `load_published`.

        The model is a file that `specdec.train` wrote (or its folder), a published checkpoint by its folder or hub id,
        or `pocket`: the `shipped` network of this name for the pocket target, or for one of SmolLM2-135M's sizes.
        Raises UsageError: see `load` and `load_published`.
        """
        alike, path = False, Path(model).expanduser()
        if model == "pocket":
            alike = tuple(target.hidden.output_layer.shape) == _SMOLLM2_OUTPUT
            path = shipped_file(shipped, SMOLLM2 if alike else "pocket")
        if (path / f"{self.group}.safetensors").is_file():
            path = path / f"{self.group}.safetensors"
        elif path.suffix in PICKLES or not path.is_file() and path.suffix != ".safetensors":
            return load_published(model, target, drafter, **options)
        for name, value in options.items():
            if value is not None:
                raise UsageError(
                    f"Bad value drafter.{name}: a file that specdec.train wrote records its {name}; use null, or give "
                    "a published checkpoint."
                )
        if model == "pocket" and not path.is_file():
            words = ("heads", "some", shipped, "their") if self.several else ("network", "one", "pocket", "its")
            thing, example, recipe, whose = words
            if alike:
                thing, recipe = f"{thing} of SmolLM2", f"{shipped}_{SMOLLM2}" if self.several else SMOLLM2
            raise UsageError(
                f"Bad value drafter.model=pocket: this installation has no {thing} {shipped!r}; train {example} with "
                f"python -m specdec.train +{self.group}={recipe} and give {whose} file."
            )
        network = self.load(path, target, alike)
        sha256 = file_digest(path, f"File drafter.model={model}")
        return network, {"sha256": sha256, "training": training_cost(self.read(path).training)}


def shipped_file(name: str, target: str = "pocket") -> Path:
    """Return the file of a network that comes with specdec, trained on the pocket target or SmolLM2-135M-Instruct."""
    folder = Path(__file__).parents[1] / "pocket" / "heads"
    return (folder / SMOLLM2 if target == SMOLLM2 else folder) / f"{name}.safetensors"


TRAINED_HEADS = TrainedKind(HeadsConfig, Heads, "heads", "Heads", "heads", several=True)
TRAINED_EAGLE = TrainedKind(EagleConfig, eagle_network, "eagle", "EAGLE network", "such a network", several=False)
