"""Medusa heads (2401.10774) as FasterDecoding published them: x + SiLU(W x + b), then an output layer without bias.

Heads and layers are counted from the tensors: configs say 2 heads where files have 5, and the reference reads 5.
"""

import logging
import re
from pathlib import Path
from typing import ClassVar

import torch

from specdec.config import validated
from specdec.heads.draft_heads import DraftHeads
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import CheckpointFormat, check_target, demand_exactly, fill, formats, target_name
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(?:weight|bias)")
_OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")
_JOINED = "medusa_head."


class _HeadsAlone(CheckpointFormat):
    drafters = ("medusa", "blockwise")
    own_outputs: ClassVar[bool]

    def matches(self, files: CheckpointFiles) -> bool:
        return bool(files.numbered(_BLOCK)) and bool(files.numbered(_OUTPUT)) == self.own_outputs

    def load(self, files: CheckpointFiles, target: Target) -> Heads:
        return _load(files, target, "", self.own_outputs)


@formats.register("Medusa-1")
class Medusa1(_HeadsAlone):
    """Heads with an output layer each, in files of their own (medusa_lm_head)."""

    own_outputs = True


@formats.register("Medusa version 2")
class Medusa2File(_HeadsAlone):
    """Heads that share the target's output layer: the file format "version 2", which holds residual layers alone."""

    own_outputs = False


@formats.register("Medusa-2")
class Medusa2(CheckpointFormat):
    """Heads trained together with their target, in one checkpoint with it: `target.model` is the same folder."""

    drafters = ("medusa", "blockwise")

    def matches(self, files: CheckpointFiles) -> bool:
        return any(name.startswith(_JOINED) for name in files.tensors)

    def load(self, files: CheckpointFiles, target: Target) -> DraftHeads:
        name = target_name(target)
        if name and name != files.name and Path(name).expanduser().resolve() != files.folder.resolve():
            logger.warning(
                "%s holds the target that its heads were trained with; the target is %s: use target.model=%s.",
                files,
                name,
                files.name,
            )
        return _load(files, target, _JOINED, bool(files.numbered(_OUTPUT, _JOINED)))


def _load(files: CheckpointFiles, target: Target, prefix: str, own_outputs: bool) -> Heads:
    """Load Medusa heads whose tensors' names begin with `prefix`; other tensors belong to the target in the file."""
    pairs = files.numbered(_BLOCK, prefix) or [(0, 0)]  # what is missing is then named
    count, layers = (1 + max(places) for places in zip(*pairs, strict=True))
    vocabulary = files.rows(f"{prefix}0.{layers}.weight") if own_outputs else None
    check_target(files, target, width=files.rows(f"{prefix}0.0.linear.weight"), vocabulary=vocabulary)
    tokens, width = target.hidden.output_layer.shape
    renamed, expected = {}, {}
    for head in range(count):
        for layer in range(layers):
            for part, shape in (("weight", (width, width)), ("bias", (width,))):
                name = f"{prefix}{head}.{layer}.linear.{part}"
                renamed[name], expected[name] = f"heads.{head}.blocks.{layer}.inner.{part}", shape
        if own_outputs:
            name = f"{prefix}{head}.{layers}.weight"
            renamed[name], expected[name] = f"outputs.{head}", (tokens, width)
    others = tuple(name for name in files.tensors if not name.startswith(prefix))
    demand_exactly(files, expected, ignored=others)
    heads = medusa_network(files.name, count, layers, "own" if own_outputs else "tied", target)
    fill(heads, {renamed[name]: weight for name, weight in files.read(expected).items()}, target)
    return heads


def medusa_network(name: str, count: int, layers: int, outputs: str, target: Target) -> Heads:
    """Return our network of Medusa heads, without weights.

    Args:
        outputs: `HeadsConfig.output`.
    """
    config = validated(
        HeadsConfig,
        dict(name=name, count=count, grounded=False, mixer="mlp", layers=layers, width=None)
        | dict(state="hidden", offset=0, prefix=False, output=outputs),
        where="heads",
    )
    embedding, output = target.hidden.embedding, target.hidden.output_layer
    with torch.device("meta"):
        heads = Heads(config, embedding.to("meta"), output.to("meta"))
    heads.rebind(embedding, output)
    return heads
