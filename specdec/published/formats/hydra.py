"""Hydra and Hydra++ heads (2402.05109) as their authors published them, with the layout told from the tensors; and the
network that they share with Medusa heads over a reduced vocabulary.

A block is R x + SiLU(W x + b); R is a layer of its own where the block makes its input narrower, else the identity. A
grounded head i begins with [h_t; e(x_{t+1}); ...; e(x_{t+i})], oldest token first. Hydra++ puts a one-layer Llama first
(`prefix_embeding_layer`, so spelled), and a dropout before each layer: layers have odd numbers.
"""

import logging
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.network import DraftHeads
from specdec.models.cache import CACHE
from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import CheckpointFormat, NetworkFormat, check_target, fill, formats, weights_of
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_GROUNDED = re.compile(r"hydra_mlp\.(0)\.\d+\.res_connection\.weight")
_PREFIX = "prefix_embeding_layer."
_EMBEDDING = "input_embed_fn.weight"
_UNREAD = ("cross-attn", "eagle-attn")


class ResidualBlock(nn.Module):
    """R x + SiLU(W x + b); R is the identity if x is as wide as the result."""

    def __init__(self, read: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(read, size)
        self.res_connection = None if read == size else nn.Linear(read, size)

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.res_connection is None else self.res_connection(x)
        return kept + F.silu(self.linear(x))


class LlamaPrefix(nn.Module):
    """A Llama of one layer that reads states, with natural positions and a final norm (2402.05109, section 4)."""

    def __init__(self, config: Any) -> None:
        """Make one of the sizes and rotary positions of the target's transformers config."""
        from transformers import LlamaModel
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        super().__init__()
        config = deepcopy(config)
        config.num_hidden_layers = 1
        config._attn_implementation = "sdpa"
        self.model = LlamaModel(config)
        self.model.embed_tokens = nn.Identity()  # states come in place of embeddings
        with torch.device("cpu"):  # its table is no weight, so that no file fills it
            self.model.rotary_emb = LlamaRotaryEmbedding(config)
        self.frequencies: tuple[int, ...] = tuple(self.model.rotary_emb.inv_freq.shape)

    def forward(self, states: Tensor, past: Any) -> tuple[Tensor, Any]:
        """Return states [B, S, D] for those [B, S, D] behind `past`, and the cache of all: `past` made longer."""
        output = self.model(inputs_embeds=states, use_cache=True, **{CACHE: past})
        return output.last_hidden_state, output[CACHE]


class ResidualHeads(DraftHeads):
    """Heads of residual blocks, each with an output layer, after a prefix layer or none."""

    def __init__(
        self,
        blocks: Sequence[Sequence[ResidualBlock]],
        outputs: Sequence[nn.Linear],
        *,
        vocab_size: int,
        embedding: Tensor | None = None,
        prefix: LlamaPrefix | None = None,
        token_map: Tensor | None = None,
        offset: int = 0,
    ) -> None:
        """Make heads; grounded ones read embeddings [V, D]. `token_map` has the token of each row of output layers."""
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*each) for each in blocks)
        self.outputs = nn.ModuleList(outputs)
        self._layers, self._drafted = len(blocks[0]), outputs[0].out_features
        self.prefix, self._embedding, self._offset = prefix, (embedding,), offset
        self.token_map: Tensor | None
        self.register_buffer("token_map", token_map, persistent=False)
        self.hidden_size, self.vocab_size, self.grounded = outputs[0].in_features, vocab_size, embedding is not None

    def __len__(self) -> int:
        return len(self.blocks)

    def offset(self, layers: int) -> int:
        return self._offset

    def contextual(self, states: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        return (states, None) if self.prefix is None else self.prefix(states, past)

    def draft_features(self, k: int, state: Tensor, drafted: Tensor) -> Tensor:
        x = state.expand(len(drafted), -1)
        embedding = self._embedding[0]
        if embedding is not None:
            x = torch.cat([x, F.embedding(drafted, embedding).to(x.dtype).flatten(1)], -1)
        return self.blocks[k - 1](x)

    def output_layer(self, k: int) -> Tensor:
        return self._output(k).weight

    def logits(self, k: int, features: Tensor) -> Tensor:
        found, bias = super().logits(k, features), self._output(k).bias
        if bias is not None:
            found = found + bias
        if self.token_map is None:
            return found
        left_out = found.new_full((*found.shape[:-1], self.vocab_size), -torch.inf)
        return left_out.index_copy(-1, self.token_map, found)

    def _output(self, k: int) -> Any:
        return self.outputs[min(k, len(self.outputs)) - 1]

    @property
    def flops_per_token(self) -> float:
        mixed = sum(weight.numel() for weight in self.blocks.parameters()) / len(self)
        return 2.0 * (mixed + self.hidden_size * self._drafted)

    def describe(self) -> dict[str, Any]:
        return {
            "count": len(self),
            "grounded": self.grounded,
            "layers": self._layers,
            "prefix": self.prefix is not None,
            "offset": self._offset,
            "drafted_vocabulary": self._drafted,
        }


class _MlpHeads(NetworkFormat):
    grounded: ClassVar[bool]

    def matches(self, files: CheckpointFiles) -> bool:
        read = files.numbered(_BLOCK) and files.config.get("hydra_head_arch") not in _UNREAD
        return bool(read) and bool(files.numbered(_GROUNDED)) == self.grounded

    def load(self, files: CheckpointFiles, target: Target) -> ResidualHeads:
        prefix = any(name.startswith(_PREFIX) for name in files.tensors)
        count, places = (1 + max(numbers) for numbers in zip(*files.numbered(_BLOCK), strict=True))
        layers, output = (places // 2, "hydra_lm_head.{}.1") if prefix else (places, "hydra_lm_head.{}")

        def published(name: str) -> str:
            kind, head, rest = name.split(".", 2)
            if kind == "prefix":  # of which all is below `model`
                return _PREFIX + rest
            if kind == "outputs":
                return f"{output.format(head)}.{rest}"
            layer, part = rest.split(".", 1)
            return f"hydra_mlp.{head}.{2 * int(layer) + 1 if prefix else layer}.{part}"

        width, vocabulary = files.rows(published("blocks.0.0.linear.bias")), files.rows(published("outputs.0.bias"))
        check_target(files, target, width=width, vocabulary=vocabulary)
        if prefix:
            kind = "" if target.model is None else str(target.model.config.model_type)
            files.refuse_if(
                kind != "llama",
                "has a prefix layer, which is a layer of its target, a Llama; this target is "
                f"{kind or 'no transformers model'}: use the target that it was made for.",
            )
        tokens, width = target.hidden.output_layer.shape
        with torch.device("meta"):
            # The first block of a grounded head reads tokens too.
            read = [width * (head + 2) if self.grounded else width for head in range(count)]
            heads = ResidualHeads(
                [[ResidualBlock(width if layer else own, width) for layer in range(layers)] for own in read],
                [nn.Linear(width, tokens) for _ in range(count)],
                vocab_size=tokens,
                embedding=target.hidden.embedding if self.grounded else None,
                prefix=LlamaPrefix(target.model.config) if prefix else None,
                offset=files.setting("hidden_state_offset", int, 0),
            )
        # Copies of the target's embeddings, which modules of the reference hold; and a table of positions.
        optional: dict[str, tuple[int, ...]] = {_EMBEDDING: (tokens, width)}
        if heads.prefix is not None:
            optional[f"{_PREFIX}embed_tokens.weight"] = (tokens, width)
            optional[f"{_PREFIX}layers.0.self_attn.rotary_emb.inv_freq"] = heads.prefix.frequencies
        fill(heads, weights_of(files, heads, published, optional=optional), target)
        if _EMBEDDING in files.tensors:
            theirs, embedding = files.tensor(_EMBEDDING).float(), target.hidden.embedding.detach().cpu().float()
            # The rounding of 16-bit numbers is left out.
            if not torch.allclose(theirs, embedding, rtol=0.02, atol=1e-3):
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
