"""The target's own unigram: the tokens that its embeddings favour whatever the text is."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.drafters.base import drafters
from specdec.drafters.base.lookup import TokenLookup
from specdec.drafters.model_bigram import source_model
from specdec.errors import UsageError
from specdec.models.load import Dtype
from specdec.ngrams.corpus import CorpusPart, open_corpus, tokenize
from specdec.targets.base import Target

logger = logging.getLogger(__name__)

_CHUNK = 8192  # tokens whose embeddings are widened at once


@typed
class ModelUnigramConfig(Named):
    model: NonEmpty | None
    dtype: Dtype
    k: AtLeastOne
    corpus: NonEmpty | None
    field: NonEmpty | None
    calibration: AtLeastOne


@drafters.register("model_unigram")
class ModelUnigram(TokenLookup):
    """Proposes the same k tokens in every context: those whose output embeddings lie at one end of the mean's direction
    (N-Grammys 2411.03786; theory.md 9.1). The end is an empirical choice: its k tokens make up more of a calibration
    text.

    Deterministic: q is a point mass. Row j begins with the token of rank j, and all that follows is the token of rank
    0; children in a tree are the first ranks, whatever their parent is. A draft costs nothing but copying; making the
    table costs two passes over the embeddings and over as much of the corpus as `calibration` says.
    """

    strategy = "model_unigram"

    def __init__(self, config: ModelUnigramConfig, target: Target) -> None:
        source = source_model(config.model, config.dtype, target)
        if source is None:
            raise UsageError(
                "Bad value drafter.model=null: the target has no model whose embeddings could be ranked; give a "
                "drafter.model with the same tokens."
            )
        head = source.model.get_output_embeddings()
        if head is None:
            raise UsageError(
                f"Model {source.name} has no output embeddings to rank: use another drafter, as model_bigram."
            )
        size = source.model.config.get_text_config().vocab_size
        u, v = head.weight[:size], source.model.get_input_embeddings().weight[:size]
        if u.shape != v.shape:
            raise UsageError(
                f"Model {source.name} cannot be ranked by its embeddings: the output's have {u.shape[1]} dimensions "
                f"and the input's {v.shape[1]}; use another drafter, as model_bigram."
            )
        whole = open_corpus(config.corpus, config.field)

        def beginning() -> Iterator[CorpusPart]:
            """Yield the parts up to the one in which `calibration` characters, or token ids, are reached."""
            length = 0
            for part in whole.parts():
                yield part
                length += len(part.content)
                if length >= config.calibration:
                    return

        corpus = replace(whole, size=min(whole.size, config.calibration), parts=beginning)
        text = tokenize(corpus, source.tokenizer, target.vocab_size)
        # The tokens at either end, best first, equals in the order of their numbers.
        scores, k = unigram_scores(u, v).cpu().numpy(), config.k
        ends = {"smallest": np.argsort(scores, kind="stable")[:k], "largest": np.argsort(-scores, kind="stable")[:k]}
        # Share of the calibration text, which has negative numbers for breaks, among the tokens of either end.
        self.hits = {sign: float(np.isin(text[text >= 0], tokens).mean()) for sign, tokens in ends.items()}
        self.sign = max(ends, key=self.hits.__getitem__)  # of equals the paper's, "smallest"
        tokens, rest = ends[self.sign], np.empty((target.vocab_size, 0, 0), dtype=np.int64)
        described = {**source.described, "sign": self.sign, "hits": self.hits}
        super().__init__(target, k, described, np.broadcast_to(tokens, (target.vocab_size, len(tokens))), rest)
        said = "Model unigram of %s: the %d %s scores make up %.1f%% of %s, the other end's %.1f%%"
        own, other = 100 * self.hits[self.sign], 100 * min(self.hits.values())
        logger.info(said, source.name, len(tokens), self.sign, own, corpus.name, other)


def unigram_scores(u: Tensor, v: Tensor) -> Tensor:
    """Return the product [X] float64 of the mean output embedding with each output embedding under the metric
    G = V^T V / |X|: the mean over tokens x of (mean u . v_x)(u_i . v_x); theory.md 9.1. Output and input embeddings are
    [X, D] each, of any float type.
    """
    mean = sum((chunk.sum(0) for chunk in _widened(u)), torch.zeros(())) / len(u)
    # V^T (V mean) / |X|, without the matrix G, which is D x D.
    direction = sum((chunk.T @ (chunk @ mean) for chunk in _widened(v)), torch.zeros(())) / len(v)
    return torch.cat([chunk @ direction for chunk in _widened(u)])


def _widened(embedding: Tensor) -> Iterator[Tensor]:
    return (chunk.double() for chunk in embedding.split(_CHUNK))
