"""Uniformly random token ids, for targets with random weights: only the length of such a prompt matters."""

import random

from specdec.config import AtLeastOne, typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts


@typed
class RandomTokensConfig(SetConfig):
    count: AtLeastOne
    length: AtLeastOne  # tokens of each
    vocabulary: AtLeastOne  # ids are drawn below this; the target's own vocabulary may be larger, not smaller
    seed: int


@prompts.register("random_tokens")
class RandomTokens(PromptSource):
    """Draws `count` prompts of `length` tokens; each depends on the seed and its own number alone."""

    def __init__(self, config: RandomTokensConfig) -> None:
        self.config: RandomTokensConfig = config

    def read(self) -> SourceContent:
        config = self.config
        entries = []
        for number in range(config.count):
            dice = random.Random(f"{config.seed}/{number}")
            ids = tuple(dice.randrange(config.vocabulary) for _ in range(config.length))
            entries.append(Entry(f"{config.name}/{number}", config.name, tokens=ids))
        return SourceContent(entries, {"source": "random"})
