"""Formats of published checkpoints: which one a folder holds, and that it holds exactly that.

Nothing is loaded loosely: a missing, an extra or a wrong-shaped tensor is refused by name, because readers that
ignore them leave a network at its random initial values.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import CheckpointFiles, listed, pickles_sentence
from specdec.registry import Registry
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor name -> shape."""


class CheckpointFormat(ABC):
    """A format in which drafters were published. Its registered name is what messages call it. Exactly one format
    matches the files of any checkpoint that is one.

    Class attributes:
        drafters: names of the drafters that read it, the usual one first; empty where nothing reads it.
        refusal: why nothing reads it, and what is missing.
    """

    drafters: ClassVar[tuple[str, ...]] = ()
    refusal: ClassVar[str] = ""

    @abstractmethod
    def matches(self, files: CheckpointFiles) -> bool:
        """Return whether config and tensor names are those of this format; shapes are checked later."""

    def load(self, *args: Any, **options: Any) -> nn.Module:
        """Return the network of some files for a target, in its dtype and on its device.

        Args:
            args: files: CheckpointFiles, target: Target.
            options: those of the drafter.
        Raises:
            ModelLoadError: other tensors than those of the format, another target's sizes, or something in the config
                that is not established.
        """
        raise NotImplementedError(self.refusal)


formats: Registry[CheckpointFormat] = Registry("published.formats", "checkpoint format")


class Recognised(NamedTuple):
    """The format of a checkpoint, and the name that messages and records give it."""

    name: str
    format: CheckpointFormat


def recognise(files: CheckpointFiles, drafter: str) -> Recognised:
    """Return the format of a checkpoint that `drafter` is to read.

    Raises:
        ModelLoadError: pickled weights (with the command that converts them), no known format (with what was found),
            a format that nothing reads, or one that another drafter reads (which is named).
    """
    if not files.tensors and files.pickles:
        raise ModelLoadError(
            f"{files} holds pickled weights ({files.pickles[0]}), never opened here: {pickles_sentence(files)}."
        )
    found = matching(files)
    if len(found) > 1:
        names = listed((name for name, _ in found), 9)
        raise ModelLoadError(f"{files} fits several formats ({names}): give a folder with one drafter.")
    if not found:
        there = f"the config keys {listed(sorted(files.config), 8)}" if files.config else "no config.json"
        there += f" and the tensors {listed(sorted(files.tensors), 4)}" if files.tensors else " and no tensors"
        if files.pickles:
            there += f"; of its pickles {files.pickles[0]} may hold the drafter: {pickles_sentence(files)}"
        known = ", ".join(name for name in formats.names() if not formats.get(name).refusal)
        raise ModelLoadError(
            f"{files} is of no known format: it has {there}. The formats are: {known}. A complete model drafts with "
            "+drafter=small_model."
        )
    if found[0].format.refusal:
        raise ModelLoadError(f"{files} is of the format {found[0].name}, which is not read: {found[0].format.refusal}.")
    if drafter not in found[0].format.drafters:
        raise ModelLoadError(f"{files} is of the format {found[0].name}: use +drafter={found[0].format.drafters[0]}.")
    return found[0]


def matching(files: CheckpointFiles) -> list[Recognised]:
    """Return the formats that match a checkpoint: one, or none where its format is not known."""
    return [Recognised(name, each) for name in formats.names() if (each := formats.get(name)()).matches(files)]


def demand_exactly(
    files: CheckpointFiles, expected: Shapes, optional: Shapes | None = None, ignored: tuple[str, ...] = ()
) -> None:
    """Check that a checkpoint has exactly the tensors of its format, each of its shape.

    Args:
        optional: tensors that may be there, such as copies of the target's own; they have a shape too.
        ignored: beginnings of names that belong to something else in the same files, such as a whole target.
    Raises:
        ModelLoadError: names what is missing, extra, or of another shape.
    """
    known = {**(optional or {}), **expected}
    missing = [name for name in expected if name not in files.tensors]
    extra = sorted(name for name in files.tensors if name not in known and not (ignored and name.startswith(ignored)))
    faults = []
    if missing:
        faults.append(f"lacks {listed(missing)}")
    if extra:
        faults.append(f"has {listed(extra)} too many")
    for name, shape in known.items():
        if name in files.tensors and files.tensors[name].shape != shape:
            faults.append(f"has {name} of shape {list(files.tensors[name].shape)} in place of {list(shape)}")
            break
    if faults:
        raise ModelLoadError(f"{files} {' and '.join(faults)}: get the checkpoint as it was published.")


def check_target(
    files: CheckpointFiles,
    target: Target,
    *,
    width: int | None = None,
    vocabulary: int | None = None,
    layers: int | None = None,
) -> None:
    """Check that a checkpoint was made for a target of this size; a target of another name is only warned of.

    Args:
        width, vocabulary, layers: hidden size, tokens and number of layers of the target that the checkpoint was made
            for; None where it does not say.
    Raises:
        ModelLoadError: the target has another size; or it has no hidden states (UsageError).
    """
    there = target.hidden.output_layer.shape
    sizes = (
        ("width", width, there[1]),
        ("vocabulary", vocabulary, there[0]),
        ("number of layers", layers, target.hidden.layers),
    )
    for what, recorded, own in sizes:
        if recorded is not None and recorded != own:
            raise ModelLoadError(
                f"{files} was made for a target of {what} {recorded:,}, and this one has {own:,}: use "
                "the target that it was made for."
            )
    recorded_name, own_name = recorded_target(files), target_name(target)
    if recorded_name and own_name and _last(recorded_name) != _last(own_name):
        logger.warning("%s was made for %s; the target is %s.", files, recorded_name, own_name)


def recorded_target(files: CheckpointFiles) -> str:
    """Return the name of the model that a checkpoint was made for, as its config records it; "" where it does not."""
    name = files.config.get("base_model_name_or_path")
    verifier = files.config.get("speculators_config")
    if not name and isinstance(verifier, Mapping) and isinstance(verifier.get("verifier"), Mapping):
        name = verifier["verifier"].get("name_or_path")
    return name if isinstance(name, str) else ""


def target_name(target: Target) -> str:
    """Return the folder or hub id of a target's model; "" where it was made in memory."""
    return "" if target.model is None else str(target.model.config.name_or_path or "")


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].casefold()


def fill(network: nn.Module, weights: Mapping[str, Tensor], target: Target) -> None:
    """Put weights, in the target's dtype and on its device, into a network without weights (one made on `meta`).

    Buffers that are no weights, such as tables of positions, keep their dtype.
    """
    dtype = target.hidden.output_layer.dtype
    network.load_state_dict({name: weight.to(target.device, dtype) for name, weight in weights.items()}, assign=True)
    network.to(target.device)
