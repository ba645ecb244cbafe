"""Prompts as literal token ids, for targets without a tokenizer (`table`)."""

from typing import Annotated

from pydantic import Field

from specdec.config import typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.lines import Names


@typed
class TokensConfig(SetConfig):
    tokens: list[list[Annotated[int, Field(ge=0)]]]


@prompts.register("tokens")
class Tokens(PromptSource):
    """Gives each list of token ids as a prompt."""

    def __init__(self, config: TokensConfig) -> None:
        self.config: TokensConfig = config

    def read(self) -> SourceContent:
        name = self.config.name
        # Named for its content, so that the same prompt draws the same randomness wherever it stands.
        labels = map(Names(), ("-".join(map(str, ids)) for ids in self.config.tokens))
        pairs = zip(labels, self.config.tokens, strict=True)
        entries = [Entry(f"{name}/{label}", name, tokens=tuple(ids)) for label, ids in pairs]
        return SourceContent(entries, {"source": "literal"})
