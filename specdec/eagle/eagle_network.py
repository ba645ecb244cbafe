"""The networks of EAGLE (2401.15077), EAGLE-2 (2406.16858) and EAGLE-3 (2503.01840), with their published variants, and
of DFlash (z-lab), which fills a block of mask tokens behind the root in one pass, and of DSpark (2607.05147), which
corrects the laws of such a block by the tokens drafted before.

Letters: B sequences, S rows, P earlier rows, k features of D_t values, D the network's own width, V tokens of the
target, W tokens that can be drafted, N tokens of a block, the root among them; J of them draft, M paths of tokens, R
the rank of a Markov head.
Modules carry the names of published files.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specdec.eagle.eagle_config import EagleConfig
from specdec.eagle.feature_network import FeatureNetwork, GatedMlp, GroupedAttention, KeysValues
from specdec.targets.base.contract import HiddenStates


class EagleLayer(nn.Module):
    """One decoder layer. The first one of the EAGLE-3 form attends to the normed embedding and the normed feature side
    by side, and its residual is the feature itself. The first one of EAGLE-1 has no norm before its attention. All
    others are ordinary ones.
    """

    def __init__(self, config: EagleConfig, first: bool) -> None:
        super().__init__()
        size, eps = config.hidden, config.rms_eps
        self.joins = first and config.form == "eagle3"
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = None if first and config.form == "eagle1" else nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps) if self.joins else None
        self.self_attn = GroupedAttention(config, 2 * size if self.joins else size)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = GatedMlp(size, config.intermediate)

    def forward(
        self,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        past: tuple[Tensor, Tensor] | None,
        mask: Tensor | None = None,
        embedded: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
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
    """A feature drafter: rows of (feature of position i, token i+1) give states that stand for the feature of position
    i+1, and laws of token i+2.
    """

    def __init__(self, config: EagleConfig, embedding: Tensor, output: Tensor) -> None:
        super().__init__(config, embedding, output)
        size, eps, features = config.hidden, config.rms_eps, config.features * config.target_hidden
        joined = 2 * size if config.form == "eagle1" else features
        self.input_norm = nn.RMSNorm(features, eps) if config.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(nn.RMSNorm(config.target_hidden, eps) for _ in range(config.features))
            if config.fc_norm
            else None
        )
        self.mask_hidden = nn.Parameter(torch.zeros(features)) if config.mask_token is not None else None
        self.fc = nn.Linear(joined, size, bias=config.fc_bias)
        self.layers = nn.ModuleList(EagleLayer(config, first=layer == 0) for layer in range(config.layers))
        self.norm = nn.RMSNorm(size, eps) if config.form == "eagle3" else None

    @classmethod
    def for_target(cls, config: EagleConfig, hidden: HiddenStates, kept: Sequence[int] | None = None) -> "EagleNetwork":
        """Make an untrained network for a target, in its dtype.

        Attention and MLP begin with zeros and `fc` with the last feature (EAGLE-1: the feature), where the widths
        agree, and an own output layer or embedding with the target's: so training begins with a law of one token
        earlier. `kept` are ids of the tokens that can be drafted, `draft_vocabulary` of them, in ascending order; None
        for all. Raises ValueError: ids that are not ascending, or another number of them.
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
        """Return the token [1, count] and the state [1, count, D] of rows whose token and feature are not known
        (P-EAGLE 2602.01469).
        """
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
            mask: rows that each row sees, true for seen: [S, P+S] or [B, S, P+S]; None where each sees all before it.
            last: number of rows at the end that need logits; None for all.
        Returns:
            carried: [B, S, D] the states that the next step of each row reads.
            logits: [B, S, W] of token i+2, or of the `last` rows only, over the tokens that can be drafted.
            keys and values of all P+S rows.
        """
        embedded = self.embedded(tokens).to(states.dtype)
        x = self.fc(torch.cat([embedded, states], -1)) if self.config.form == "eagle1" else states
        turns = self.turns(places.expand_as(tokens), x.dtype)
        seen = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        kept = []
        for number, layer in enumerate(self.layers):
            x, keys_values = layer(x, turns, None if past is None else past[number], seen, embedded)
            kept.append(keys_values)
        normed = self.normed(x)
        logits = self.logits(normed if last is None else normed[:, normed.shape[1] - last :])
        return normed if self.config.norm_output else x, logits, tuple(kept)

    def normed(self, states: Tensor) -> Tensor:
        """Return the last layer's states [..., D] as the output layer reads them."""
        if self.norm is None:
            return states
        return self.norm(states)


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
    """A block of `config.block` tokens, the root and mask tokens, over keys and values that are made of the target's
    features, past the norms of the layers: each gives the law of the token at its own place, or where `config.shifted`
    of the one behind it.
    """

    def __init__(self, config: EagleConfig, embedding: Tensor, output: Tensor) -> None:
        super().__init__(config, embedding, output)
        self.fc = nn.Linear(config.features * config.target_hidden, config.hidden, bias=config.fc_bias)
        self.hidden_norm = nn.RMSNorm(config.hidden, config.rms_eps)
        self.layers = nn.ModuleList(EagleLayer(config, first=False) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, config.rms_eps)
        self.markov_head = None
        if config.markov is not None and config.markov_rank is not None:
            sizes = (config.markov_rank, self.vocab_size, self.draft_size, config.hidden)
            self.markov_head = MarkovHead(config.markov, *sizes)

    def context(self, features: Tensor, places: Tensor) -> KeysValues:
        """Return each layer's keys and values for the target's features [B, S, k * D_t] at positions [S]."""
        context = self.hidden_norm(self.fc(features))
        turns = self.turns(places.expand(len(features), -1), context.dtype)
        return tuple(layer.self_attn.keys_values(context, turns) for layer in self.layers)

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
