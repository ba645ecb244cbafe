"""Makes prompts in tokens of the entries of a prompt set, by chat template or as plain text, as many as can be used."""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from specdec.errors import UsageError, in_one_line
from specdec.prompts.base.contract import Counts, Entry, Prompt, SetConfig, SourceContent, first_turn, prompts, turn_id

BETWEEN_TURNS = "\n\n"  # stands between the turns of a conversation without a chat template


@dataclass(frozen=True)
class Renderer:
    """Renders conversations for one tokenizer (None: literal tokens only). A prompt may have at most `room` tokens."""

    tokenizer: Any
    chat: bool
    room: int
    vocab_size: int | None

    def prompt(self, entry: Entry) -> Prompt:
        """Render the first turn, or take literal tokens. UsageError: the chat template fails, a token is too large."""
        if entry.tokens:
            largest = max(entry.tokens)
            if self.vocab_size is not None and largest >= self.vocab_size:
                raise UsageError(
                    f"Bad value in prompts: {entry.id} holds token {largest}, and the target's "
                    f"vocabulary ends at {self.vocab_size - 1}."
                )
            return Prompt(entry.id, entry.category, "", entry.tokens, reference=entry.reference)
        turns = entry.turns[:1]
        text = self.conversation(turns) if self.chat else turns[0]
        return Prompt(entry.id, entry.category, text, self.tokens(text), entry.turns[1:], turns, entry.reference)

    def said(self, prompt: Prompt, answer: Sequence[int]) -> str:
        """Return the text of an answer, as it stands behind its prompt, without special tokens."""
        # Decoded together and then divided: some tokenizers drop the space before the first word of a text.
        whole, before = self._decoded([*prompt.tokens, *answer]), self._decoded(prompt.tokens)
        return whole[len(before) :]

    def conversation(self, turns: Sequence[str]) -> str:
        """Return user's and assistant's turns in the tokenizer's chat template, up to where the next answer begins."""
        messages = [
            {"role": "assistant", "content": turn.strip()} if odd % 2 else {"role": "user", "content": turn}
            for odd, turn in enumerate(turns)
        ]
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of its own and can raise anything
            reason = in_one_line(error)
            raise UsageError(
                f"The tokenizer's chat template fails ({reason}): set prompts.chat=never for plain text."
            ) from None

    def tokens(self, text: str) -> tuple[int, ...]:
        # A chat template writes its special tokens itself; to plain text the tokenizer adds its own, if any.
        return tuple(self.tokenizer(text, add_special_tokens=not self.chat, verbose=False)["input_ids"])

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


TOO_LONG, EMPTY = "too_long", "empty"


