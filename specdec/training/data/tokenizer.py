"""The pocket tokenizer: byte-level BPE, lossless on any text, made for Python code."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"

# A newline takes the indentation after it; a word takes one character before it (" x", ".x", "_x", "(x").
PIECES = "|".join(
    [
        r"[\r\n]+[ \t]*",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+",
        r"[^\S\r\n]+(?=\S)",
        r"\s+",
    ]
)


def train_tokenizer(texts: Iterable[str], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of exactly `vocabulary` pieces, which states the length `context`, in tokens, as its model's.
    Raises ValueError: the texts are too small for it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} pieces, not {vocabulary}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )


def bytes_per_token(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the UTF-8 bytes of each piece, by id; 0 for the special token."""
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [0 if piece == END_OF_TEXT else len(piece) for piece in pieces]
