"""Formats of published checkpoints: which one a folder holds, and that it holds exactly that. A missing, extra or
wrong-shaped tensor is refused by name: readers that ignore them leave a network at its random initial values.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import SPECULATORS, CheckpointFiles, listed, pickles_sentence
from specdec.registry import Registry
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

Network = TypeVar("Network", bound=nn.Module)
Shapes = Mapping[str, tuple[int, ...]]  # of tensors by name


class CheckpointFormat:
    """A format in which drafters were published, registered by its name in messages; a checkpoint has one at most."""

    drafters: ClassVar[tuple[str, ...]] = ()  # names of those that read it, the usual one first
    refusal: ClassVar[str] = ""  # why nothing reads it, and what is missing
    speculators: ClassVar[str] = ""  # the type of its files in configs of the library of this name, if that tells it

    def matches(self, files: CheckpointFiles) -> bool:
        """Return whether config and tensor names are those of this format; shapes are checked later. Formats that
        `speculators` does not tell have their own.
        """
        return bool(self.speculators) and files.config.get(SPECULATORS) == self.speculators


class NetworkFormat(CheckpointFormat, ABC):
    """A format whose networks are read here."""

    @abstractmethod
    def load(self, *args: Any, **options: Any) -> nn.Module:
        """Return the network of some files for a target, in its dtype and on its device. Raises ModelLoadError: other
        tensors than those of the format, another target's sizes, or something in the config that is not established.
        """


formats: Registry[CheckpointFormat] = Registry("published.formats", "checkpoint format")


def recognise(files: CheckpointFiles, drafter: str) -> tuple[str, CheckpointFormat]:
    """Return the format of a checkpoint that `drafter` is to read, behind its name. Raises ModelLoadError: pickled
    weights, no known format, or one that nothing or another drafter reads; each says what to do.
    """
    if not files.tensors and files.pickles:
        raise ModelLoadError(
            f"{files} holds pickled weights ({files.pickles[0]}), never opened here: {pickles_sentence(files)}."
        )
    matches = matching(files)
    files.refuse_if(len(matches) > 1, f"fits several formats ({listed(matches, 9)}): give a folder with one drafter.")
    if not matches:
        there = f"the config keys {listed(sorted(files.config), 8)}" if files.config else "no config.json"
        there += f" and the tensors {listed(sorted(files.tensors), 4)}" if files.tensors else " and no tensors"
        if files.pickles:
            there += f"; of its pickles {files.pickles[0]} may hold the drafter: {pickles_sentence(files)}"
        known = ", ".join(name for name in formats.names() if not formats.get(name).refusal)
        raise ModelLoadError(
            f"{files} is of no known format: it has {there}. The formats are: {known}. A complete model drafts with "
            "+drafter=small_model."
        )
    ((name, form),) = matches.items()
    files.refuse_if(form.refusal, f"is of the format {name}, which is not read: {form.refusal}.")
    files.refuse_if(drafter not in form.drafters, f"is of the format {name}: use +drafter={form.drafters[0]}.")
    return name, form


def matching(files: CheckpointFiles) -> dict[str, CheckpointFormat]:
    """Return the formats that match a checkpoint, by name: one, or none where its format is not known."""
    every = {name: formats.get(name)() for name in formats.names()}
    return {name: form for name, form in every.items() if form.matches(files)}


def demand_exactly(files: CheckpointFiles, expected: Shapes, optional: Shapes | None = None) -> None:
    """Check that a checkpoint has exactly the tensors of its format, each of its shape, and maybe optional ones, such
    as copies of the target's own. Raises ModelLoadError: names what is missing, extra, or of another shape.
    """
    known = {**(optional or {}), **expected}
    missing = [name for name in expected if name not in files.tensors]
    extra = sorted(files.tensors.keys() - known.keys())
    faults = [f"lacks {listed(missing)}"] if missing else []
    faults += [f"has {listed(extra)} too many"] if extra else []
    wrong = next((name for name, shape in known.items() if files.tensors.get(name, shape) != shape), None)
    if wrong is not None:
        faults.append(f"has {wrong} of shape {list(files.tensors[wrong])} in place of {list(known[wrong])}")
    files.refuse_if(faults, f"{' and '.join(faults)}: get the checkpoint as it was published.")


def check_target(
    files: CheckpointFiles,
    target: Target,
    *,
    width: int | None = None,
    vocabulary: int | None = None,
    layers: int | None = None,
) -> None:
    """Check that a checkpoint was made for a target of these sizes, as far as it says; a target of another name is only
    warned of. Raises ModelLoadError: another size; UsageError: the target has no hidden states.
    """
    own_vocabulary, own_width = target.hidden.output_layer.shape
    for what, recorded, own in (
        ("width", width, own_width),
        ("vocabulary", vocabulary, own_vocabulary),
        ("number of layers", layers, target.hidden.layers),
    ):
        if recorded is not None and recorded != own:
            raise ModelLoadError(
                f"{files} was made for a target of {what} {recorded:,}, and this one has {own:,}: use "
                "the target that it was made for."
            )
    recorded_name, own_name = recorded_target(files), target_name(target)
    last, own_last = (name.rstrip("/").rpartition("/")[2].casefold() for name in (recorded_name, own_name))
    if recorded_name and own_name and last != own_last:
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


def weights_of(
    files: CheckpointFiles,
    network: nn.Module,
    named: Callable[[str], str],
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
    optional: Shapes | None = None,
) -> dict[str, Tensor]:
    """Return a network's weights by its own names, from files that have exactly these by the names that `named` gives
    (see `demand_exactly`). `shapes` are those that differ from the network's; None where the file has no such tensor.
    """
    own = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    wanted: dict[str, tuple[int, ...] | None] = {**own, **(shapes or {})}
    expected = {named(name): shape for name, shape in wanted.items() if shape is not None}
    demand_exactly(files, expected, optional)
    tensors = files.read(expected)
    return {name: tensors[named(name)] for name in wanted if wanted[name] is not None}


def fill(network: Network, weights: Mapping[str, Tensor], target: Target) -> Network:
    """Put weights, in the target's dtype and on its device, into a network made on `meta`, and return it; its buffers
    that are no weights, such as tables of positions, keep their dtype.
    """
    dtype = target.hidden.output_layer.dtype
    network.load_state_dict({name: weight.to(target.device, dtype) for name, weight in weights.items()}, assign=True)
    return network.to(target.device)
