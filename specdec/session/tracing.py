"""Writes down what every round of a generation did, with the text that each token adds: the lines of `traces.json`."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specdec.analysis.pages.trace import REPLACEMENT
from specdec.analysis.read.facts import Kind, Piece, Trace, TraceLine
from specdec.records import Generation, Round

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens kept."""

WINDOW = 16  # tokens before a token that can still change how it reads: an unfinished character, a space
TAIL = 240  # characters of the text so far in a line


def trace(generation: Generation, decode: Decode | None, disturbed: Sequence[bool], **header: Any) -> Trace:
    """Trace `generation`, with tokens as their ids where there is no `decode`; `disturbed` says of each round whether
    other work disturbed it. The header has the `prompt`, `drafter`, `structure` and `lossless` of a `Trace`.
    """
    output: list[int] = []
    lines = []
    for number, round_ in enumerate(generation.rounds, 1):
        pieces = tuple(_pieces(round_, [*generation.prompt, *output[-WINDOW:]], decode))
        drafted = sum(piece.kind in (Kind.ACCEPTED, Kind.REJECTED) for piece in pieces)
        line = TraceLine(
            number=number,
            so_far=_tail(output, decode),
            pieces=pieces,
            offered=len(round_.draft_tokens),
            accepted=round_.accepted,
            unused=len(round_.draft_tokens) - drafted,
            end=round_.truncation,
            disturbed=disturbed[number - 1],
        )
        lines.append(line)
        output.extend(round_.committed)
    prompt_end = _tail(generation.prompt, decode)
    return Trace(**header, prompt_end=prompt_end, tokens=len(generation.tokens), lines=tuple(lines))


def _pieces(round_: Round, before: Sequence[int], decode: Decode | None) -> Iterator[Piece]:
    context = list(before)

    def drafted(kind: Kind, node: int, token: int) -> Piece:
        source = round_.source[node] if round_.source else ("", 0)
        return Piece(kind, token, piece_text(context, token, decode), *source)

    for node, token in zip(round_.acceptance.path, round_.committed[: round_.accepted], strict=False):
        yield drafted(Kind.ACCEPTED, node, token)
        context.append(token)
    if round_.rejected:
        last = round_.acceptance.path[-1] if round_.acceptance.path else -1
        for node in round_.tree.children[last + 1]:
            yield drafted(Kind.REJECTED, node, round_.draft_tokens[node])
    own = Kind.CORRECTION if round_.rejected else Kind.BONUS if round_.draft_tokens else Kind.PLAIN
    for token in round_.committed[round_.accepted :]:
        yield Piece(own, token, piece_text(context, token, decode))


def piece_text(context: Sequence[int], token: int, decode: Decode | None) -> str:
    """Return what `token` adds to the text behind `context`: the difference of two decodings, because a token alone
    need not be valid UTF-8 and may lose its space. An unfinished character reads as U+FFFD, and whole where it ends.
    """
    if decode is None:
        return f" {token}"
    window = list(context[-WINDOW:])
    before, after = decode(window), decode([*window, token])
    finished = before.rstrip(REPLACEMENT)
    if after.startswith(before):
        added = after[len(before) :] or REPLACEMENT * (finished != before)
    else:
        added = after[len(os.path.commonprefix([finished, after])) :]
    return added or f"⟨{token}⟩"


def _tail(tokens: Sequence[int], decode: Decode | None) -> str:
    recent = list(tokens[-TAIL:])  # a token adds a character or more, but for parts of one
    text = "".join(f" {token}" for token in recent) if decode is None else decode(recent)
    whole = len(recent) == len(tokens) and len(text) <= TAIL
    return text if whole else "…" + text[-TAIL:]
