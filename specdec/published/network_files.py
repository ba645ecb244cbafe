"""The network that `drafter.model` names: a file that `specdec.train` wrote, or a published checkpoint."""

from pathlib import Path
from typing import Any, NamedTuple

from specdec.models.load import content_hash
from specdec.published.checkpoint_files import PICKLES, open_checkpoint
from specdec.published.recognise import recognise, recorded_target
from specdec.targets.base import Target


def trained_path(model: str, shipped: Path, name: str) -> Path | None:
    """Return the file of a training: `shipped` for `pocket`, a file, or the one called `name` in a folder. None where
    `model` is a published checkpoint, by its folder or hub id.
    """
    path = shipped if model == "pocket" else Path(model).expanduser()
    if (path / name).is_file():
        return path / name
    return None if path.suffix in PICKLES or not path.is_file() and path.suffix != ".safetensors" else path


class Published(NamedTuple):
    """The network of a published checkpoint, in the target's dtype and on its device.

    Attributes:
        about: what is recorded: format, the target's name in the checkpoint, commit, and the hash of a folder's
            safetensors, "" for a hub id.
    """

    network: Any
    about: dict[str, Any]


def load_published(model: str, target: Target, drafter: str, **options: Any) -> Published:
    """Load a published checkpoint for a target.

    Args:
        model: a folder or a hub id.
        drafter: name of the drafter that will use it.
        options: see the formats' `load`.
    Raises:
        ModelLoadError: see `open_checkpoint`, `recognise` and `CheckpointFormat.load`.
        UsageError: a target without hidden states.
    """
    files = open_checkpoint(model)
    name, form = recognise(files, drafter)
    network = form.load(files, target, **options).eval().requires_grad_(False)
    about = {"format": name, "made_for": recorded_target(files), "commit": files.commit}
    return Published(network, about | {"sha256": content_hash(str(Path(model).expanduser()))})
