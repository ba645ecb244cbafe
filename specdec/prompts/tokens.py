"""Prompts as literal token ids, for targets without a tokenizer (`table`)."""

from typing import Annotated

from pydantic import Field

from specdec.config import typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.lines import Names


@prompts.register("tokens")
@typed
class Tokens(PromptSource, SetConfig):
    """Gives each list of token ids as a prompt."""

    tokens: list[list[Annotated[int, Field(ge=0)]]]

    def read(self) -> SourceContent:
        # Named for its content, so that the same prompt draws the same randomness wherever it stands.
        labels = map(Names(), ("-".join(map(str, ids)) for ids in self.tokens))
        pairs = zip(labels, self.tokens, strict=True)
        entries = [Entry(f"{self.name}/{label}", self.name, tokens=tuple(ids)) for label, ids in pairs]
        return SourceContent(entries, {"source": "literal"})
