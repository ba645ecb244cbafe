"""The parts that networks over a target's features share: norms, MLP, rotary positions, embeddings and output layer.

Letters: B sequences, S rows, D the network's own width, V tokens of the target, W tokens that can be drafted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.eagle.eagle_config import EagleConfig, RopeScaling

KeysValues = tuple[tuple[Tensor, Tensor], ...]  # [B, H_kv, P, head_dim], a pair for each layer; keys are rotated


class GatedMlp(nn.Module):
    """down(SiLU(gate x) * up x)."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, width, bias=False)
        self.up_proj = nn.Linear(size, width, bias=False)
        self.down_proj = nn.Linear(width, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class GroupedAttention(nn.Module):
    """Attention with fewer key than query heads and rotary positions, over inputs of a width of their own. Without a
    mask a row sees itself and those before, or in the form "dflash" all.
    """

    def __init__(self, config: EagleConfig, inputs: int) -> None:
        super().__init__()
        biased = config.attention_bias != "none"
        size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim, self.causal = config.head_dim, config.form != "dflash"
        self.q_proj = nn.Linear(inputs, size, bias=biased)
        self.k_proj = nn.Linear(inputs, kv_size, bias=biased)
        self.v_proj = nn.Linear(inputs, kv_size, bias=biased)
        self.o_proj = nn.Linear(size, config.hidden, bias=config.attention_bias == "qkvo")
        self.q_norm = nn.RMSNorm(config.head_dim, config.rms_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, config.rms_eps) if config.qk_norm else None

    def _heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads if norm is None else norm(heads)

    def keys_values(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H_kv, S, head_dim] of inputs [B, S, inputs]."""
        return rotated(self._heads(self.k_proj(x), self.k_norm), turns), self._heads(self.v_proj(x))

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """
        Args:
            x: [B, S, inputs].
            turns: cosines and sines [B, 1, S, head_dim] of the rows' positions.
            past: keys and values of the P rows before.
            mask: [S, P+S] or [B, 1, S, P+S], true for seen.
        Returns:
            [B, S, D], and the keys and values of all P+S rows.
        """
        query = rotated(self._heads(self.q_proj(x), self.q_norm), turns)
        key, value = self.keys_values(x, turns)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        rows, length = query.shape[2], key.shape[2]
        causal = self.causal and mask is None and rows > 1
        if causal and past is not None:
            mask = torch.ones(rows, length, dtype=torch.bool, device=x.device).tril_(length - rows)
            causal = False
        attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2)), (key, value)


class FeatureNetwork(nn.Module):
    """A network that reads the target's features and embeddings, and where the config says so its output layer, which
    it never stores. Where all tokens can be drafted, `d2t` and `t2d` are absent.
    """

    d2t: Tensor  # [W] the distance from a draft token's number to the target's: target = i + d2t[i]
    t2d: Tensor  # [V] the tokens that can be drafted
    fc: nn.Linear
    layers: Any  # nn.ModuleList of decoder layers
    product: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)  # with the output layer

    def __init__(self, config: EagleConfig, embedding: Tensor, output: Tensor) -> None:
        """Make a network that reads the target's input embeddings and output layer, [V, D_t] each."""
        super().__init__()
        self.config = config
        self.vocab_size = len(output)  # V
        self.draft_size = config.draft_vocabulary or self.vocab_size
        self._target = (embedding, output)  # in a tuple, so that they do not become parameters of this module
        self.embed_tokens = nn.Embedding(self.vocab_size, config.hidden) if config.own_embedding else None
        self.lm_head = nn.Linear(config.hidden, self.draft_size, bias=False) if config.own_output else None
        if config.draft_vocabulary is not None:
            self.register_buffer("d2t", torch.zeros(config.draft_vocabulary, dtype=torch.long))
            self.register_buffer("t2d", torch.zeros(self.vocab_size, dtype=torch.bool))
        # Not kept in a file, and kept in float32 or better: as bfloat16 they would turn by the wrong angles.
        self._frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._sent = self._frequencies  # those of the last device and type that asked

    def draft_only(self, kept: Sequence[int]) -> None:
        """Make `kept` the tokens that can be drafted: `draft_vocabulary` ids of the target in ascending order. Raises
        ValueError: ids that are not ascending, or another number of them, or beyond the target's vocabulary.
        """
        ids = torch.tensor(list(kept), dtype=torch.long, device=self.d2t.device)
        if len(ids) != self.draft_size or not (ids.diff() > 0).all() or ids[0] < 0 or ids[-1] >= self.vocab_size:
            raise ValueError(
                f"the tokens to draft are {self.draft_size} ascending ids below {self.vocab_size}, and these are others"
            )
        self.d2t.copy_(ids - torch.arange(self.draft_size, device=ids.device))
        self.t2d.zero_()[ids] = True

    def logits(self, normed: Tensor) -> Tensor:
        """Return the logits [..., W] for states [..., D] after the final norm."""
        return self.product(normed, self.output_layer.to(normed.dtype))

    @property
    def output_layer(self) -> Tensor:
        """The weights [W, D] from a state after the final norm to the tokens that can be drafted."""
        if self.lm_head is not None:
            return self.lm_head.weight
        output = self._target[1]
        return output if self.config.draft_vocabulary is None else output[self.drafted_ids]

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the input embeddings [..., D] of the target's tokens [...]."""
        if self.embed_tokens is not None:
            return self.embed_tokens(tokens)
        return F.embedding(tokens, self._target[0])

    @property
    def drafted_ids(self) -> Tensor:
        """The target's ids [W] of the tokens that can be drafted."""
        ids = torch.arange(self.draft_size, device=self.fc.weight.device)
        return ids if self.config.draft_vocabulary is None else ids + self.d2t

    def over_target(self, logits: Tensor) -> Tensor:
        """Return logits [..., V] over the target's tokens, -inf where they cannot be drafted, for logits [..., W]."""
        if self.config.draft_vocabulary is None:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return wide.index_copy(-1, self.drafted_ids, logits)

    def turns(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines [B, 1, S, head_dim] for positions [B, S]."""
        wide = torch.promote_types(dtype, torch.float32)
        if (self._sent.device, self._sent.dtype) != (places.device, wide):  # once: a GPU would be waited for
            self._sent = self._frequencies.to(places.device, wide)
        angles = places.unsqueeze(-1).to(wide) * self._sent  # [B, S, head_dim / 2]
        angles = torch.cat([angles, angles], -1).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Return the angles per position [head_dim / 2], in float64: theta^(-2j / head_dim), slowed as `scaling` says."""
    plain = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim)
    if scaling is None:
        return plain
    slowed = plain / scaling.factor
    if scaling.kind == "linear":
        return slowed
    turns = scaling.original * plain / (2 * math.pi)
    share = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return share * plain + (1 - share) * slowed


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (x_j, x_{j + head_dim / 2}) of x [B, H, S, head_dim] by the angles of their rows."""
    cosines, sines = turns
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines
