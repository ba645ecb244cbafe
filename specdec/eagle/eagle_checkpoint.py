"""EAGLE networks on disk: one safetensors file with the config and the hash of the weights that were drafted for."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specdec.eagle.block_network import BlockNetwork
from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.eagle_network import EagleNetwork
from specdec.eagle.feature_network import FeatureNetwork
from specdec.errors import UsageError
from specdec.heads.trained_file import TrainedKind, shipped_file
from specdec.targets.base import Target

EAGLE = TrainedKind("specdec.eagle", EagleConfig, "eagle", "EAGLE network", "such a network", several=False)
read_eagle, save_eagle, shipped_eagle = EAGLE.read, EAGLE.write, partial(shipped_file, "eagle")


def load_eagle(path: str | Path, target: Target) -> EagleNetwork:
    """Load a network for the target that it was trained on, in its dtype and on its device.

    Raises:
        UsageError: it was trained on other weights (both hashes are named), the target has no hidden states, or the
            tensors are not those of the config.
    """
    stored = read_eagle(path)
    hidden = target.hidden
    if stored.target != hidden.identity:
        raise UsageError(
            f"EAGLE network drafter.model={path} was trained on a target whose weights have the hash "
            f"{stored.target[:16]}; this one's have {hidden.identity[:16]}: use the target that it was trained on, or "
            "train one for this target with specdec.train."
        )
    embedding, output = hidden.embedding, hidden.output_layer
    with torch.device("meta"):  # makes no weights, because those of the file are assigned
        network = made(stored.config, embedding, output)
    wanted = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    shapes = {name: tuple(weight.shape) for name, weight in stored.weights.items()}
    for name, shape in wanted.items():
        if name not in shapes:
            raise UsageError(f"Bad value drafter.model={path}: the tensor {name} is missing; use a complete file.")
        if shape != shapes[name]:
            raise UsageError(
                f"Bad value drafter.model={path}: the tensor {name} has the shape {list(shapes[name])}, and config and "
                f"target ask for {list(shape)}; use the target and the config that the file was made for."
            )
    extra = sorted(shapes.keys() - wanted.keys())
    if extra:
        raise UsageError(
            f"Bad value drafter.model={path}: the tensor {extra[0]} has no place in the network of its config; use "
            "the config that the file was made for."
        )
    network.load_state_dict(stored.weights, assign=True)
    assert isinstance(network, EagleNetwork), "specdec.train writes no others"
    return network.to(target.device, output.dtype).eval().requires_grad_(False)


def made(config: EagleConfig, embedding: Tensor, output: Tensor) -> FeatureNetwork:
    """Return a network of the config's form, with weights at random; see `FeatureNetwork`."""
    return (BlockNetwork if config.form == "dflash" else EagleNetwork)(config, embedding, output)
