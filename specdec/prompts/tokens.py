"""Prompts as literal token ids, for targets without a tokenizer (`table`)."""

from typing import Annotated

from pydantic import Field

from specdec.config import typed
from specdec.prompts.base import Entry, PromptSource, SetConfig, Source, prompts


@typed
class TokensConfig(SetConfig):
    tokens: list[list[Annotated[int, Field(ge=0)]]]


@prompts.register("tokens")
class Tokens(PromptSource):
    """Each list of token ids is a prompt."""

    def __init__(self, config: TokensConfig) -> None:
        self.config: TokensConfig = config

    def read(self) -> Source:
        name = self.config.name
        entries = [
            Entry(f"{name}/{number}", name, tokens=tuple(ids))
            for number, ids in enumerate(self.config.tokens)
        ]
        return Source(entries, {"source": "literal"})
