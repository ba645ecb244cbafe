"""The multi-token-prediction heads of a target (MTP; DeepSeek-V3 2412.19437, section 2.2), and their rows over a text.

A row is named by the place t of its token. Row t of the first head reads token t and the target's state of token t-1;
that of each further head reads token t and the state that the head before left at row t-1. Row t predicts token t+1.
Rows of the text are made of the target's states only; those of a draft are dropped with it.

Letters: B sequences, S rows, P earlier rows, D the target's width, V its tokens.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.errors import UsageError
from specdec.models.cache import CACHE

_ROWS = 512  # in a call, so that the mask of a long prompt stays small
_REPLAYED = 2**15  # rows of the text, times the drafts that see them, in a call of a replay


class LayerRows:
    """The keys and values of a decoder layer's rows, as transformers' layers ask for them. No tensor is written to, so
    that a copy of the object leaves the rows of the other alone.
    """

    def __init__(self, held: tuple[Tensor, ...] = ()) -> None:
        self.held = held  # keys and values, or what the layer keeps in their place, [B, heads, P, size] each

    def __len__(self) -> int:
        return self.held[0].shape[2] if self.held else 0

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append rows [B, heads, S, size] and return all of them."""
        if self.held:
            keys, values = torch.cat([self.held[0], keys], 2), torch.cat([self.held[1], values], 2)
        self.held = (keys, values)
        return keys, values


