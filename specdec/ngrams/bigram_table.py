"""Tables of the tokens that a language model ranks first after every single token: made in one batched pass over the
vocabulary. Knows neither configuration nor drafting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.errors import ModelLoadError
from specdec.models.cache import CACHE
from specdec.progress import stage
from specdec.sampling import among_largest


@dataclass(frozen=True)
class Form:
    """The form of a table; form and weights together determine its content.

    Attributes:
        dtype: dtype that the model computes in.
        begin: token in front of every x; None if x stands alone.
        k: number of tokens ranked after each x.
        extended: number of these k that are continued by greedy decoding.
        width: tokens of a continuation, its first token y included.
    """

    dtype: str
    begin: int | None
    k: int
    extended: int
    width: int


@dataclass(frozen=True)
class BigramTable:
    """
    Attributes:
        first: [V, k] int32, the most likely tokens y after each x, best first; equally likely ones by token number.
        rest: [V, extended, width - 1] int32, the tokens of greedy decoding after x y.
    """

    first: np.ndarray
    rest: np.ndarray


@torch.inference_mode()
def tabulate(model: Any, name: str, form: Form, batch_size: int) -> BigramTable:
    """Make a table: one call of the model for each `batch_size` tokens of the vocabulary, positions from 0; for
    continuations, `width` - 1 more calls for each `batch_size` pairs.

    Raises:
        ModelLoadError: the logits are not finite.
    """
    size: int = model.config.get_text_config().vocab_size
    batches = torch.arange(size, device=model.device).split(batch_size)
    begin = [] if form.begin is None else [torch.tensor(form.begin, device=model.device)]
    k = min(form.k, size)

    def inputs(*columns: Tensor) -> Tensor:
        return torch.stack([*(token.expand_as(columns[0]) for token in begin), *columns], dim=-1)  # [B, S]

    first: list[Tensor] = []
    rest: list[Tensor] = []
    with stage("model bigram", total=size, told=False) as under_way:
        for tokens in batches:
            logits = model(input_ids=inputs(tokens), use_cache=False).logits[:, -1]  # [B, V]
            if not torch.isfinite(logits.max(dim=-1).values).all():
                raise ModelLoadError(
                    f"No bigram table can be made of {name}: its logits are not finite; try another dtype, as float32."
                )
            first.append(top_tokens(logits, k))
            under_way.advance(len(tokens))
    ranked = torch.cat(first)  # [V, k]
    extended = min(form.extended, k) if form.width > 1 else 0
    if extended:
        pairs = inputs(
            torch.arange(size, device=model.device).repeat_interleave(extended), ranked[:, :extended].flatten()
        )
        with stage("model bigram's continuations", total=len(pairs), told=False) as under_way:
            for batch in pairs.split(batch_size):
                rest.append(continued(model, batch, form.width - 1))
                under_way.advance(len(batch))
    continuations = torch.cat(rest) if rest else torch.empty(0, dtype=torch.long)
    shape = (size, extended, form.width - 1 if extended else 0)
    return BigramTable(_int32(ranked), _int32(continuations).reshape(shape))


def tabulate_law(law: Callable[[list[int]], Tensor], size: int, form: Form) -> BigramTable:
    """Make the same table from any law, one context at a time; `law(tokens)` gives the logits [V] after them."""
    first = top_tokens(torch.stack([law([token]) for token in range(size)]), min(form.k, size))
    extended = min(form.extended, first.shape[1]) if form.width > 1 else 0
    rest = np.zeros((size, extended, form.width - 1 if extended else 0), dtype=np.int32)
    for token in range(size):
        for rank in range(extended):
            text = [token, int(first[token, rank])]
            while len(text) < form.width + 1:
                text.append(int(law(text).max(dim=-1).indices))
            rest[token, rank] = text[2:]
    return BigramTable(_int32(first), rest)


def top_tokens(logits: Tensor, k: int) -> Tensor:
    """Return the tokens [B, k] with the largest logits [B, V], best first, equals in the order of their numbers.

    The order of equals in `topk` is arbitrary, and equals are common in 16-bit.
    """
    tokens = among_largest(logits, k).nonzero()[:, 1].reshape(len(logits), k)
    order = logits.gather(-1, tokens).sort(dim=-1, descending=True, stable=True).indices
    return tokens.gather(-1, order)


def continued(model: Any, tokens: Tensor, count: int) -> Tensor:
    """Decode `count` tokens [B, count] greedily after each sequence of `tokens` [B, S]."""
    written: list[Tensor] = []
    cache = None
    while len(written) < count:
        output = model(input_ids=tokens, use_cache=True, **{CACHE: cache})
        tokens, cache = output.logits[:, -1].max(dim=-1, keepdim=True).indices, output[CACHE]
        written.append(tokens)
    return torch.cat(written, dim=-1)


def _int32(tokens: Tensor) -> np.ndarray:
    return tokens.cpu().numpy().astype(np.int32)
