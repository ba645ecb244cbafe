"""Conversations as training text: ShareGPT's records, rendered by the tokenizer's chat template, with the assistant's
tokens marked as those to be predicted. Knows no model.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from specdec.config import AtLeastOne, Named, NonEmpty, typed
from specdec.errors import UsageError, in_one_line
from specdec.text.document_store import Encoded, batched
from specdec.text.lines import file_digest, filled_lines, json_value
from specdec.text.sources import SPEAKERS, Part, SourceKeys, read_hub

RENDERED_AT_ONCE = 256
_FORM = "data.source.path needs one list of conversations, or one conversation per line"
Messages = list[dict[str, str]]  # the form that chat templates take: role and content
Spans = list[tuple[int, int]]  # ranges of characters that the assistant wrote


@typed
class ConversationsConfig(Named, SourceKeys):
    """The keys of conversations: records `{"conversations": [{"from": "human" | "gpt", "value": TEXT}, ...]}`."""

    path: NonEmpty | None  # a JSON list of them, or JSON lines, gzip or not; null: the hub
    chat_template: NonEmpty  # Jinja, for a tokenizer that has no template of its own
    max_conversations: AtLeastOne | None  # reads as many from the beginning; None reads all
    heldout_every: Annotated[int, Field(ge=2)]  # holds out the n-th, 2n-th, ... conversation.


class Conversations:
    """The conversations of a file or data set, whose content `provenance` identifies without naming a folder."""

    def __init__(self, config: ConversationsConfig) -> None:
        """Raises UsageError: no source or two of them; a file that is missing, empty or not JSON."""
        if (config.path is None) == (config.hub_id is None):
            raise UsageError(
                "Conversations need one source: set either data.source.path (a JSON file) or "
                "data.source.hub_id (a data set), and leave the other null."
            )
        self.config = config
        self.left_out: Counter[str] = Counter()  # by reason, conversations left out or cut; complete after `encoded`
        if config.path is not None:
            path, what = Path(config.path).expanduser(), f"File of conversations data.source.path={config.path}"
            try:
                text = b"".join(raw for _, raw in filled_lines(path, what)).decode("utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(f"{what} is not UTF-8 text (byte {error.start}): convert it.") from None
            if text.lstrip().startswith("["):
                values = json_value(config.path, 1, text, _FORM)
            else:  # split at newlines only: `str.splitlines` also splits at characters that may stand inside a text
                lines = enumerate(text.split("\n"), 1)
                values = (json_value(config.path, number, line, _FORM) for number, line in lines if line.strip())
            self._records = ((f"{config.path}: record {number}", value) for number, value in enumerate(values, 1))
            self.provenance = {"file_sha256": file_digest(path, what)}
        else:
            records = read_hub(config, "data.source")
            self._records = ((where, record) for where, _, record in records.numbered)
            self.provenance = records.provenance

    def encoded(self, tokenizer: Any) -> Iterator[tuple[Part, Encoded]]:
        """Yield the conversations in tokens, once. UsageError: a record of another form, by file and number."""
        template = ChatTemplate(tokenizer, self.config.chat_template)

        def rendered() -> Iterator[tuple[Part, str, Spans]]:
            for number, (where, record) in enumerate(islice(self._records, self.config.max_conversations), 1):
                messages = self._messages(where, record)
                if messages is None:
                    continue
                try:
                    text, spans = template.render(messages)
                except TemplateFault as fault:
                    self.left_out[f"refused by the chat template: {fault}"] += 1
                    continue
                yield "train" if number % self.config.heldout_every else "heldout", text, spans

        for batch in batched(rendered(), RENDERED_AT_ONCE):
            parts, texts, spans = zip(*batch, strict=True)
            yield from zip(parts, template.encode(texts, spans), strict=True)

    def _messages(self, where: str, record: Any) -> Messages | None:
        """Return the turns from the first of the system or user to the last of the assistant; None if there are none.
        All that comes after two turns of one speaker, or after an empty turn, is left out.
        """
        turns = record.get("conversations") if isinstance(record, Mapping) else None
        if not isinstance(turns, list):
            raise UsageError(
                f"{where}: no list 'conversations'; data.source needs records of the form "
                '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}.'
            )
        messages: Messages = []
        expected = "user"
        for turn in turns:
            speaker = turn.get("from") if isinstance(turn, Mapping) else None
            if not isinstance(speaker, str) or not isinstance(turn.get("value"), str):
                raise UsageError(f"{where}: a turn without the texts 'from' and 'value', which data.source needs.")
            if speaker not in SPEAKERS:
                raise UsageError(
                    f"{where}: a turn from {speaker!r}; data.source knows {', '.join(SPEAKERS)}: rename it or leave "
                    "the record out."
                )
            role, content = SPEAKERS[speaker], turn["value"].strip()
            if role == "system" and not messages:
                messages.append({"role": role, "content": content})
                continue
            if role == "assistant" and all(message["role"] == "system" for message in messages):
                continue  # ShareGPT keeps the end of some long conversations only: it begins with an answer
            if role != expected or not content:
                self.left_out["cut at an empty turn or at two turns of one speaker"] += 1
                break
            messages.append({"role": role, "content": content})
            expected = "assistant" if role == "user" else "user"
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        if not messages:
            self.left_out["without an answer"] += 1
            return None
        return messages


class TemplateFault(Exception):
    """A chat template refuses a conversation, or changes what was said in it."""


class ChatTemplate:
    """A tokenizer's chat template, or `instead` for a tokenizer that has none."""

    def __init__(self, tokenizer: Any, instead: str) -> None:
        self.tokenizer = tokenizer
        self.template = getattr(tokenizer, "chat_template", None) or instead
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}

    def render(self, messages: Messages) -> tuple[str, Spans]:
        """Return the text and the spans of the assistant's answers in it, with what the template itself puts before an
        answer, such as an empty thought. Raises TemplateFault: the template refuses the conversation or rewrites it.
        """
        text = self._applied(messages, asking=False)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._applied(messages[:number], asking=True)
            place = text.find(message["content"], len(before)) if text.startswith(before) else -1
            if place < 0:
                raise TemplateFault("it rewrites earlier turns")
            spans.append((len(before), place + len(message["content"])))
        return text, spans

    def _applied(self, messages: Messages, asking: bool) -> str:
        try:
            how = {"tokenize": False, "add_generation_prompt": asking, "chat_template": self.template}
            return str(self.tokenizer.apply_chat_template(messages, **how))
        except Exception as error:  # a template is a program of its own and raises any type
            raise TemplateFault(in_one_line(error)) from None

    def encode(self, texts: Sequence[str], answers: Sequence[Spans]) -> list[Encoded]:
        """Return the texts in tokens; scored are the answers' tokens and the special token that ends each answer."""
        # A chat template writes its special tokens itself.
        encoded = self.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        documents = []
        for ids, offsets, spans in zip(encoded["input_ids"], encoded["offset_mapping"], answers, strict=True):
            tokens = np.array(ids, dtype=np.uint32)
            start, end = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
            scored = np.zeros(len(tokens), dtype=bool)
            for first, last in spans:
                scored |= (start < last) & (end > first)
                after = int(np.searchsorted(start, last))
                if after < len(tokens) and int(tokens[after]) in self.special:
                    scored[after] = True
            documents.append(Encoded(tokens, scored))
        return documents
