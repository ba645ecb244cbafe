"""The networks of EAGLE (2401.15077), EAGLE-2 (2406.16858) and EAGLE-3 (2503.01840), with their published variants, and
of DFlash (z-lab), which fills a block of mask tokens behind the root in one pass, and of DSpark (2607.05147), which
corrects the laws of such a block by the tokens drafted before; and the parts that they share.

Letters: B sequences, S rows, P earlier rows, k features of D_t values, D the network's own width, V tokens of the
target, W tokens that can be drafted, N tokens of a block, the root among them; J of them draft, M paths of tokens, R
the rank of a Markov head.
Modules carry the names of published files.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.eagle.eagle_config import EagleConfig, RopeScaling
from specdec.targets.base.contract import HiddenStates

Pair = tuple[Tensor, Tensor]  # cosines and sines of angles, or keys and values
KeysValues = tuple[Pair, ...]  # [B, H_kv, P, head_dim], a pair for each layer; keys are rotated


class _Norm(nn.RMSNorm):
    """Computes in the arithmetic of its weight: torch warns of another one, which a training in bfloat16 has."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


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
        self.q_norm = _Norm(config.head_dim, config.rms_eps) if config.qk_norm else None
        self.k_norm = _Norm(config.head_dim, config.rms_eps) if config.qk_norm else None

    def _heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads if norm is None else norm(heads)

    def keys_values(self, x: Tensor, turns: Pair, past: Pair | None = None) -> Pair:
        """Return keys and values [B, H_kv, P+S, head_dim] of P rows before and of inputs [B, S, inputs]."""
        key, value = rotated(self._heads(self.k_proj(x), self.k_norm), turns), self._heads(self.v_proj(x))
        return (key, value) if past is None else (torch.cat([past[0], key], 2), torch.cat([past[1], value], 2))

    def forward(self, x: Tensor, turns: Pair, past: Pair | None, mask: Tensor | None = None) -> tuple[Tensor, Pair]:
        """Return states [B, S, D], and keys and values of all P+S rows, for inputs x [B, S, inputs], cosines and sines
        [B, 1, S, head_dim], keys and values of P rows before, and a mask [S, P+S], true for seen.
        """
        query = rotated(self._heads(self.q_proj(x), self.q_norm), turns)
        key, value = self.keys_values(x, turns, past)
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
        self._rows: Tensor | None = None  # see `keep_rows`
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
        if self._rows is not None:
            return self._rows
        output = self._target[1]
        return output if self.config.draft_vocabulary is None else output[self.drafted_ids]

    def keep_rows(self) -> None:
        """Keep a copy of the rows of the target's output layer for the tokens that can be drafted, from now on always
        the same: each step would gather them anew, which takes longer than all of its products.
        """
        if self.lm_head is None and self.config.draft_vocabulary is not None:
            self._rows = self.output_layer.detach().to(self.fc.weight.dtype)

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


def rotated(x: Tensor, turns: Pair) -> Tensor:
    """Turn the pairs (x_j, x_{j + head_dim / 2}) of x [B, H, S, head_dim] by the angles of their rows."""
    cosines, sines = turns
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class EagleLayer(nn.Module):
    """One decoder layer. The first one of EAGLE-3 attends to the normed embedding and the normed feature side by side,
    and its residual is the feature itself; the first one of EAGLE-1 has no norm before its attention.
    """

    def __init__(self, config: EagleConfig, first: bool) -> None:
        super().__init__()
        size, eps = config.hidden, config.rms_eps
        self.joins = first and config.form == "eagle3"
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = None if first and config.form == "eagle1" else _Norm(size, eps)
        self.hidden_norm = _Norm(size, eps) if self.joins else None
        self.self_attn = GroupedAttention(config, 2 * size if self.joins else size)
        self.post_attention_layernorm = _Norm(size, eps)
        self.mlp = GatedMlp(size, config.intermediate)

    def forward(
        self, x: Tensor, turns: Pair, past: Pair | None, mask: Tensor | None = None, embedded: Tensor | None = None
    ) -> tuple[Tensor, Pair]:
        """Return the layer's output [B, S, D] for x [B, S, D] and, where the layer reads them, the embeddings [B, S, D]
        of the tokens; and the keys and values of all rows; see `GroupedAttention`.
        """
        attended = x if self.input_layernorm is None else self.input_layernorm(embedded if self.joins else x)
        if self.hidden_norm is not None:
            normed = self.hidden_norm(x)
            attended = torch.cat([attended, normed], -1)
            x = normed if self.norm_before_residual else x
        found, kept = self.self_attn(attended, turns, past, mask)
        x = x + found
        return x + self.mlp(self.post_attention_layernorm(x)), kept


