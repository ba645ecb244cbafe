"""The network of Hydra and Hydra++ (2402.05109) as published, and of Medusa heads over a reduced vocabulary.

A block is R x + SiLU(W x + b); R is a layer of its own where the block makes its input narrower, else the identity. A
grounded head i begins with [h_t; e(x_{t+1}); ...; e(x_{t+i})], oldest token first.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.network import DraftHeads
from specdec.models.cache import CACHE


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
    """A Llama of one layer that reads states in place of embeddings, with natural positions and a final norm of its own
    (Hydra++, 2402.05109, section 4).
    """

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
        """Make heads; grounded ones read the target's input embeddings [V, D]. Where output layers leave tokens out,
        `token_map` has the token of each of their rows.
        """
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