class MtpHead(nn.Module):
    """The weights of one head: norms of token and state, their projection, a layer of the target's kind, and a norm."""

    def __init__(self, layer: nn.Module, norm: type[nn.Module], size: int, eps: float) -> None:
        super().__init__()
        self.enorm, self.hnorm, self.norm = (norm(size, eps=eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = layer


class MtpNetwork(nn.Module):
    """Heads that predict further tokens from the target's last state, in order: step k of a draft takes head k modulo
    their number. The target's embeddings, rotary positions and output layer are read and never stored.
    """

    product: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)  # with the output layer

    def __init__(self, model: Any, output: Tensor, heads: int, hidden_first: bool) -> None:
        """Make heads of the target's transformers model, of its class of layers with the config of the last one with
        full attention, and of its output layer [V, D]. If `hidden_first`, the projection reads the state before the
        embedding. Raises UsageError: layers that are kept in an unknown way, or all attend to a window.
        """
        super().__init__()
        decoder, config = model.get_decoder(), copy.deepcopy(model.config.get_text_config())
        layers, norm, rotary = (getattr(decoder, name, None) for name in ("layers", "norm", "rotary_emb"))
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(layers or ())
        if not layers or norm is None or rotary is None or "full_attention" not in kinds:
            raise UsageError(
                f"Bad value drafter=mtp: the layers of a {config.model_type} model are kept in a way that MTP heads "
                "are not made for; use another drafter, such as ngram."
            )
        last = max(place for place, kind in enumerate(kinds) if kind == "full_attention")
        # A kernel of transformers' own: that of the target may be exchanged for calls that it is compiled for.
        config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
        size, eps = output.shape[1], config.rms_norm_eps
        made = (MtpHead(type(layers[last])(config, last), type(norm), size, eps) for _ in range(heads))
        self.heads = nn.ModuleList(made)
        self.hidden_first = hidden_first
        rope = getattr(config, "rope_parameters", None) or {}
        by_kind = any(isinstance(value, dict) for value in rope.values())
        self._rotary_kind = ("full_attention",) if by_kind else ()
        # In a tuple, so that they do not become modules of this one.
        self._target = (model.get_input_embeddings(), rotary, output)

    def forward(
        self, number: int, tokens: Tensor, states: Tensor, places: Tensor, past: LayerRows, unseen: Tensor | None = None
    ) -> Tensor:
        """Evaluate rows of head `number` behind P earlier ones, to which they are appended; they see these and each
        other in order. They read tokens [B, S], the states [B, S, D] left at the place before each, and the rotary
        positions [B, S] of these; a sequence does not see earlier rows that `unseen` [B, P] marks. Return the states
        [B, S, D] behind the head's norm, which make logits, and are what the next row reads.
        """
        embed, rotary, _ = self._target
        head: Any = self.heads[number]
        pair = [head.enorm(embed(tokens).to(states.dtype)), head.hnorm(states)]
        x = head.eh_proj(torch.cat(pair[::-1] if self.hidden_first else pair, -1))
        rows, before = tokens.shape[1], len(past)
        hidden = torch.ones(rows, before + rows, dtype=torch.bool, device=x.device).triu_(before + 1)
        hidden = hidden.expand(len(tokens), 1, -1, -1)
        if unseen is not None:
            earlier = unseen[:, None, None].expand(-1, -1, rows, -1)
            hidden = torch.cat([hidden[..., :before] | earlier, hidden[..., before:]], -1)
        mask = torch.zeros(hidden.shape, dtype=x.dtype, device=x.device).masked_fill_(hidden, torch.finfo(x.dtype).min)
        turns = rotary(x, places, *self._rotary_kind)
        x = head.layer(x, position_embeddings=turns, attention_mask=mask, position_ids=places, **{CACHE: past})
        return head.norm(x[0] if isinstance(x, tuple) else x)

    @property
    def output_layer(self) -> Tensor:
        """The target's output layer [V, D]."""
        return self._target[2]

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [..., V] for the states [..., D] of rows."""
        return self.product(states, self.output_layer.to(states.dtype))


class MtpText:
    """The rows of a committed text in every head, those of its last token included. A head has no row where there is no
    state yet: the first row of head k is at place k + 1. `length` counts the first head's, to the last token.
    """

    def __init__(self, network: MtpNetwork, keep: bool = False) -> None:
        self._network, self._keep = network, keep
        self.length = 0
        self.layers = [LayerRows() for _ in network.heads]
        # Each head keeps the state [1, 1, D] of its last row, or with `keep` the states of all rows.
        self.states: list[Tensor | None] = [None] * len(self.layers)

    def append(self, tokens: Tensor, features: Tensor) -> None:
        """Add the rows of some tokens [S], a piece at a time, by the target's states [S, D] of the places before."""
        for begin in range(0, len(tokens), _ROWS):
            piece = tokens[begin : begin + _ROWS].unsqueeze(0)
            states = features[begin : begin + _ROWS].unsqueeze(0)
            places = torch.arange(self.length, self.length + piece.shape[1], device=piece.device).unsqueeze(0)
            for number, layer in enumerate(self.layers):
                if not (rows := states.shape[1]):
                    break
                new = self._network(number, piece[:, -rows:], states, places[:, -rows:], layer)
                before = self.states[number]
                all_states = new if before is None else torch.cat([before, new], 1)
                # The row of the next head at the first of these places reads the state at the place before it.
                states = all_states[:, -rows - 1 : -1]
                self.states[number] = all_states if self._keep else new[:, -1:]
            self.length += piece.shape[1]

    def draft(self, depth: int) -> "MtpDraft":
        """Begin a draft behind the last token, of any depth. There is at least one row."""
        places = torch.full((1,), self.length, device=self.layers[0].held[0].device)
        return MtpDraft(self._network, [copy.copy(layer) for layer in self.layers], self.states, places)


class MtpDraft:
    """The rows of a chain, or of B chains that begin at different places of one text, level by level; `first` are the
    logits [B, V] after the root.

    Step k evaluates the rows of head k modulo N that it has not yet seen, of N heads: those of the drafted tokens from
    the first one on, or the last N of them. The state at the place before is the one that the step before left.
    """

    def __init__(
        self,
        network: MtpNetwork,
        layers: list[LayerRows],
        states: Sequence[Tensor | None],
        roots: Tensor,
        unseen: Sequence[Tensor | None] | None = None,
    ) -> None:
        """Begin behind roots at places [B]. Each head has in `layers` the rows of the text, which grow; in `states` the
        state [B, 1, D] of the root's row, None where it has none; and in `unseen` the rows [B, P] of the text behind a
        chain's root, None where there are none.
        """
        self._network, self._layers, self._roots_states, self._roots = network, layers, states, roots
        self._unseen = unseen or [None] * len(layers)
        self._tokens = torch.empty(len(roots), 0, dtype=torch.long, device=roots.device)
        assert states[0] is not None
        self._states = states[0][:, :0]  # of the rows of the last step, none yet
        self.first = network.logits(states[0][:, -1])

    def next(self, token: Tensor) -> Tensor:
        """Add the rows of the next step, for token [B]; return the logits [B, V] after it."""
        count = len(self._layers)
        step = self._tokens.shape[1] + 1
        self._tokens = torch.cat([self._tokens, token.unsqueeze(1)], 1)
        states, root = self._states, self._roots_states[(step - 1) % count]
        if states.shape[1] == step - 1 and root is not None:  # they begin behind the root's row
            states = torch.cat([root, states], 1)
        states = states[:, -count:]
        rows, number = states.shape[1], step % count
        layer, unseen = self._layers[number], self._unseen[number]
        if unseen is not None:  # rows of the chain itself are seen
            unseen = F.pad(unseen, (0, len(layer) - unseen.shape[1]))
        places = (self._roots - 1 + step).unsqueeze(1) - torch.arange(rows - 1, -1, -1, device=token.device)
        self._states = self._network(number, self._tokens[:, -rows:], states, places, layer, unseen)
        return self._network.logits(self._states[:, -1])


def drafts_along(network: MtpNetwork, tokens: Tensor, features: Tensor, first: int) -> Iterator[tuple[int, MtpDraft]]:
    """Begin a draft at every place, from `first` >= 1 to T-2, of a text of tokens [T] and their states [T-1, D]; yield
    the place of the first of B roots in a row, with the draft of their B chains: that of a text that ends there.
    """
    count, last = len(network.heads), len(tokens) - 1
    whole = MtpText(network, keep=True)
    for root in range(first, min(count, last)):  # not every head has a row here
        text = MtpText(network)
        text.append(tokens[1 : root + 1], features[:root])
        yield root, text.draft(len(tokens) - root)
    first = max(first, count)
    if first < last:
        whole.append(tokens[1:last], features[: last - 1])
    size = max(1, _REPLAYED // last)
    for begin in range(first, last, size):
        roots = torch.arange(begin, min(begin + size, last), device=tokens.device)
        # Row r of head k is at place r + k + 1.
        ranks = [roots - number - 1 for number in range(count)]
        unseen = [
            torch.arange(len(layer), device=tokens.device) > rank.unsqueeze(1)
            for rank, layer in zip(ranks, whole.layers, strict=True)
        ]
        states = [each[0, rank, None] for rank, each in zip(ranks, whole.states, strict=True) if each is not None]
        # The rows of the one text, shared by all chains.
        shared = [tuple(held.expand(len(roots), -1, -1, -1) for held in layer.held) for layer in whole.layers]
        yield begin, MtpDraft(network, [LayerRows(held) for held in shared], states, roots, unseen)
