"""From documents in tokens to batches, in an order that depends on the recipe, the seed and the step alone: a resumed
training goes on with the very batches that it would have had. Lengths and offsets in tokens.
"""

import numpy as np

from specdec.errors import UsageError
from specdec.training.data.tokenized_corpus import TokenizedCorpus, with_end_of_text
from specdec.training.recipes import PythonDataConfig, StreamConfig, TextDataConfig


def document_order(corpus: TokenizedCorpus, data: PythonDataConfig, seed: int) -> np.ndarray:
    """Order the documents of Python sources: the standard library `stdlib_passes` times, packages once.

    Each occurrence gets a place in [0, 1]; packages are thinned to what the token budget leaves for them.

    Raises:
        UsageError: the budget exceeds the text.
    """
    rng = np.random.default_rng([seed, 1])
    sizes = np.diff(corpus.ends, prepend=0) + 1
    own, other = np.flatnonzero(corpus.in_stdlib), np.flatnonzero(~corpus.in_stdlib)
    passes = int(np.ceil(data.stdlib_passes))
    documents, places = [], []
    for turn in range(passes):
        u = (turn + rng.random(len(own))) / data.stdlib_passes
        chosen = u < 1.0
        documents.append(own[chosen])
        places.append(u[chosen] ** data.stdlib_lateness)
    used = int(sum(sizes[d].sum() for d in documents))
    rng.shuffle(other)
    budget = data.tokens + 4 * data.batch_tokens - used
    count = int(np.searchsorted(np.cumsum(sizes[other]), budget)) + 1
    if budget > int(sizes[other].sum()):
        raise UsageError(
            f"recipe.data.tokens={data.tokens} exceeds the corpus: {used} tokens from the standard library "
            f"in {data.stdlib_passes} passes and {int(sizes[other].sum())} from packages; lower it, or install more of "
            "recipe.corpus.packages."
        )
    documents.append(other[: max(count, 0)])
    places.append(rng.random(len(documents[-1])))
    return np.concatenate(documents)[np.argsort(np.concatenate(places), kind="stable")]


def text_order(corpus: TokenizedCorpus, data: TextDataConfig, seed: int) -> np.ndarray:
    """Order the documents of any other text: every pass reads all of them in a new order, the last pass a part.

    Raises:
        UsageError: the budget asks for more than `data.max_passes`.
    """
    rng = np.random.default_rng([seed, 1])
    sizes = np.diff(corpus.ends, prepend=0) + 1
    whole, budget = int(sizes.sum()), data.tokens + 1
    passes = -(-budget // whole)
    if passes > data.max_passes:
        raise UsageError(
            f"recipe.data.tokens={data.tokens} would read the text of {whole} tokens {passes} times and "
            f"recipe.data.max_passes={data.max_passes}: lower the one, raise the other, or give more text."
        )
    order = np.concatenate([rng.permutation(len(sizes)) for _ in range(passes)])
    return order[: int(np.searchsorted(np.cumsum(sizes[order]), budget)) + 1]


class Batches:
    """The batches of all steps, cut from the stream of ordered documents, stage by stage."""

    def __init__(self, corpus: TokenizedCorpus, data: StreamConfig, seed: int) -> None:
        self.data = data
        if isinstance(data, TextDataConfig):
            order = text_order(corpus, data, seed)
        else:
            assert isinstance(data, PythonDataConfig)
            order = document_order(corpus, data, seed)
        starts = np.concatenate([[0], corpus.ends[:-1]])
        parts = [corpus.tokens[starts[d] : corpus.ends[d]] for d in order]
        self.stream = with_end_of_text(parts, corpus.tokenizer.eos_token_id)
        self.steps = data.tokens // data.batch_tokens
        if self.steps * data.batch_tokens + 1 > len(self.stream):
            raise UsageError(
                f"The text has {len(self.stream)} tokens for recipe.data.tokens={data.tokens}: lower it, or give more "
                "text."
            )
        bounds = [0, *(round(s * self.steps) for s in np.cumsum([stage.share for stage in data.stages]))]
        self.first_steps = bounds[:-1]
        self.offsets = []  # of the sequences of each stage, each moved at most about `shuffle_window`
        for first, last, stage in zip(bounds, bounds[1:], data.stages, strict=False):
            offsets = np.arange(first * data.batch_tokens, last * data.batch_tokens, stage.sequence_length)
            jitter = np.random.default_rng([seed, 2, first]).random(len(offsets)) * data.shuffle_window
            self.offsets.append(offsets[np.argsort(np.arange(len(offsets)) + jitter, kind="stable")])

    def __call__(self, step: int) -> np.ndarray:
        """Return a step's sequences, each with the token after it, [B, S + 1] int64."""
        stage = max(i for i, first in enumerate(self.first_steps) if first <= step)
        length = self.data.stages[stage].sequence_length
        count = self.data.batch_tokens // length
        start = (step - self.first_steps[stage]) * count
        chosen = self.offsets[stage][start : start + count]
        return np.stack([self.stream[o : o + length + 1] for o in chosen]).astype(np.int64)
