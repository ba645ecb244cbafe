"""A transformers decoder over our own cache: rows in, logits out. Shared by targets and by drafters that are models.

Masks and positions are explicit and precomputed: a mask is a view, so a call allocates nothing but activations.
Knows neither sampling nor acceptance.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from specdec.errors import ModelLoadError
from specdec.kv_cache import KVCache
from specdec.records import Tree, chain_tree

# Layer types whose state can be rolled back by forgetting rows, and what they may see.
_ATTENTION = ("full_attention", "sliding_attention")


class Decoder:
    """One decoder-only model and the cache of one text.

    Attributes:
        model: the transformers model, unpatched.
        vocab_size, context_length, end_tokens: of the model.
    """

    def __init__(self, model: Any, name: str, prefill_chunk: int) -> None:
        """
        Raises:
            ModelLoadError: layers whose state cannot be rolled back after a rejection.
        """
        self.model, self.name, self.prefill_chunk = model, name, prefill_chunk
        self.device: torch.device = model.device
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.context_length: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.end_tokens = _end_tokens(model)
        self._layers: int = config.num_hidden_layers
        self._windows = _windows(config, name)
        # The prefill needs no logits; models that can, compute one row instead of a vocabulary for each prompt token.
        lean = "logits_to_keep" in signature(model.forward).parameters
        self._no_logits: dict[str, int] = {"logits_to_keep": 1} if lean else {}
        self.cache = KVCache(self._layers, 1)
        self._masks: dict[Tree, dict[str, Tensor]] = {}
        self._mask_capacity = 0

    @property
    def length(self) -> int:
        """Rows in the cache; setting it forgets the rows behind."""
        return self.cache.length

    @length.setter
    def length(self, value: int) -> None:
        self.cache.length = value

    def start(self, tokens: Sequence[int], capacity: int) -> None:
        """Begin a new text and prefill `tokens` (may be none); `capacity` rows are all it will ever need."""
        self.cache = KVCache(self._layers, capacity)
        for begin in range(0, len(tokens), self.prefill_chunk):
            chunk = torch.tensor(tokens[begin : begin + self.prefill_chunk], device=self.device)
            self.forward(chunk, chain_tree(len(chunk) - 1), **self._no_logits)

    def forward(self, tokens: Tensor, tree: Tree, **options: int) -> Tensor:
        """Append `tokens` [N+1], the first the root of `tree` and the others its nodes, behind the cached rows.

        Returns:
            logits [N+1, V], or fewer rows where `options` ask for fewer.
        """
        prefix = self.cache.length
        output = self.model(
            input_ids=tokens.unsqueeze(0),
            attention_mask=self._mask(prefix, tree),
            position_ids=(tree.offsets.to(self.device) + prefix).unsqueeze(0),
            past_key_values=self.cache,
            use_cache=True,
            **options,
        )
        return output.logits[0]

    def plain(self, tokens: Sequence[int], model: Any = None) -> Tensor:
        """Logits [S, V] of a forward pass over a whole text without the cache, by `model` where another is given."""
        return (model or self.model)(
            input_ids=torch.tensor([list(tokens)], device=self.device), use_cache=False
        ).logits[0]

    @property
    def flops_per_token(self) -> float:
        """About 2 x parameters: input embeddings are looked up, not multiplied; tied ones count as the output head."""
        embedding = self.model.get_input_embeddings().weight
        head = self.model.get_output_embeddings()
        tied = head is not None and head.weight is embedding
        return 2.0 * (sum(weight.numel() for weight in self.model.parameters()) - (0 if tied else embedding.numel()))

    def _mask(self, prefix: int, tree: Tree) -> Tensor | dict[str, Tensor]:
        """Additive 4-D mask [1, 1, N+1, S + N+1]: every row sees the prefix, its ancestors and itself, within its
        window. What a row sees depends on distances alone, so one mask per tree serves every prefix, as a view.
        """
        if self._mask_capacity < self.cache.capacity:
            self._masks, self._mask_capacity = {}, self.cache.capacity
        masks = self._masks.get(tree)
        if masks is None:
            if len(self._masks) >= 64:
                self._masks.clear()
            masks = {kind: self._whole_mask(window, tree) for kind, window in self._windows.items()}
            if len(tree) < 64:  # a prefill's square is not worth keeping
                self._masks[tree] = masks
        start = self._mask_capacity - prefix
        views = {kind: mask[:, :, :, start:] for kind, mask in masks.items()}
        # One kind of layer takes a plain mask; models that mix kinds take one by the name of each.
        return views if len(views) > 1 else next(iter(views.values()))

    def _whole_mask(self, window: int | None, tree: Tree) -> Tensor:
        """[1, 1, N+1, capacity + N+1] for a full cache: column j stands for the row `capacity - j` before the root."""
        rows, capacity = len(tree) + 1, self._mask_capacity
        visible = torch.ones(rows, capacity + rows, dtype=torch.bool)
        visible[:, capacity:] = tree.visible
        if window is not None:
            keys = torch.cat([torch.arange(-capacity, 0), tree.offsets])
            visible &= tree.offsets[:, None] - keys < window
        mask = torch.zeros(visible.shape, dtype=self.model.dtype)
        mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        return mask[None, None].to(self.device)


def _end_tokens(model: Any) -> frozenset[int]:
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ends is None:
        ends = model.config.get_text_config().eos_token_id
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)


def _windows(config: Any, name: str) -> dict[str, int | None]:
    """The attention kinds of a model and their windows; refuses layers whose state cannot be rolled back."""
    kinds = set(getattr(config, "layer_types", None) or ())
    refused = sorted(kinds - set(_ATTENTION))
    if refused:
        raise ModelLoadError(
            f"Model {name} has {refused[0]} layers, whose state cannot be rolled back after a rejection; "
            "use a model with attention layers only."
        )
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"full_attention": window}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
