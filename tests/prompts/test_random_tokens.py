"""Random prompts: of the length and number asked for, the same for the same seed, below the vocabulary."""

import pytest

from specdec.errors import UsageError


def tokens(load, **keys):
    return [prompt.tokens for prompt in load("random_tokens", tokenizer=None, vocab_size=4096, **keys).prompts]


def test_count_length_and_range(load):
    found = tokens(load, count=5, length=40, vocabulary=7)
    assert len(found) == 5 and {len(ids) for ids in found} == {40}
    assert {token for ids in found for token in ids} == set(range(7))
    assert len(set(found)) == 5


def test_a_prompt_depends_on_seed_and_number_alone(load):
    few, many = tokens(load, count=2, length=9), tokens(load, count=6, length=9)
    assert many[:2] == few and tokens(load, count=2, length=9, seed=1) != few


@pytest.mark.parametrize("key", ["count", "length", "vocabulary"])
def test_bad_values_name_their_key(load, key):
    with pytest.raises(UsageError, match=f"prompts.{key}=0"):
        tokens(load, **{key: 0})
