"""From texts to token ids, a batch at a time. Knows tokenizers and neither files nor models."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")


def encode_texts(tokenizer: Any, texts: Sequence[str], dtype: type[np.unsignedinteger] = np.uint16) -> list[np.ndarray]:
    """Return the token ids of each text, without special tokens, by a fast transformers tokenizer.

    Args:
        texts: encoded in one call, so all of them are in memory.
        dtype: uint16 holds the ids of the recipes' own vocabularies.
    """
    encoded = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [np.array(e.ids, dtype=dtype) for e in encoded]


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items, the last one shorter (`itertools.batched` needs Python 3.12)."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
