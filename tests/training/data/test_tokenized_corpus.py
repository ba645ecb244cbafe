from dataclasses import replace

import numpy as np
import pytest

from specdec.errors import UsageError
from specdec.training.data.tokenized_corpus import Batches, bytes_per_token, document_order, train_tokenizer


def test_batches_cover_the_stream_once(tiny_corpus, train_config):
    data = train_config.recipe.data
    batches = Batches(tiny_corpus, data, seed=3)
    inputs = np.concatenate([batches(step)[:, :-1].ravel() for step in range(batches.steps)])
    assert batches.steps == 8 and inputs.size == data.tokens
    assert batches(0).shape == (8, 9) and batches(7).shape == (2, 33)
    assert sorted(inputs) == sorted(batches.stream[: data.tokens])


def test_the_order_depends_on_seed_and_step_alone(tiny_corpus, train_config):
    data = train_config.recipe.data
    one, two, three = (Batches(tiny_corpus, data, seed) for seed in (3, 3, 4))
    two(0)  # asking for other steps first changes nothing
    assert np.array_equal(one(5), two(5))
    assert not np.array_equal(one(5), three(5))


def test_passes_over_the_standard_library(tiny_corpus, train_config):
    order = document_order(tiny_corpus, train_config.recipe.data, seed=3)
    counts = np.bincount(order, minlength=30)
    assert set(counts[:2]) <= {1, 2} and counts[:2].sum() >= 2  # 1.5 passes
    assert counts[2:].max() == 1


def test_a_budget_beyond_the_text_is_refused(tiny_corpus, train_config):
    data = replace(train_config.recipe.data, tokens=10**7)
    with pytest.raises(UsageError, match="exceeds the corpus"):
        document_order(tiny_corpus, data, seed=3)


TEXTS = [
    "def f(x):\n    return x\n",
    "\tif a:\r\n\t\tb()\r\n\n\n   \n",
    "  leading, trailing   ",
    "naïve café 北京 🎉 \u200b\u0301 \x00\x07 'don’t'",
    "",
    "\n",
    "1234567890 0xFF_FF 1e-9j ...->**=",
    "".join(map(chr, np.random.default_rng(5).choice([*range(0xD800), *range(0xE000, 0x110000)], 3000))),
]


@pytest.mark.parametrize("text", [*TEXTS, "before<|endoftext|>after"])
def test_any_text_round_trips(tiny_corpus, text):
    tokenizer = tiny_corpus.tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    sizes = bytes_per_token(tokenizer)
    assert tokenizer.eos_token in text or sum(sizes[i] for i in ids) == len(text.encode())


def test_too_little_text_is_said():
    with pytest.raises(ValueError, match="not 4096"):
        train_tokenizer(["a b c"], 4096, 32)
