"""One forward pass of a transformers decoder over our cache. The caller places the tokens and says what each sees."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec.models.cache import CACHE, KVCache
from specdec.models.masks import for_model, within
from specdec.records import Tree, chain_tree

FIRST_POSITION = "_specdec_first_position"  # the attribute of a model whose own positions do not begin with 0


class Pass(NamedTuple):
    """The result of a forward pass on N tokens: logits [..., N, V], and hidden states [..., N, D] of the layers that
    were asked for, side by side in this order; None for none.
    """

    logits: Tensor
    states: Tensor | None


def run_model(
    model: Any, cache: KVCache, kept: Sequence[int], tokens: Tensor, positions: Tensor | None,
    masks: Mapping[str, Tensor | None], **options: int,
) -> Pass:  # fmt: skip
    """Run a transformers decoder on a batch of tokens [B, N] at positions [B, N], 0 for the first token of a text; None
    for a model that takes none. `kept` are the layers whose hidden states are wanted, counted down from the last (0 is
    what the output head reads), and `options` further arguments of the model.
    """
    if positions is not None and (first := getattr(model, FIRST_POSITION, 0)):
        positions = positions + first
    places = {} if positions is None else {"position_ids": positions}
    output = model(
        input_ids=tokens, attention_mask=for_model(masks), use_cache=True, output_hidden_states=bool(kept),
        **places, **{CACHE: cache}, **options,
    )  # fmt: skip
    return Pass(output.logits, joined_states(output.hidden_states, kept) if kept else None)


def joined_states(states: Sequence[Tensor], kept: Sequence[int]) -> Tensor:
    """Return the `kept` layers' states (see `run_model`) side by side, [..., N, len(kept) * D], by those of every
    layer, each [..., N, D], embeddings first.
    """
    found = [states[-1 - offset] for offset in kept]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def only_sequence(batch: Pass) -> Pass:
    """Return the result of the only sequence of a batch of size one."""
    return Pass(batch.logits[0], None if batch.states is None else batch.states[0])


class Below(NamedTuple):
    """A draft's topology on the device: distances [N] of its tokens from the root, and [N, N] which ones each sees."""

    offsets: Tensor
    visible: Tensor


def static_pass(
    model: Any, cache: KVCache, windows: Mapping[str, int | None], kept: Sequence[int] = (), slots: int | None = None
) -> Callable[..., Pass]:
    """Make a forward pass with the same shapes at every call: it attends to the cache's first `slots` slots (None: all)
    under `windows`: how many tokens back each kind of attention layer sees, or an `AttentionChunk`; None for all.

    The pass is (tokens [N], prefix [1], below = None) -> logits [N, V] and the `kept` layers' states (see `run_model`),
    of tokens that are written to the slots of the cache from `prefix` on: a chain, or the draft whose topology is
    `below`. It leaves the cache's length as it is.
    """
    slots = cache.capacity if slots is None else slots
    columns = torch.arange(slots, device=model.device)
    hidden = torch.full((), torch.finfo(model.dtype).min, dtype=model.dtype, device=model.device)

    def forward(tokens: Tensor, prefix: Tensor, below: Below | None = None) -> Pass:
        places = prefix + torch.arange(len(tokens), device=model.device)
        positions, keys, seen = _sight(places, columns, below)
        masks = {}
        for kind, window in windows.items():
            near = seen if window is None else seen & within(window, positions[:, None], keys)
            masks[kind] = torch.where(near, hidden.new_zeros(()), hidden)[None, None]
        with cache.writing_to(places, slots):
            return only_sequence(run_model(model, cache, kept, tokens.unsqueeze(0), positions.unsqueeze(0), masks))

    return forward


def _sight(places: Tensor, columns: Tensor, below: Below | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions [N] of tokens, those of all slots [slots], and which slots they see, [N, slots], by the
    tokens' own slots `places` [N], one behind another, and all slots [slots], from 0 on; `below` is None for a chain.
    """
    if below is None:
        return places, columns, places[:, None] >= columns
    positions = places[0] + below.offsets
    ahead = columns - places[0]  # 0 is the root's slot
    node = ahead.clamp(0, len(places) - 1)
    in_prefix = ahead < 0
    seen = in_prefix | ((ahead < len(places)) & below.visible[:, node])
    return positions, torch.where(in_prefix, columns, positions[node]), seen


@dataclass(frozen=True)
class PathBatch:
    """A token tree as a batch [B, L], in which each path from the root to a leaf is a sequence of its own (N-Grammys,
    2411.03786): B leaves, L the length of the longest path and the root.

    Sequences begin with the root and are padded with it on the right, which in a causal sequence changes nothing.
    """

    chain: Tree  # topology of one sequence
    index: Tensor  # [B, L]; 0 stands for the root, i + 1 for node i
    places: Tensor  # [N+1] of root and nodes in the flattened batch, in the first sequence that holds them

    def __len__(self) -> int:
        return len(self.index)

    def sequence_of(self, path: Sequence[int]) -> int:
        """Return the number of a sequence that begins with the root and the nodes of `path`."""
        return int(self.places[path[-1] + 1]) // self.index.shape[1] if path else 0


@lru_cache(maxsize=64)
def path_batch(tree: Tree) -> PathBatch:
    """Return one sequence for each of `tree.leaves`, in their order; for an empty tree, the root alone."""
    width, index, places = tree.depth + 1, [], dict[int, int]()
    for sequence, leaf in enumerate(tree.leaves or (-1,)):
        read = [0, *(node + 1 for node in tree.path(leaf))]
        for column, token in enumerate(read):
            places.setdefault(token, sequence * width + column)
        index.append(read + [0] * (width - len(read)))
    first = torch.tensor([places[token] for token in range(len(tree) + 1)])
    return PathBatch(chain_tree(width - 1), torch.tensor(index), first)


@lru_cache(maxsize=64)
def root_batch(sequences: int) -> PathBatch:
    """Return `sequences` sequences of the root alone: rows of width 0, which no tree stands for."""
    return PathBatch(chain_tree(0), torch.zeros(sequences, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
