"""The room of several texts in one cache; that each is evaluated as it is alone is shown in `tests/batching/`."""

import pytest
import torch

from specdec.models.decoder import Decoder
from specdec.models.ragged_decoder import RaggedDecoder

PROMPTS = [[7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8], [5], [40, 12, 33, 12, 40, 12, 33, 2]]


def test_the_cache_is_allocated_once_and_has_an_end(tiny_model):
    ragged = RaggedDecoder(Decoder(tiny_model("llama"), "llama", prefill_chunk=64), 3)
    ragged.reserve(40)
    for slot, prompt in enumerate(PROMPTS):
        ragged.start(slot, prompt)
    keys = ragged.cache.layers[0].keys
    ragged.forward([0, 1], [torch.zeros(28, dtype=torch.long), torch.zeros(1, dtype=torch.long)])
    ragged.reserve(39)
    ragged.start(1, PROMPTS[0])
    assert ragged.cache.layers[0].keys is keys and len(keys) == 3
    with pytest.raises(IndexError, match="40 places, 41 were written"):
        ragged.forward([1], [torch.zeros(30, dtype=torch.long)])
    with pytest.raises(ValueError, match="slot 3 is not one of the 3 slots"):
        ragged.start(3, [1])
