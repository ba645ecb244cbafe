"""Makes prompts that the target can decode from the configuration of a prompt set."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from specdec.errors import UsageError
from specdec.prompts.base.contract import Counts, Entry, Prompt, SetConfig, SourceContent, prompts
from specdec.prompts.base.rendering import Renderer

TOO_LONG, EMPTY = "too_long", "empty"


@dataclass(frozen=True)
class PromptSet:
    """The usable prompts of a set, and the entries that were left out.

    Attributes:
        content_hash: sha256 of the chosen entries before rendering: the same for every tokenizer.
        skipped: reason -> category -> number of entries left out.
    """

    name: str
    prompts: tuple[Prompt, ...]
    content_hash: str
    skipped: Mapping[str, Mapping[str, int]]
    provenance: Mapping[str, str]
    renderer: Renderer = field(repr=False, compare=False)

    def follow_up(self, prompt: Prompt, answer: Sequence[int]) -> Prompt | None:
        """Return the next turn, asked after `answer` (in a run the baseline's); None if there is none or it is too
        long.
        """
        return self.renderer.follow_up(prompt, answer)

    def turns(self, first: Prompt, answers: Mapping[str, Sequence[int]]) -> Iterator[Prompt]:
        """Yield the turns of a conversation. Before the next one is asked for, the caller puts the answer to each into
        `answers`, by the id of the turn.
        """
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
    """Read the prompt set that `values` (the config group `prompts`) describes.

    Raises:
        UsageError: an unknown set or key, a bad value, an unusable file.
    """
    source = prompts.build(values)
    return PromptEntries(source.config, source.read())


def load_prompts(
    entries: PromptEntries, *, tokenizer: Any, context_length: int, max_new_tokens: int, vocab_size: int | None = None
) -> PromptSet:
    """Make prompts in tokens of the entries of a set.

    A limit counts usable prompts: where a prompt is too long or empty, the next of its category takes its place.
    Skipped prompts are counted up to the limit; without a limit, among all.

    Args:
        tokenizer: the target's; None for targets without one, which take literal tokens only.
        context_length: tokens that the target can hold: those of a prompt and `max_new_tokens`.
        vocab_size: the target's, to check literal tokens; None checks nothing.
    Raises:
        UsageError: no usable prompt, or one that the target cannot read.
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
    chosen = list(islice(_usable_in_turn(content.entries, config, renderer, skipped), config.limit))
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


def _usable_in_turn(
    entries: Iterable[Entry], config: SetConfig, renderer: Renderer, skipped: Counts
) -> Iterator[tuple[Entry, Prompt]]:
    """Yield usable entries in the source's order; with a limit that is balanced, the categories in turn."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.category if config.balance and config.limit else "", []).append(entry)
    waiting = [_usable(group, renderer, skipped) for group in groups.values()]
    while waiting:
        for group in list(waiting):
            pair = next(group, None)
            if pair is None:
                waiting.remove(group)
            else:
                yield pair


def _usable(entries: Iterable[Entry], renderer: Renderer, skipped: Counts) -> Iterator[tuple[Entry, Prompt]]:
    for entry in entries:
        # Checked before rendering: a chat template or a begin token makes a prompt out of nothing.
        empty = not entry.tokens and not (entry.turns and entry.turns[0].strip())
        prompt = None if empty else renderer.prompt(entry)
        if prompt is None or not prompt.tokens or len(prompt.tokens) > renderer.room:
            counts = skipped.setdefault(TOO_LONG if prompt and prompt.tokens else EMPTY, {})
            counts[entry.category] = counts.get(entry.category, 0) + 1
        else:
            yield entry, prompt
