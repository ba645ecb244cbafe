"""Medusa heads (2401.10774) as vLLM reads them: residual layers with or without a bias, and perhaps fewer tokens to
draft.
"""

import re
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specdec.errors import ModelLoadError
from specdec.heads.draft_heads import DraftHeads
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.formats.medusa_heads import medusa_network
from specdec.published.recognise import NetworkFormat, check_target, fill, formats, weights_of
from specdec.published.residual_heads import ResidualBlock, ResidualHeads
from specdec.targets.base import Target

_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.weight")


class _Layout(NamedTuple):
    """The tensors of a file: `blocks` [count][layers] without their endings, `outputs` in full, one if it is shared."""

    blocks: list[list[str]]
    biased: bool
    outputs: list[str]
    token_map: str

    def published(self, name: str) -> str:
        """Return the file's name of a tensor of either network: `heads.0.blocks.1.inner.bias` or
        `blocks.0.1.linear.bias`, `outputs.0` or `outputs.0.weight`.
        """
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if len(numbers) == 1:
            return self.outputs[numbers[0]]
        return f"{self.blocks[numbers[0]][numbers[1]]}.{name.rpartition('.')[2]}"


@formats.register("Medusa for vLLM")
class MedusaVllm(NetworkFormat):
    """Heads named `blocks.{i}.layers.{j}` and `lm_heads.{i}`. With a `token_map`, row r of an output layer is for the
    token token_map[r], and tokens that are not in it cannot be drafted.
    """

    drafters = ("medusa", "blockwise")

    def matches(self, files: CheckpointFiles) -> bool:
        return bool(files.numbered(_BLOCK))

    def load(self, files: CheckpointFiles, target: Target) -> DraftHeads:
        sizes = {key: files.setting(size, int, 0) or None for key, size in _SIZES.items()}
        check_target(files, target, width=sizes["width"], vocabulary=sizes["vocabulary"])
        if files.config.get("logit_scale", 1.0) != 1.0:
            raise ModelLoadError(f"{files} scales its logits (logit_scale in its config.json), which is not read.")
        layout = _layout(files)
        token_map = _token_map(files, layout, target.vocab_size)
        tokens, width = target.hidden.output_layer.shape
        if token_map is None:
            count, layers = len(layout.blocks), len(layout.blocks[0])
            shared = "own" if len(layout.outputs) == count else "shared"
            heads: DraftHeads = medusa_network(files.name, count, layers, shared, target)
        else:
            with torch.device("meta"):
                heads = ResidualHeads(
                    [[ResidualBlock(width, width) for _ in blocks] for blocks in layout.blocks],
                    [nn.Linear(width, len(token_map), bias=False) for _ in layout.outputs],
                    vocab_size=tokens,
                    token_map=token_map,
                )
        shapes: dict[str, tuple[int, ...] | None] = {}  # of what the file may have otherwise
        optional = {}
        if token_map is not None:
            optional[layout.token_map] = tuple(token_map.shape)
            if files.rows(layout.outputs[0]) == tokens:  # rows of all tokens, not of the drafted ones alone
                shapes |= {f"outputs.{place}.weight": (tokens, width) for place in range(len(layout.outputs))}
        biases = [name for name in heads.state_dict() if name.endswith(".bias")]
        if not layout.biased:
            shapes |= dict.fromkeys(biases)
        weights = weights_of(files, heads, layout.published, shapes, optional)
        weights |= {name: torch.zeros(width) for name in biases if name not in weights}
        if token_map is not None:
            weights |= {name: weights[name][token_map] for name, shape in shapes.items() if shape is not None}
        fill(heads, weights, target)
        return heads


_SIZES = {"width": "hidden_size", "vocabulary": "vocab_size"}


def _layout(files: CheckpointFiles) -> _Layout:
    prefix = "medusa_heads." if any(name.startswith("medusa_heads.") for name in files.tensors) else ""
    count, layers = (1 + max(numbers) for numbers in zip(*files.numbered(_BLOCK), strict=True))
    outputs = [f"{prefix}lm_heads.{head}.weight" for head in range(count)]
    if files.setting("original_lm_head", bool, False):
        shared = f"{prefix}lm_head.weight"
        outputs = [shared if shared in files.tensors else outputs[0]]
    blocks = [[f"{prefix}blocks.{head}.layers.{layer}" for layer in range(layers)] for head in range(count)]
    return _Layout(blocks, f"{blocks[0][0]}.bias" in files.tensors, outputs, f"{prefix}token_map")


def _token_map(files: CheckpointFiles, layout: _Layout, vocabulary: int) -> Tensor | None:
    """Return the tokens that can be drafted; None for all."""
    truncated = files.setting("truncated_vocab_size", int, vocabulary)
    if layout.token_map not in files.tensors:
        if truncated != vocabulary:
            raise ModelLoadError(
                f"{files} drafts {truncated:,} of {vocabulary:,} tokens (truncated_vocab_size) and lacks the "
                "token_map that says which: get the checkpoint as it was published."
            )
        return None
    tokens = files.tensor(layout.token_map)
    whole = not tokens.is_floating_point() and tokens.dim() == 1 and len(tokens) == len(tokens.unique())
    if not whole or not len(tokens) or tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ModelLoadError(f"{files} has a token_map that is not a list of different tokens below {vocabulary:,}.")
    return tokens.long()
