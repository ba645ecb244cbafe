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
    "".join(map(chr, np.random.default_rng(5).choice([*range(0xD800), *range(0xE000, 0x110000)], 3000))),
]


@pytest.mark.parametrize("text", [*TEXTS, f"before{END_OF_TEXT}after"])
def test_any_text_round_trips(tiny_corpus, text):
    tokenizer = tiny_corpus.tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    sizes = bytes_per_token(tokenizer)
    assert END_OF_TEXT in text or sum(sizes[i] for i in ids) == len(text.encode())


def test_too_little_text_is_said():
    with pytest.raises(ValueError, match="not 4096"):
        train_tokenizer(["a b c"], 4096, 32)
