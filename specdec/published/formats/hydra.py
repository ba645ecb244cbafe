"""Hydra and Hydra++ heads (2402.05109) as their authors published them, with the layout told from the tensors.

Hydra++ puts a one-layer Llama before the heads (`prefix_embeding_layer`, so spelled) and a dropout before each layer,
so that its layers have odd numbers.
"""

import logging
import re
from typing import ClassVar

import torch
from torch import nn

from specdec.errors import ModelLoadError
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import CheckpointFormat, NetworkFormat, check_target, fill, formats, weights_of
from specdec.published.residual_heads import LlamaPrefix, ResidualBlock, ResidualHeads
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_PREFIX = "prefix_embeding_layer."
_EMBEDDING = "input_embed_fn.weight"
_UNREAD = ("cross-attn", "eagle-attn")


class _Layout:
    """The make of a file's heads, and its names of their tensors."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.prefix = any(name.startswith(_PREFIX) for name in files.tensors)
        count, last = (max(numbers) for numbers in zip(*files.numbered(_BLOCK), strict=True))
        self.heads, self.layers = 1 + count, (last + 1) // 2 if self.prefix else last + 1
        self.grounded = f"{self.block(0, 0)}.res_connection.weight" in files.tensors

    def block(self, head: int, layer: int) -> str:
        return f"hydra_mlp.{head}.{2 * layer + 1 if self.prefix else layer}"

    def output(self, head: int) -> str:
        return f"hydra_lm_head.{head}{'.1' if self.prefix else ''}"

    def published(self, name: str) -> str:
        """Return the file's name of a tensor of the network."""
        kind, head, rest = name.split(".", 2)
        if kind == "prefix":  # of which all is below `model`
            return _PREFIX + rest
        if kind == "outputs":
            return f"{self.output(int(head))}.{rest}"
        layer, part = rest.split(".", 1)
        return f"{self.block(int(head), int(layer))}.{part}"


class _MlpHeads(NetworkFormat):
    grounded: ClassVar[bool]

    def matches(self, files: CheckpointFiles) -> bool:
        read = files.numbered(_BLOCK) and files.config.get("hydra_head_arch") not in _UNREAD
        return bool(read) and _Layout(files).grounded == self.grounded

    def load(self, files: CheckpointFiles, target: Target) -> ResidualHeads:
        layout = _Layout(files)
        width, vocabulary = files.rows(f"{layout.block(0, 0)}.linear.bias"), files.rows(f"{layout.output(0)}.bias")
        check_target(files, target, width=width, vocabulary=vocabulary)
        if layout.prefix:
            kind = "" if target.model is None else str(target.model.config.model_type)
            if kind != "llama":
                raise ModelLoadError(
                    f"{files} has a prefix layer, which is a layer of its target, a Llama; this target is "
                    f"{kind or 'no transformers model'}: use the target that it was made for."
                )
        tokens, width = target.hidden.output_layer.shape
        with torch.device("meta"):
            # The first block of a grounded head reads tokens too.
            read = [width * (head + 2) if layout.grounded else width for head in range(layout.heads)]
            heads = ResidualHeads(
                [[ResidualBlock(width if layer else own, width) for layer in range(layout.layers)] for own in read],
                [nn.Linear(width, tokens) for _ in range(layout.heads)],
                vocab_size=tokens,
                embedding=target.hidden.embedding if layout.grounded else None,
                prefix=LlamaPrefix(target.model.config) if layout.prefix else None,
                offset=files.setting("hidden_state_offset", int, 0),
            )
        # Copies of the target's embeddings, which modules of the reference hold; and a table of positions.
        optional: dict[str, tuple[int, ...]] = {_EMBEDDING: (tokens, width)}
        if heads.prefix is not None:
            optional[f"{_PREFIX}embed_tokens.weight"] = (tokens, width)
            optional[f"{_PREFIX}layers.0.self_attn.rotary_emb.inv_freq"] = heads.prefix.frequencies
        fill(heads, weights_of(files, heads, layout.published, optional=optional), target)
        if _EMBEDDING in files.tensors:
            published, embedding = files.tensor(_EMBEDDING).float(), target.hidden.embedding.detach().cpu().float()
            # The rounding of 16-bit numbers is left out.
            if not torch.allclose(published, embedding, rtol=0.02, atol=1e-3):
                logger.warning("%s was trained on a target with other embeddings.", files)
        return heads


@formats.register("Hydra")
class Hydra(_MlpHeads):
    """Heads that read the drafted tokens, with or without a prefix layer (Hydra++)."""

    drafters, grounded = ("grounded",), True


@formats.register("Hydra, not grounded")
class HydraNotGrounded(_MlpHeads):
    """Heads that read no drafted tokens: Medusa's with a bias in the output layer."""

    drafters, grounded = ("medusa", "blockwise"), False


@formats.register("Hydra with attention heads")
class HydraAttention(CheckpointFormat):
    refusal = "only its MLP heads (hydra_head_arch mlp and prefix-mlp) were published and are described"

    def matches(self, files: CheckpointFiles) -> bool:
        return files.config.get("hydra_head_arch") in _UNREAD
