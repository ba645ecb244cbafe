"""Uniformly random token ids, for targets with random weights: only the length of such a prompt matters."""

import random

from specdec.config import AtLeastOne, typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts


@prompts.register("random_tokens")
@typed
class RandomTokens(PromptSource, SetConfig):
    """Draws `count` prompts of `length` tokens; each depends on the seed and its own number alone."""

    count: AtLeastOne
    length: AtLeastOne  # tokens of each
    vocabulary: AtLeastOne  # ids are drawn below this; the target's own vocabulary may be larger, not smaller
    seed: int

    def read(self) -> SourceContent:
        entries = []
        for number in range(self.count):
            dice = random.Random(f"{self.seed}/{number}")
            ids = tuple(dice.randrange(self.vocabulary) for _ in range(self.length))
            entries.append(Entry(f"{self.name}/{number}", self.name, tokens=ids))
        return SourceContent(entries, {"source": "random"})
