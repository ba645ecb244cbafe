import numpy as np
import pytest

from specdec.training.data.tokenizer import END_OF_TEXT, bytes_per_token, train_tokenizer

TEXTS = [
    "def f(x):\n    return x\n",
    "\tif a:\r\n\t\tb()\r\n\n\n   \n",
    "  leading, trailing   ",
    "naïve café 北京 🎉 \u200b\u0301 \x00\x07 'don’t'",
    "",
    "\n",
    "1234567890 0xFF_FF 1e-9j ...->**=",
    f"before{END_OF_TEXT}after",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_round_trips(tiny_corpus, text):
    tokenizer = tiny_corpus.tokenizer
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_random_unicode_round_trips(tiny_corpus):
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 0x110000, 3000)
    text = "".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF)
    ids = tiny_corpus.tokenizer.encode(text, add_special_tokens=False)
    assert tiny_corpus.tokenizer.decode(ids) == text
    sizes = bytes_per_token(tiny_corpus.tokenizer)
    assert sum(sizes[i] for i in ids) == len(text.encode())


def test_too_little_text_is_said():
    with pytest.raises(ValueError, match="not 4096"):
        train_tokenizer(["a b c"], 4096, 32)
