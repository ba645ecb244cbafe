"""Medusa heads (2401.10774) as FasterDecoding published them: x + SiLU(W x + b), then an output layer without bias; and
as vLLM reads them: with or without the bias b, and perhaps fewer tokens to draft.

Heads and layers are counted from the tensors: configs say 2 heads where files have 5, and the reference reads 5.
"""

import logging
import re
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from specdec.config import validated
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import DraftHeads, Heads
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.formats.hydra import ResidualBlock, ResidualHeads
from specdec.published.recognise import NetworkFormat, check_target, fill, formats, target_name, weights_of
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(?:weight|bias)")
_OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")
_VLLM_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.weight")


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

        heads = _medusa_network(files.name, count, layers, "own" if own_outputs else "tied", target)
        return fill(heads, weights_of(files.below(prefix), heads, published), target)


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
            sentence = "%s holds the target that its heads were trained with; the target is %s: use target.model=%s."
            logger.warning(sentence, files, name, files.name)
        return super().load(files, target)


def _medusa_network(name: str, count: int, layers: int, outputs: str, target: Target) -> Heads:
    """Return our network of Medusa heads, without weights, with these `HeadsConfig.output`."""
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


@formats.register("Medusa for vLLM")
class MedusaVllm(NetworkFormat):
    """Heads named `blocks.{i}.layers.{j}` and `lm_heads.{i}`. With a `token_map`, row r of an output layer is for the
    token token_map[r], and tokens that are not in it cannot be drafted.
    """

    drafters = ("medusa", "blockwise")

    def matches(self, files: CheckpointFiles) -> bool:
        return bool(files.numbered(_VLLM_BLOCK))

    def load(self, files: CheckpointFiles, target: Target) -> DraftHeads:
        recorded, vocabulary = (files.setting(key, int, 0) or None for key in ("hidden_size", "vocab_size"))
        check_target(files, target, width=recorded, vocabulary=vocabulary)
        scaled = files.config.get("logit_scale", 1.0) != 1.0
        files.refuse_if(scaled, "scales its logits (logit_scale in its config.json), which is not read.")
        prefix = "medusa_heads." if any(name.startswith("medusa_heads.") for name in files.tensors) else ""
        count, layers = (1 + max(numbers) for numbers in zip(*files.numbered(_VLLM_BLOCK), strict=True))
        outputs = [f"{prefix}lm_heads.{head}.weight" for head in range(count)]
        if files.setting("original_lm_head", bool, False):  # one for all heads
            shared = f"{prefix}lm_head.weight"
            outputs = [shared if shared in files.tensors else outputs[0]]
        token_map = _token_map(files, f"{prefix}token_map", target.vocab_size)
        tokens, width = target.hidden.output_layer.shape
        if token_map is None:
            output = "own" if len(outputs) == count else "shared"
            heads: DraftHeads = _medusa_network(files.name, count, layers, output, target)
        else:
            with torch.device("meta"):
                blocks = [[ResidualBlock(width, width) for _ in range(layers)] for _ in range(count)]
                own = [nn.Linear(width, len(token_map), bias=False) for _ in outputs]
                heads = ResidualHeads(blocks, own, vocab_size=tokens, token_map=token_map)

        def published(name: str) -> str:  # heads.0.blocks.1.inner.bias, blocks.0.1.linear.bias, outputs.0[.weight]
            head, *layer = [int(part) for part in name.split(".") if part.isdigit()]
            if not layer:
                return outputs[head]
            return f"{prefix}blocks.{head}.layers.{layer[0]}.{name.rpartition('.')[2]}"

        shapes: dict[str, tuple[int, ...] | None] = {}  # of what the file may have otherwise
        optional = {}
        if token_map is not None:
            optional[f"{prefix}token_map"] = tuple(token_map.shape)
            if files.rows(outputs[0]) == tokens:  # rows of all tokens, not of the drafted ones alone
                shapes |= {f"outputs.{place}.weight": (tokens, width) for place in range(len(outputs))}
        biases = [name for name in heads.state_dict() if name.endswith(".bias")]
        if f"{prefix}blocks.0.layers.0.bias" not in files.tensors:
            shapes |= dict.fromkeys(biases)
        weights = weights_of(files, heads, published, shapes, optional)
        weights |= {name: torch.zeros(width) for name in biases if name not in weights}
        if token_map is not None:
            weights |= {name: weights[name][token_map] for name, shape in shapes.items() if shape is not None}
        return fill(heads, weights, target)


def _token_map(files: CheckpointFiles, name: str, vocabulary: int) -> Tensor | None:
    """Return the tokens that can be drafted; None for all."""
    truncated = files.setting("truncated_vocab_size", int, vocabulary)
    if name not in files.tensors:
        files.refuse_if(
            truncated != vocabulary,
            f"drafts {truncated:,} of {vocabulary:,} tokens (truncated_vocab_size) and lacks the token_map that says "
            "which: get the checkpoint as it was published.",
        )
        return None
    tokens = files.tensor(name)
    whole = not tokens.is_floating_point() and tokens.dim() == 1 and len(tokens) == len(tokens.unique())
    wrong = not whole or not len(tokens) or tokens.min() < 0 or tokens.max() >= vocabulary
    files.refuse_if(wrong, f"has a token_map that is not a list of different tokens below {vocabulary:,}.")
    return tokens.long()
