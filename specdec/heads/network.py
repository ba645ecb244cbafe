"""The contract of heads that draft; Medusa (2401.10774, section 2.1) and grounded heads (Hydra, 2402.05109) in their
variants.

A residual layer is x + SiLU(W x), zero at the start, so that an untrained head has the target's law of one token
earlier. The first layer of a grounded head also reads the input embeddings of the tokens since h_t, or what the last of
them finds in all of them by attention; only h_t is carried on. Knows tensors only: neither where states come from nor
how laws become a draft.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.heads_config import HeadsConfig

Past = tuple[Tensor, Tensor]  # keys and values [B, H, P, D/H] of the P states before


class DraftHeads(nn.Module, ABC):
    """K heads over h_t, the state of the last token that the target has evaluated; head k predicts x_{t+k+1}."""

    hidden_size: int  # D, as the target has it
    vocab_size: int  # V
    grounded: bool  # head k also reads x_{t+1}, ..., x_{t+k}
    product: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)  # with the output layers

    @abstractmethod
    def __len__(self) -> int: ...

    def offset(self, layers: int) -> int:
        """Return the layer whose states the heads read, counted down from the last of `layers` (`HiddenStates`)."""
        return 0

    def contextual(self, states: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """Turn the target's states [B, S, D] into what the heads read; `past` is the second result of the call on those
        before, which may be used up.
        """
        return states, None

    @abstractmethod
    def draft_features(self, k: int, state: Tensor, drafted: Tensor) -> Tensor:
        """Return the features [M, ...] of head k after M drafted paths [M, k], x_{t+1} (the root) to x_{t+k}, and h_t
        [D] or [M, D] of `contextual`; [1, ...] will do for heads that read no tokens.
        """

    @abstractmethod
    def output_layer(self, k: int) -> Tensor:
        """Return the weights [W, D] from head k to the tokens that it can draft; all heads have as many."""

    def logits(self, k: int, features: Tensor) -> Tensor:
        """Return the logits [..., V] of head k for its features; -inf for tokens that it cannot draft."""
        return self.product(features, self.output_layer(k))

    def features(self, states: Tensor, tokens: Tensor, count: int | None = None) -> list[Tensor]:
        """Return the features [B, S, ...] of heads 1, ..., `count` (all if None) at every position of texts, by the
        target's states [B, S, D] and the tokens [B, S]. Head k at position t reads tokens t+1 to t+k and predicts
        x_{t+k+1}. Its features have no meaning where the text has no such token.
        """
        states, _ = self.contextual(states)
        every = states.flatten(0, 1)
        found = []
        for k in range(1, (len(self) if count is None else count) + 1):
            features = self.draft_features(k, every, following(tokens, k).flatten(0, 1))
            found.append(features.unflatten(0, states.shape[:2]))
        return found

    @property
    @abstractmethod
    def flops_per_token(self) -> float:
        """Floating-point operations of a head and its way to the vocabulary, the mean over the heads. What runs once
        for a token of the text, however many are drafted, is left out.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what is recorded about the heads: `count` and what else tells them from others."""


class ResidualLayer(nn.Module):
    """x + SiLU(W [x; more]), or with a hidden layer of another width x + U SiLU(W [x; more])."""

    def __init__(self, size: int, more: int, width: int | None) -> None:
        super().__init__()
        self.inner = nn.Linear(size + more, width or size)
        self.outer = None if width is None else nn.Linear(width, size)
        last = self.inner if self.outer is None else self.outer
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        inner = F.silu(self.inner(x if more is None else torch.cat([x, more], -1)))
        return x + (inner if self.outer is None else self.outer(inner))


class MlpHead(nn.Module):
    """One head: residual layers over h_t, the first of which also reads `tokens` vectors of width D."""

    def __init__(self, size: int, tokens: int, layers: int, width: int | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ResidualLayer(size, tokens * size if layer == 0 else 0, width) for layer in range(layers)
        )

    def forward(self, state: Tensor, embedded: Tensor | None) -> Tensor:
        """Return features [..., D] for a state [..., D] and vectors [..., tokens * D], or None if it reads none."""
        x = self.blocks[0](state, embedded)
        for block in self.blocks[1:]:
            x = block(x)
        return x


class _SelfAttention(nn.Module):
    """The weights of a residual layer of self-attention over states of width `size`, zero at the start."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Heads have about 64 dimensions each, and their number divides the width.
        self.heads = next(heads for heads in range(max(1, size // 64), 0, -1) if size % heads == 0)
        self.norm = nn.RMSNorm(size)
        self.queries_keys_values = nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        nn.init.zeros_(self.out.weight)

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, S, D/H] of x [B, S, D]."""
        query, key, value = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key, value


class PrefixLayer(_SelfAttention):
    """One layer of causal self-attention over the states of the prefix, residual and zero at the start. It has no
    positions: the causal mask is enough for one layer to tell tokens apart.
    """

    def forward(self, states: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """Return states [B, S, D] for those [B, S, D] behind `past`, and the keys and values of all tokens so far."""
        batch, length, size = states.shape
        query, key, value = self.mixed(self.norm(states))
        before = 0
        if past is not None:
            before = past[0].shape[2]
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        seen = torch.ones(length, before + length, dtype=torch.bool, device=states.device).tril_(before)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        return states + self.out(attended.transpose(1, 2).reshape(batch, length, size)), (key, value)


class DraftedAttention(_SelfAttention):
    """One layer of causal self-attention over h_t and the embeddings of the tokens since, which all heads share: the
    concatenation that grounded heads read (2402.05109, section 3) becomes a sum whose weights depend on the tokens.
    Places are learned vectors: 0 for h_t, k for the k-th token since.
    """

    def __init__(self, size: int, count: int) -> None:
        super().__init__(size)
        self.places = nn.Parameter(torch.zeros(count + 1, size))

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        """Return for each of k tokens [..., k, D] what it says of itself and finds before it, by h_t [..., D]."""
        read = torch.cat([states.unsqueeze(-2), embedded], -2)  # [..., k + 1, D]
        x = (self.norm(read) + self.places[: read.shape[-2]]).flatten(0, -3)  # [M, k + 1, D]
        query, key, value = self.mixed(x)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        found = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return found[:, 1:].reshape(embedded.shape)


class Heads(DraftHeads):
    """K heads and their layers to the vocabulary; the target's embeddings and output layer are read, never stored."""

    def __init__(self, config: HeadsConfig, embedding: Tensor, output: Tensor) -> None:
        """Make heads over the target's input embeddings and output layer, [V, D] each."""
        super().__init__()
        self.config, self.grounded = config, config.grounded
        self.vocab_size, size = output.shape
        self.hidden_size: int = size
        self._target = (embedding, output)  # in a tuple, so that they do not become parameters of this module
        # States from before the target's final norm need a norm: their scale would drown what heads add.
        raw = config.offset > 0 or config.state == "embeddings"
        self.norm = nn.RMSNorm(size) if raw else None
        self.prefix = PrefixLayer(size) if config.prefix else None
        self.gru = nn.GRU(size, size, config.layers, batch_first=True) if config.mixer == "gru" else None
        self.heads = nn.ModuleList()
        self.attention = DraftedAttention(size, config.count) if config.mixer == "attention" else None
        if config.mixer != "gru":
            for k in range(1, config.count + 1):
                tokens = (k if self.attention is None else 1) if config.grounded else 0  # attention makes them one
                self.heads.append(MlpHead(size, tokens, config.layers, config.width))
        layers = {"own": config.count, "shared": 1, "tied": 0}[config.output]
        self.outputs = nn.ParameterList(nn.Parameter(output.detach().clone()) for _ in range(layers))

    def __len__(self) -> int:
        return self.config.count

    def offset(self, layers: int) -> int:
        return self.config.offset_of(layers)

    def rebind(self, embedding: Tensor, output: Tensor) -> None:
        """Read the embeddings and output layer of another target from now on, such as a copy or a trained backbone."""
        self._target = (embedding, output)

    def contextual(self, states: Tensor, past: Past | None = None) -> tuple[Tensor, Past | None]:
        """See `DraftHeads.contextual`: normed if the target has not done it, and read by the prefix layer if any."""
        if self.norm is not None:
            states = self.norm(states)
        return (states, None) if self.prefix is None else self.prefix(states, past)

    def features(self, states: Tensor, tokens: Tensor, count: int | None = None) -> list[Tensor]:
        count = self.config.count if count is None else count
        states, _ = self.contextual(states)
        if not self.config.grounded:
            return [head(states, None) for head in self.heads[:count]]
        embedded = self.embedded(following(tokens, count)).to(states.dtype)  # [B, S, count, D]
        if self.gru is not None:
            return self._recurrent(states, embedded)
        if self.attention is not None:
            read = self.attention(states, embedded).unbind(-2)
        else:
            read = [embedded[..., :k, :].flatten(-2) for k in range(1, count + 1)]
        return [self.heads[k](states, vectors) for k, vectors in enumerate(read)]

    def draft_features(self, k: int, state: Tensor, drafted: Tensor) -> Tensor:
        if not self.config.grounded:
            return self.heads[k - 1](state.unsqueeze(0), None)
        embedded = self.embedded(drafted).to(state.dtype)  # [M, k, D]
        states = state.expand(len(drafted), -1)
        if self.gru is not None:
            return self._recurrent(states, embedded)[-1]
        read = embedded.flatten(1) if self.attention is None else self.attention(states, embedded)[:, -1]
        return self.heads[k - 1](states, read)

    def output_layer(self, k: int) -> Tensor:
        if self.config.output == "tied":
            return self._target[1]
        return self.outputs[k - 1 if self.config.output == "own" else 0]

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the target's input embeddings [..., D] of tokens [...]."""
        return F.embedding(tokens, self._target[0])

    @property
    def flops_per_token(self) -> float:
        count = len(self)
        mixed = sum(weight.numel() for weight in self.heads.parameters()) / count
        if self.gru is not None:  # head k takes k steps of it
            mixed = sum(weight.numel() for weight in self.gru.parameters()) * (count + 1) / 2
        if self.attention is not None:  # over k + 1 places for head k
            mixed += 4 * self.hidden_size**2 * (count + 3) / 2
        return 2.0 * (mixed + self.vocab_size * self.hidden_size)

    def describe(self) -> dict[str, Any]:
        return asdict(self.config)

    def _recurrent(self, states: Tensor, embedded: Tensor) -> list[Tensor]:
        """Return the GRU's output [..., D] after each of k tokens [..., k, D], beginning with states [..., D]."""
        assert self.gru is not None
        shape = states.shape
        first = states.reshape(1, -1, shape[-1]).expand(self.config.layers, -1, -1).contiguous()
        steps, _ = self.gru(embedded.reshape(-1, *embedded.shape[-2:]), first)  # [M, k, D]
        return [step.reshape(shape) for step in steps.unbind(1)]


def following(tokens: Tensor, count: int) -> Tensor:
    """Return at each position of texts [B, S] the next `count` tokens [B, S, count]; past the end, the first ones."""
    return torch.stack([tokens.roll(-step, dims=1) for step in range(1, count + 1)], -1)
