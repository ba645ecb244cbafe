"""What a checkpoint's generation configuration asks for is said where a run does not follow it."""

from types import SimpleNamespace

import pytest
from transformers import GenerationConfig

from specdec.models.generation_config import not_followed


@pytest.mark.parametrize(
    ("asked", "temperature", "told"),
    [
        (None, 1.0, None),
        ({}, 0.0, None),
        ({"eos_token_id": [1, 2], "max_length": 512, "pad_token_id": 0}, 0.0, None),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, 0.0, "do_sample=True, temperature=0.6, top_k=20"),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, 0.6, "top_k=20"),
        ({"do_sample": True, "temperature": 0.6}, 0.6, None),
        ({"temperature": 0.6, "repetition_penalty": 1.05}, 0.0, "repetition_penalty=1.05"),  # greedy, as it says
        ({"num_beams": 4, "no_repeat_ngram_size": 3}, 1.0, "no_repeat_ngram_size=3, num_beams=4"),
    ],
)
def test_only_what_is_not_followed_is_said(sampling, asked, temperature, told):
    model = SimpleNamespace(generation_config=None if asked is None else GenerationConfig(**asked))
    found = not_followed(model, sampling(temperature=temperature))
    assert len(found) == (told is not None)
    assert told is None or f"generation_config.json asks for {told}, which is not followed" in found[0]