@dataclass(frozen=True)
class PromptSet:
    """The usable prompts of a set, and the entries that were left out."""

    name: str
    prompts: tuple[Prompt, ...]
    content_hash: str  # sha256 of the chosen entries before rendering: the same for every tokenizer
    skipped: Mapping[str, Mapping[str, int]]  # reason -> category -> number of entries left out
    provenance: Mapping[str, str]
    renderer: Renderer = field(repr=False, compare=False)

    def follow_up(self, prompt: Prompt, answer: Sequence[int]) -> Prompt | None:
        """Return the turn after `answer` (in a run the baseline's); None if there is none or it is too long."""
        if not prompt.follow_ups or not prompt.follow_ups[0].strip():
            return None
        renderer, turn = self.renderer, prompt.follow_ups[0]
        said = renderer.said(prompt, answer)
        turns = (*prompt.turns, said, turn)
        text = renderer.conversation(turns) if renderer.chat else prompt.text + said + BETWEEN_TURNS + turn
        tokens = renderer.tokens(text)
        if len(tokens) > renderer.room:
            return None
        name = turn_id(first_turn(prompt.id), len(turns) // 2 + 1)
        return Prompt(name, prompt.category, text, tokens, prompt.follow_ups[1:], turns)

    def turns(self, first: Prompt, answers: Mapping[str, Sequence[int]]) -> Iterator[Prompt]:
        """Yield a conversation's turns; in between, the caller puts the answer to each into `answers`, by its id."""
        turn: Prompt | None = first
        while turn is not None:
            yield turn
            turn = self.follow_up(turn, answers[turn.id])

    def said(self, prompt: Prompt, answer: Sequence[int]) -> str:
        """Return the text of an answer to `prompt`, as a later turn repeats it under a chat template."""
        return self.renderer.said(prompt, answer).strip()


@dataclass(frozen=True)
class PromptEntries:
    """The entries of a prompt set as its source gives them, before they are rendered for a tokenizer."""

    config: SetConfig
    content: SourceContent


def read_prompts(values: Mapping[str, Any]) -> PromptEntries:
    """Read the prompt set of the config group `prompts`. UsageError: an unknown set or key, a bad value or file."""
    config = prompts.config(values)
    return PromptEntries(config, prompts.construct(config).read())


def load_prompts(
    entries: PromptEntries, *, tokenizer: Any, context_length: int, max_new_tokens: int, vocab_size: int | None = None
) -> PromptSet:
    """Make prompts in tokens of the entries of a set, by the target's tokenizer; without one, it takes literal tokens
    only, which are checked by `vocab_size`. The target's context holds a prompt and `max_new_tokens`.

    A limit counts usable prompts: where a prompt is too long or empty, the next of its category takes its place.
    Skipped prompts are counted up to the limit; without a limit, among all. Raises UsageError: none is usable, or one
    that the target cannot read.
    """
    config, content = entries.config, entries.content
    room = context_length - max_new_tokens
    if room < 1:
        raise UsageError(
            f"Bad value measurement.max_new_tokens={max_new_tokens}: it should be less than the target's "
            f"context of {context_length} tokens, to leave room for a prompt."
        )
    chat = config.chat == "auto" and getattr(tokenizer, "chat_template", None) is not None
    renderer = Renderer(tokenizer, chat, room, vocab_size)
    if tokenizer is None and any(entry.turns for entry in content.entries):
        raise UsageError(f"Prompt set {config.name!r} is text, and the target has no tokenizer: use prompts=tokens.")
    skipped: Counts = {reason: dict(counts) for reason, counts in content.absent.items()}
    chosen = list(islice(_usable(content.entries, config, renderer, skipped), config.limit))
    if not chosen:
        counts = {reason: sum(by_category.values()) for reason, by_category in skipped.items()}
        said = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in counts.items())
        sentence = f"Prompt set {config.name!r} has no usable prompt ({said or 'it holds none'})"
        if TOO_LONG not in skipped:
            raise UsageError(f"{sentence}: give another file or set.")
        categories = ", ".join(f"{category} {count}" for category, count in skipped[TOO_LONG].items())
        raise UsageError(
            f"{sentence}: a prompt may have {room} tokens, the target's context of {context_length} less "
            f"measurement.max_new_tokens={max_new_tokens} (by category: {categories})."
        )
    digest = hashlib.sha256()
    for entry, _ in chosen:
        digest.update(json.dumps([entry.category, entry.turns, entry.tokens]).encode() + b"\n")
    return PromptSet(
        name=config.name,
        prompts=tuple(prompt for _, prompt in chosen),
        content_hash=digest.hexdigest(),
        skipped=skipped,
        provenance={**content.provenance, "chat_template": "applied" if chat else "none"},
        renderer=renderer,
    )


def _usable(
    entries: Iterable[Entry], config: SetConfig, renderer: Renderer, skipped: Counts
) -> Iterator[tuple[Entry, Prompt]]:
    """Yield usable entries in the source's order; with a limit that is balanced, the categories in turn."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.category if config.balance and config.limit else "", []).append(entry)
    waiting = deque(map(iter, groups.values()))
    while waiting:
        group = waiting.popleft()
        for entry in group:
            # Checked before rendering: a chat template or a begin token makes a prompt out of nothing.
            empty = not entry.tokens and not (entry.turns and entry.turns[0].strip())
            prompt = None if empty else renderer.prompt(entry)
            if prompt is None or not prompt.tokens or len(prompt.tokens) > renderer.room:
                counts = skipped.setdefault(TOO_LONG if prompt and prompt.tokens else EMPTY, {})
                counts[entry.category] = counts.get(entry.category, 0) + 1
            else:
                yield entry, prompt
                waiting.append(group)
                break
