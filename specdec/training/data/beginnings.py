"""The prompts that a target is shown before it writes text to train on: beginnings of documents, conversations up to an
answer, and what users ask as its chat template has it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from specdec.errors import UsageError
from specdec.progress import tell
from specdec.prompts import Entry
from specdec.prompts.base.loading import Renderer
from specdec.text.document_store import PARTS, Documents, DocumentStore, Part
from specdec.training.data_recipes import SelfDistillationConfig

Prompts = dict[Part, list[tuple[int, ...]]]
"""The tokens of the prompts of each part."""

_CHARACTERS = 4  # of a token, about
_HELD_OUT = 10  # the prompts of a set of which one is held out, at most


def document_beginnings(
    store: DocumentStore, turns: bool, config: SelfDistillationConfig, longest: int, seed: int
) -> Prompts:
    """Return beginnings of documents, as many as asked for.

    Args:
        turns: the documents are conversations, and end where an answer begins; otherwise they are cut anywhere.
        longest: the most tokens of a beginning and its continuation together.
    Raises:
        UsageError: no document is long enough, or no conversation short enough.
    """
    found: Prompts = {}
    for number, part in enumerate(PARTS):
        documents, count = getattr(store, part), config.texts if part == "train" else config.heldout_texts
        rng = np.random.default_rng([seed, 5, number])
        found[part] = (
            _before_answers(documents, count, longest - config.new_tokens, rng)
            if turns
            else _cut_anywhere(documents, count, config.prefix_tokens, rng)
        )
        if not found[part]:
            raise UsageError(
                f"No {'training' if part == 'train' else 'held-out'} document of data.source is "
                + ("a conversation whose beginning fits" if turns else "longer than")
                + (" data.sequence_length: raise it" if turns else " data.generated.prefix_tokens: lower it")
                + ", or give more text."
            )
    return found


def asked(
    texts: Iterable[str], tokenizer: Any, chat: bool, config: SelfDistillationConfig, longest: int
) -> list[tuple[int, ...]]:
    """Return texts as a user asks them. Those that leave no room for an answer are left out.

    Args:
        chat: they are rendered by the tokenizer's chat template.
        longest: the most tokens of a prompt and its answer together.
    Raises:
        UsageError: none has room.
    """
    room = longest - config.new_tokens
    renderer = Renderer(tokenizer, chat, room, None)
    prompts = [renderer.prompt(Entry("", "", (text,))).tokens for text in texts]
    found = [prompt for prompt in prompts if 0 < len(prompt) <= room]
    if not found:
        shortest = f", and the shortest has {min(map(len, prompts))}" if prompts else ""
        raise UsageError(
            f"None of the {len(prompts)} prompts of data.source can be used: one may have {room} tokens, "
            f"data.sequence_length={longest} less data.generated.new_tokens={config.new_tokens}{shortest}. Raise the "
            "first, lower the second or data.generated.prefix_tokens, or give other prompts."
        )
    if len(found) < len(prompts):
        tell(f"{len(prompts) - len(found)} of {len(prompts)} prompts are left out: more than {room} tokens, or none.")
    return found


def pieces(
    texts: Mapping[Part, Iterable[str]], tokenizer: Any, config: SelfDistillationConfig, seed: int
) -> dict[Part, list[str]]:
    """Return pieces of texts that begin with a line and have `prefix_tokens` tokens at most. Each piece is as likely as
    any other; the texts are read once, and only what is chosen is encoded.
    """
    found: dict[Part, list[str]] = {}
    for number, part in enumerate(PARTS):
        count, rng = config.texts if part == "train" else config.heldout_texts, np.random.default_rng([seed, 5, number])
        chosen: list[str] = []
        for seen, piece in enumerate(_pieces(texts[part], _CHARACTERS * config.prefix_tokens)):
            place = seen if seen < count else int(rng.integers(seen + 1))
            if place < count:
                chosen[place : place + 1] = [piece]
        tokens = (tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in chosen)
        found[part] = [tokenizer.decode(ids[: config.prefix_tokens]) for ids in tokens]
    return found


def split_prompts(prompts: list[tuple[int, ...]], config: SelfDistillationConfig, seed: int) -> Prompts:
    """Return prompts in random order: some are held out, one in ten at most, and the others trained on.

    Raises:
        UsageError: there is only one.
    """
    if len(prompts) < 2:
        raise UsageError("One prompt of data.source can be used, and a training needs two: one is held out. Give more.")
    order = [prompts[place] for place in np.random.default_rng([seed, 5]).permutation(len(prompts))]
    held = max(1, min(config.heldout_texts, len(order) // _HELD_OUT))
    return {"train": order[held:][: config.texts], "heldout": order[:held]}


def _pieces(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield texts in pieces of whole lines, each just longer than `characters`; a shorter text is a piece."""
    for text in texts:
        start = end = 0
        for line in text.splitlines(keepends=True):
            end += len(line)
            if end - start > characters:
                yield text[start:end]
                start = end
        if not start and text.strip():
            yield text


def _cut_anywhere(documents: Documents, count: int, length: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Take `length` tokens, `count` times, from anywhere in the documents; a long document is taken more often."""
    room = np.maximum(documents.lengths - length + 1, 0)
    if not room.sum():
        return []
    places = rng.integers(int(room.sum()), size=count)
    ends = np.cumsum(room)
    chosen = np.searchsorted(ends, places, side="right")
    starts = documents.starts[chosen] + places - (ends - room)[chosen]
    return [tuple(map(int, documents.tokens[start : start + length])) for start in starts]


def _before_answers(documents: Documents, count: int, longest: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Take conversations in random order, each up to one of its answers that at most `longest` tokens precede."""
    found: list[tuple[int, ...]] = []
    for number in rng.permutation(len(documents)):
        if len(found) == count:
            break
        document = documents[int(number)]
        answers = np.flatnonzero(document.scored[1:] & ~document.scored[:-1]) + 1
        answers = answers[answers <= longest]
        if len(answers):
            found.append(tuple(map(int, document.tokens[: int(rng.choice(answers))])))
    return found
