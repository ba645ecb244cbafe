"""Prompts as literal token ids, for targets without a tokenizer (`table`)."""

from collections import Counter
from typing import Annotated

from pydantic import Field

from specdec.config import typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts


@typed
class TokensConfig(SetConfig):
    tokens: list[list[Annotated[int, Field(ge=0)]]]


@prompts.register("tokens")
class Tokens(PromptSource):
    """Each list of token ids is a prompt."""

    def __init__(self, config: TokensConfig) -> None:
        self.config: TokensConfig = config

    def read(self) -> SourceContent:
        name = self.config.name
        entries = []
        seen: Counter[str] = Counter()
        for ids in self.config.tokens:
            # Named for its content, so that the same prompt draws the same randomness wherever it stands.
            label = "-".join(map(str, ids))
            seen[label] += 1
            again = f"#{seen[label]}" if seen[label] > 1 else ""
            entries.append(Entry(f"{name}/{label}{again}", name, tokens=tuple(ids)))
        return SourceContent(entries, {"source": "literal"})
