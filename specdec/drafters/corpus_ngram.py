"""An n-gram language model of a corpus as a drafter: the unigram and bigram rows of Leviathan et al., Table 3."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from specdec.config import Named, NonEmpty, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.ngrams.cache_folder import made_once
from specdec.ngrams.corpus import open_corpus, tokenize, tokenizer_digest
from specdec.ngrams.kneser_ney import NgramTable
from specdec.records import EMPTY, Draft, TextStart, chain_draft
from specdec.sampling import one_hot, probabilities
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Asked, How, Siblings, grow, growing

logger = logging.getLogger(__name__)

ORDERS = {"unigram": 1, "bigram": 2}  # those that have a name of their own
_CHUNK = 256  # contexts whose laws are standardised at once


@typed
class CorpusNgramConfig(Named):
    order: Annotated[int, Field(ge=1, le=8)]
    corpus: NonEmpty | None
    field: NonEmpty | None
    discount: Annotated[float, Field(gt=0.0, lt=1.0)]
    siblings: Siblings
    cache_dir: NonEmpty | None

    def __post_init__(self) -> None:
        own = ORDERS.get(self.name, self.order)
        if own != self.order:
            raise ValueError(
                f"the order of a {self.name} is {own}, not {self.order}: choose corpus_ngram for another order"
            )


@drafters.register("corpus_ngram", *ORDERS)
class CorpusNgram(Drafter):
    """Draws from p(x | last order - 1 tokens) of a corpus in the target's own tokens (Leviathan et al. 2211.17192,
    4.1), smoothed by interpolated Kneser-Ney (`NgramTable`).

    q is that law, standardised as the target's logits are; children in rows and trees are drawn from it as `siblings`
    says. Under greedy, tokens are point masses, ranked by likelihood. A draft token costs a few binary searches and
    passes over the vocabulary, and no model. Needs a corpus and, for text, the target's tokenizer. Fitted models are
    kept in `cache_dir`.
    """

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, replay="position")

    def __init__(self, config: CorpusNgramConfig, target: Target) -> None:
        corpus = open_corpus(config.corpus, config.field)

        def fit() -> NgramTable:
            logger.info("Fitting an n-gram model of order %d on %s", config.order, corpus.name)
            stream = tokenize(corpus, target.tokenizer, target.vocab_size)
            return NgramTable.fit(stream, target.vocab_size, config.order, config.discount)

        self._table = made_once(
            config.cache_dir,
            lambda: f"{corpus.digest()}/{tokenizer_digest(target.tokenizer)}/{target.vocab_size}/{config.order}",
            "n-gram model",
            fit,
            lambda path, table: table.save(path),
            lambda path: NgramTable.load(path, config.discount),
        )
        self._sampling, self._device = target.sampling, target.device
        self.capabilities = replace(self.capabilities, vocab_size=target.vocab_size)
        self._siblings: Siblings = config.siblings
        self._name = config.name
        self._memory = config.order - 1  # tokens that a proposal depends on
        self._greedy: dict[tuple[int, ...], int] = {}
        self._context: tuple[int, ...] = ()
        self._generator: torch.Generator | None = None

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._context, self._generator = self._last(tuple(text.prompt)), text.generator

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._context = self._last((*self._context, *tokens))

    def draft(self, structure: Structure) -> Draft:
        if structure.gamma == 0:
            return EMPTY
        if structure.single and self._sampling.greedy:
            tokens = list[int]()
            for _ in range(structure.gamma):
                tokens.append(self._most_likely(self._last((*self._context, *tokens))))
            return chain_draft(torch.tensor(tokens, device=self._device), self._name)
        how: How = "ranked" if self._sampling.greedy or structure.beam is not None else self._siblings

        def after(asked: Asked) -> Tensor:
            contexts = [self._last((*self._context, *path)) for path in asked.paths(asked.tokens.device).tolist()]
            if how != "ranked":
                return self._laws(contexts)
            law = torch.from_numpy(np.stack([self._table.law(context) for context in contexts]))
            return law if structure.beam is None else law.log_()

        draft = grow(growing(structure, how, self._name, self._generator), after)
        q = None if draft.q is None else draft.q.to(self._device)
        return replace(draft, tokens=draft.tokens.to(self._device), q=q)

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        tokens = (*prompt, *text)
        contexts = [tokens[max(0, place - self._memory) : place] for place in range(len(prompt), len(tokens))]
        if self._sampling.greedy:
            guesses = torch.tensor([self._most_likely(context) for context in contexts], dtype=torch.long)
            return one_hot(guesses, self._table.vocab_size).to(self._device)
        numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        distinct = list(numbers)
        found = torch.empty(len(distinct), self._table.vocab_size, dtype=torch.float32)
        for start in range(0, len(distinct), _CHUNK):
            found[start : start + _CHUNK] = self._laws(distinct[start : start + _CHUNK])
        return found[torch.tensor([numbers[context] for context in contexts], dtype=torch.long)].to(self._device)

    def _last(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens[-self._memory :] if self._memory else ()

    def _laws(self, contexts: Sequence[tuple[int, ...]]) -> Tensor:
        """Return standardised q [C, V] after each context, in float64 on the CPU, where the drafts' generator lives."""
        laws = np.stack([self._table.law(context) for context in contexts])
        return probabilities(torch.from_numpy(laws).log_(), self._sampling)

    def _most_likely(self, context: tuple[int, ...]) -> int:
        token = self._greedy.get(context)
        if token is None:
            token = self._greedy[context] = int(self._table.law(context).argmax())
        return token
