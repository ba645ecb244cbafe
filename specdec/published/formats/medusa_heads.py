"""Medusa heads (2401.10774) as FasterDecoding published them: x + SiLU(W x + b), then an output layer without bias.

Heads and layers are counted from the tensors: configs say 2 heads where files have 5, and the reference reads 5.
"""

import logging
import re
from pathlib import Path
from typing import ClassVar

import torch

from specdec.config import validated
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import NetworkFormat, check_target, fill, formats, target_name, weights_of
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(?:weight|bias)")
_OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")


class _MedusaHeads(NetworkFormat):
    """Heads whose tensors' names begin with `prefix`; other tensors belong to the target in the file."""

    drafters = ("medusa", "blockwise")
    prefix: ClassVar[str] = ""

    def load(self, files: CheckpointFiles, target: Target) -> Heads:
        prefix = self.prefix
        pairs = files.numbered(_BLOCK, prefix) or [(0, 0)]  # what is missing is then named
        count, layers = (1 + max(places) for places in zip(*pairs, strict=True))
        own_outputs = bool(files.numbered(_OUTPUT, prefix))
        vocabulary = files.rows(f"{prefix}0.{layers}.weight") if own_outputs else None
        check_target(files, target, width=files.rows(f"{prefix}0.0.linear.weight"), vocabulary=vocabulary)

        def published(name: str) -> str:
            kind, head, *place = name.split(".")
            if kind == "outputs":
                return f"{prefix}{head}.{layers}.weight"
            return f"{prefix}{head}.{place[1]}.linear.{place[3]}"

        heads = medusa_network(files.name, count, layers, "own" if own_outputs else "tied", target)
        others = tuple(name for name in files.tensors if not name.startswith(prefix))
        fill(heads, weights_of(files, heads, published, ignored=others), target)
        return heads


@formats.register("Medusa-1")
class Medusa1(_MedusaHeads):
    """Heads with an output layer each, in files of their own (medusa_lm_head)."""

    def matches(self, files: CheckpointFiles) -> bool:
        return bool(files.numbered(_BLOCK) and files.numbered(_OUTPUT))


@formats.register("Medusa version 2")
class Medusa2File(_MedusaHeads):
    """Heads that share the target's output layer: the file format "version 2", which holds residual layers alone."""

    def matches(self, files: CheckpointFiles) -> bool:
        return bool(files.numbered(_BLOCK)) and not files.numbered(_OUTPUT)


@formats.register("Medusa-2")
class Medusa2(_MedusaHeads):
    """Heads trained together with their target, in one checkpoint with it: `target.model` is the same folder."""

    prefix = "medusa_head."

    def matches(self, files: CheckpointFiles) -> bool:
        return any(name.startswith(self.prefix) for name in files.tensors)

    def load(self, files: CheckpointFiles, target: Target) -> Heads:
        name = target_name(target)
        if name and name != files.name and Path(name).expanduser().resolve() != files.folder.resolve():
            logger.warning(
                "%s holds the target that its heads were trained with; the target is %s: use target.model=%s.",
                files,
                name,
                files.name,
            )
        return super().load(files, target)


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
