"""The network of DFlash (z-lab): it fills a block of mask tokens behind the root in one pass, over keys and values that
it makes of the target's features.

Knows tensors only. Letters as in `feature_network`; N tokens of a block, the root among them.
"""

import torch
from torch import Tensor, nn

from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.feature_network import FeatureNetwork, GatedMlp, GroupedAttention, KeysValues, ScaledNorm


class BlockLayer(nn.Module):
    """One decoder layer over a block; the context goes past its norm."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.input_layernorm = ScaledNorm(config.hidden, config.rms_eps)
        self.self_attn = GroupedAttention(config, config.hidden, causal=False)
        self.post_attention_layernorm = ScaledNorm(config.hidden, config.rms_eps)
        self.mlp = GatedMlp(config.hidden, config.intermediate)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B, N, D] for a block [B, N, D], all tokens of which see each other and a context of these keys and
        values; see `GroupedAttention`.
        """
        x = x + self.self_attn(self.input_layernorm(x), turns, past)[0]
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class BlockNetwork(FeatureNetwork):
    """A block of `config.block` tokens, the root and mask tokens: each gives the law of the token at its own place."""

    def __init__(self, config: EagleConfig, embedding: Tensor, output: Tensor) -> None:
        super().__init__(config, embedding, output)
        self.fc = nn.Linear(config.features * config.target_hidden, config.hidden, bias=config.fc_bias)
        self.hidden_norm = ScaledNorm(config.hidden, config.rms_eps)
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.layers))
        self.norm = ScaledNorm(config.hidden, config.rms_eps)

    def context(self, features: Tensor, places: Tensor) -> KeysValues:
        """Return each layer's keys and values for the target's features [B, S, k * D_t] at positions [S]."""
        context = self.hidden_norm(self.fc(features))
        turns = self.turns(places.expand(len(features), -1), context.dtype)
        found = []
        for layer in self.layers:
            assert isinstance(layer, BlockLayer)
            found.append(layer.self_attn.keys_values(context, turns))
        return tuple(found)

    def forward(self, root: Tensor, place: int, past: KeysValues) -> Tensor:
        """Return the logits [B, N-1, W] of the tokens behind a root [B] at position `place`."""
        assert self.config.block is not None and self.config.mask_token is not None
        masks = torch.full((len(root), self.config.block - 1), self.config.mask_token, device=root.device)
        x = self.embedded(torch.cat([root.unsqueeze(1), masks], 1)).to(self.fc.weight.dtype)
        places = torch.arange(place, place + self.config.block, device=root.device)
        turns = self.turns(places.expand(len(root), -1), x.dtype)
        for layer, keys_values in zip(self.layers, past, strict=True):
            x = layer(x, turns, keys_values)
        return self.logits(self.norm(x[:, 1:]))
