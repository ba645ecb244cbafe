"""Renders the turns of a conversation as tokens, by chat template or as plain text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.errors import UsageError
from specdec.prompts.base.contract import Entry, Prompt, first_turn, turn_id

BETWEEN_TURNS = "\n\n"  # stands between the turns of a conversation without a chat template


@dataclass(frozen=True)
class Renderer:
    """Renders for one tokenizer (None: literal tokens only). A prompt may have at most `room` tokens."""

    tokenizer: Any
    chat: bool
    room: int
    vocab_size: int | None

    def prompt(self, entry: Entry) -> Prompt:
        """Render the first turn, or take the literal tokens.

        Raises:
            UsageError: the chat template fails, or a token lies outside the vocabulary.
        """
        if entry.tokens:
            largest = max(entry.tokens)
            if self.vocab_size is not None and largest >= self.vocab_size:
                raise UsageError(
                    f"Bad value in prompts: {entry.id} holds token {largest}, and the target's "
                    f"vocabulary ends at {self.vocab_size - 1}."
                )
            return Prompt(entry.id, entry.category, "", entry.tokens, reference=entry.reference)
        turns = entry.turns[:1]
        text = self._conversation(turns) if self.chat else turns[0]
        return Prompt(entry.id, entry.category, text, self._tokens(text), entry.turns[1:], turns, entry.reference)

    def follow_up(self, prompt: Prompt, answer: Sequence[int]) -> Prompt | None:
        """Render the next turn after an answer; None if there is none or it is too long."""
        if not prompt.follow_ups or not prompt.follow_ups[0].strip():
            return None
        said, turn = self.said(prompt, answer), prompt.follow_ups[0]
        turns = (*prompt.turns, said, turn)
        text = self._conversation(turns) if self.chat else prompt.text + said + BETWEEN_TURNS + turn
        tokens = self._tokens(text)
        if len(tokens) > self.room:
            return None
        name = turn_id(first_turn(prompt.id), len(turns) // 2 + 1)
        return Prompt(name, prompt.category, text, tokens, prompt.follow_ups[1:], turns)

    def said(self, prompt: Prompt, answer: Sequence[int]) -> str:
        """Return the text of an answer, as it stands behind its prompt, without special tokens."""
        # Decoded together and then divided: some tokenizers drop the space before the first word of a text.
        whole, before = self._decoded([*prompt.tokens, *answer]), self._decoded(prompt.tokens)
        return whole[len(before) :]

    def _conversation(self, turns: Sequence[str]) -> str:
        messages = [
            {"role": "assistant", "content": turn.strip()} if odd % 2 else {"role": "user", "content": turn}
            for odd, turn in enumerate(turns)
        ]
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of its own and can raise anything
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"The tokenizer's chat template fails ({reason}): set prompts.chat=never for plain text."
            ) from None
        return text

    def _tokens(self, text: str) -> tuple[int, ...]:
        # A chat template writes its special tokens itself; to plain text the tokenizer adds its own, if any.
        return tuple(self.tokenizer(text, add_special_tokens=not self.chat, verbose=False)["input_ids"])

    def _decoded(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
