"""Published checkpoints that are heads on the target's hidden states: from files to a network that drafts."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from specdec.heads.draft_heads import DraftHeads
from specdec.models.load import content_hash
from specdec.published.checkpoint_files import CheckpointFiles, open_checkpoint
from specdec.published.recognise import CheckpointFormat, recognise, recorded_target
from specdec.targets.base import Target


class HeadsFormat(CheckpointFormat):
    """A format of heads."""

    @abstractmethod
    def load(self, files: CheckpointFiles, target: Target) -> DraftHeads:
        """Return the heads for this target, in its dtype and on its device.

        Raises:
            ModelLoadError: other tensors than those of the format, or another target's sizes.
        """


class PublishedHeads(NamedTuple):
    """Heads, and what is recorded about their checkpoint.

    Attributes:
        sha256: of a folder's safetensors; "" for a hub id, whose commit is in `origin`.
        origin: format, the target's name in the checkpoint, commit.
    """

    heads: DraftHeads
    sha256: str
    origin: dict[str, Any]


def load_published_heads(model: str, target: Target, drafter: str) -> PublishedHeads:
    """Load a published checkpoint of heads for a target.

    Args:
        model: a folder or a hub id.
        drafter: name of the drafter that will use them.
    Raises:
        ModelLoadError: see `open_checkpoint`, `recognise` and `HeadsFormat.load`.
        UsageError: a target without hidden states.
    """
    files = open_checkpoint(model)
    name, found = recognise(files, drafter)
    assert isinstance(found, HeadsFormat), f"{name} says that {drafter} reads it, which reads heads"
    heads = found.load(files, target).eval().requires_grad_(False)
    origin = {"format": name, "made_for": recorded_target(files), "commit": files.commit}
    return PublishedHeads(heads, content_hash(str(Path(model).expanduser())), origin)


def fill(network: nn.Module, weights: Mapping[str, Tensor], target: Target) -> None:
    """Put weights, in the target's dtype and on its device, into a network without weights (one made on `meta`).

    Buffers that are no weights, such as tables of positions, keep their dtype.
    """
    dtype = target.hidden.output_layer.dtype
    network.load_state_dict({name: weight.to(target.device, dtype) for name, weight in weights.items()}, assign=True)
    network.to(target.device)