class EagleNetwork(FeatureNetwork):
    """Rows of (feature of position i, token i+1) give states for the feature of position i+1, and laws of token i+2."""

    def __init__(self, config: EagleConfig, embedding: Tensor, output: Tensor) -> None:
        super().__init__(config, embedding, output)
        size, eps, features = config.hidden, config.rms_eps, config.features * config.target_hidden
        joined = 2 * size if config.form == "eagle1" else features
        self.input_norm = _Norm(features, eps) if config.norm_before_fc else None
        norms = (_Norm(config.target_hidden, eps) for _ in range(config.features))
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.mask_hidden = nn.Parameter(torch.zeros(features)) if config.mask_token is not None else None
        self.fc = nn.Linear(joined, size, bias=config.fc_bias)
        self.layers = nn.ModuleList(EagleLayer(config, first=layer == 0) for layer in range(config.layers))
        self.norm = _Norm(size, eps) if config.form == "eagle3" else None

    @classmethod
    def for_target(cls, config: EagleConfig, hidden: HiddenStates, kept: Sequence[int] | None = None) -> "EagleNetwork":
        """Make an untrained network for a target, in its dtype.

        Attention and MLP begin with zeros, `fc` with the last feature where the widths agree, and an own output layer
        or embedding with the target's: so training begins with a law of one token earlier. `kept` are the tokens that
        can be drafted (see `draft_only`); None for all.
        """
        embedding, output = hidden.embedding, hidden.output_layer
        network = cls(config, embedding, output)
        with torch.no_grad():
            for layer in network.layers:
                for weight in (*layer.self_attn.o_proj.parameters(), *layer.mlp.down_proj.parameters()):
                    weight.zero_()
            if config.hidden == config.target_hidden:
                for weight in network.fc.parameters():
                    weight.zero_()
                network.fc.weight[:, -config.hidden :] = torch.eye(config.hidden)
                ids = slice(None) if kept is None else torch.tensor(kept, device=output.device)
                if network.lm_head is not None:
                    network.lm_head.weight.copy_(output[ids])
                if network.embed_tokens is not None:
                    network.embed_tokens.weight.copy_(embedding)
        if config.draft_vocabulary is not None:
            network.draft_only(range(config.draft_vocabulary) if kept is None else kept)
        return network.to(output.device, output.dtype)

    def fuse(self, features: Tensor) -> Tensor:
        """Return states [B, S, D] for the target's features [B, S, k * D_t]; in EAGLE-1 these are the states."""
        if self.config.form == "eagle1":
            return features
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.unflatten(-1, (self.config.features, -1)).unbind(-2)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(features)

    def slots(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the token [1, count] and state [1, count, D] of rows whose token and feature are unknown (P-EAGLE)."""
        assert self.mask_hidden is not None and self.config.mask_token is not None
        state = self.fuse(self.mask_hidden.view(1, 1, -1)).expand(1, count, -1)
        return torch.full((1, count), self.config.mask_token, device=state.device), state

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        places: Tensor,
        past: KeysValues | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> tuple[Tensor, Tensor, KeysValues]:
        """Evaluate rows behind P earlier ones.

        Args:
            tokens: [B, S] token i+1 of each row.
            states: [B, S, D] the state of position i: a fused feature, or a carried state.
            places: [B, S] or [S] the rotary position i.
            past: third result of the call on the rows before.
            mask: [S, P+S], true for rows that each row sees; None where it sees all before it.
            last: number of rows at the end that need logits; None for all.
        Returns:
            the states [B, S, D] that the next step of each row reads; logits [B, S, W] of token i+2, or of the `last`
            rows only, over the tokens that can be drafted; and keys and values of all P+S rows.
        """
        embedded = self.embedded(tokens).to(states.dtype)
        x = self.fc(torch.cat([embedded, states], -1)) if self.config.form == "eagle1" else states
        turns = self.turns(places.expand_as(tokens), x.dtype)
        kept = []
        for number, layer in enumerate(self.layers):
            x, keys_values = layer(x, turns, None if past is None else past[number], mask, embedded)
            kept.append(keys_values)
        normed = self.normed(x)
        logits = self.logits(normed if last is None else normed[:, normed.shape[1] - last :])
        return normed if self.config.norm_output else x, logits, tuple(kept)

    def normed(self, states: Tensor) -> Tensor:
        """Return the last layer's states [..., D] as the output layer reads them."""
        return states if self.norm is None else self.norm(states)


class MarkovHead(nn.Module):
    """Scores that the tokens before a slot add to its logits (DSpark 2607.05147, as speculators and DeepSpec compute
    them): W2 of the embedding w of the last of them. "gated" multiplies w by sigmoid(G[state; w]); "rnn" carries s over
    the slots, (g, c, o) = J[s; w; state], s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c), and adds W2 tanh(o).
    """

    def __init__(self, kind: str, rank: int, tokens: int, drafted: int, hidden: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(tokens, rank)
        self.markov_w2 = nn.Linear(rank, drafted, bias=False)
        self.gate_proj = nn.Linear(hidden + rank, rank) if kind == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank) if kind == "rnn" else None

    def forward(self, before: Tensor, states: Tensor) -> Tensor:
        """Return the scores [M, W] of the slot behind M paths of the target's tokens [M, j], the root first, by the
        states [j, D] of the first j slots, behind the final norm.
        """
        embedded = self.markov_w1(before)  # [M, j, R]
        shared = states.expand(len(before), -1, -1)
        last = embedded[:, -1]
        if self.gate_proj is not None:
            last = last * self.gate_proj(torch.cat([shared[:, -1], last], -1)).sigmoid()
        elif self.joint_proj is not None:
            carried = torch.zeros_like(last)
            for slot in range(before.shape[1]):
                joint = self.joint_proj(torch.cat([carried, embedded[:, slot], shared[:, slot]], -1))
                gate, fresh, last = joint.chunk(3, -1)
                carried = gate.sigmoid() * carried + (1 - gate.sigmoid()) * fresh.tanh()
            last = last.tanh()
        return self.markov_w2(last)


class BlockNetwork(FeatureNetwork):
    """A block of `config.block` tokens, the root and mask tokens, over keys and values made of the target's features,
    past the norms of the layers: each gives the law of its own place, or where `config.shifted` of the one behind it.
    """

    def __init__(self, config: EagleConfig, embedding: Tensor, output: Tensor) -> None:
        super().__init__(config, embedding, output)
        self.fc = nn.Linear(config.features * config.target_hidden, config.hidden, bias=config.fc_bias)
        self.hidden_norm = _Norm(config.hidden, config.rms_eps)
        self.layers = nn.ModuleList(EagleLayer(config, first=False) for _ in range(config.layers))
        self.norm = _Norm(config.hidden, config.rms_eps)
        self.markov_head = None
        if config.markov is not None and config.markov_rank is not None:
            sizes = (config.markov_rank, self.vocab_size, self.draft_size, config.hidden)
            self.markov_head = MarkovHead(config.markov, *sizes)

    def context(self, features: Tensor, places: Tensor, past: KeysValues | None = None) -> KeysValues:
        """Return each layer's keys and values for the target's features [B, S, k * D_t] at positions [S], behind those
        of the features before.
        """
        context = self.hidden_norm(self.fc(features))
        turns = self.turns(places.expand(len(features), -1), context.dtype)
        before = zip(self.layers, past or [None] * len(self.layers), strict=True)
        return tuple(layer.self_attn.keys_values(context, turns, pair) for layer, pair in before)

    def forward(self, root: Tensor, place: int, past: KeysValues) -> tuple[Tensor, Tensor]:
        """Return the logits [B, J, W] of the tokens behind a root [B] at position `place`, without a Markov head's
        scores, and the states [B, J, D] that they were made of.
        """
        assert self.config.block is not None and self.config.mask_token is not None
        masks = torch.full((len(root), self.config.block - 1), self.config.mask_token, device=root.device)
        x = self.embedded(torch.cat([root.unsqueeze(1), masks], 1)).to(self.fc.weight.dtype)
        places = torch.arange(place, place + self.config.block, device=root.device)
        turns = self.turns(places.expand(len(root), -1), x.dtype)
        for layer, keys_values in zip(self.layers, past, strict=True):
            x, _ = layer(x, turns, keys_values)
        states = self.norm(x if self.config.shifted else x[:, 1:])
        return self.logits(states), states


def eagle_network(config: EagleConfig, embedding: Tensor, output: Tensor) -> EagleNetwork | BlockNetwork:
    """Return a network of the config's form, with weights at random; see `FeatureNetwork`."""
    return (BlockNetwork if config.form == "dflash" else EagleNetwork)(config, embedding, output)
