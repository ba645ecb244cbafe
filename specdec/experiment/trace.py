"""The picture of a decoding, after the opening figure of Leviathan et al. (2211.17192): a line per round with
the text so far, the accepted drafts, the rejected one and what the target wrote instead.

As one self-contained HTML page and as rich text. Model output is only ever data here: escaped in HTML, never
read as markup in a terminal, its control characters shown as glyphs.
"""

import html
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from specdec.records import Generation, Round, Source

REPLACEMENT = "\ufffd"
WINDOW = 16  # tokens before a token that can still change how it reads: an unfinished character, a space
TAIL = 240  # characters of the text so far in a line of the page
SHOWN_ROUNDS = 400  # rounds of one generation on the page


class Kind(StrEnum):
    """What became of a token in its round. The last three are the target's own, one at most per round."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"  # nothing was drafted


class Piece(NamedTuple):
    kind: Kind
    token: int
    text: str  # what the token adds to the text; never empty
    source: Source | None = None  # of a draft token


@dataclass(frozen=True)
class TracedGeneration:
    """A generation to be shown, and what its header says.

    Attributes:
        structure: the draft asked for in every round, in words: "gamma 4", "10 rows of 10".
        lossless: what the verifier declares; None where it is not known.
        decode: token ids to text, special tokens kept; None shows the ids.
    """

    prompt_id: str
    drafter: str
    structure: str
    lossless: bool | None
    generation: Generation
    decode: Callable[[Sequence[int]], str] | None = None

    @property
    def summary(self) -> str:
        """The header in words, unescaped."""
        tokens, rounds = len(self.generation.tokens), len(self.generation.rounds)
        rate = f"{tokens / rounds:.2f}" if rounds else "no"
        counts = f"{rate} tokens per round ({tokens} tokens, {rounds} rounds)"
        law = {True: "lossless", False: "not lossless", None: "lossless or not: unknown"}[self.lossless]
        return f"drafter {self.drafter} · {self.structure} · {counts} · {law}"


@dataclass(frozen=True)
class TraceLine:
    """One round. `so_far` is the end of the committed output before it; `unused` counts the draft tokens that
    were neither accepted nor rejected (behind the rejection, behind a cut, on other branches).
    """

    number: int
    so_far: str
    pieces: tuple[Piece, ...]
    offered: int
    accepted: int
    unused: int
    end: str  # "end_token", "limit" or ""


def trace_lines(traced: TracedGeneration) -> Iterator[TraceLine]:
    """The rounds in order, decoded."""
    prompt = list(traced.generation.prompt)
    output: list[int] = []
    for number, round_ in enumerate(traced.generation.rounds, 1):
        pieces = tuple(_pieces(round_, prompt + output[-WINDOW:], traced.decode))
        drafted = sum(piece.kind in (Kind.ACCEPTED, Kind.REJECTED) for piece in pieces)
        yield TraceLine(
            number=number,
            so_far=_tail(output, traced.decode),
            pieces=pieces,
            offered=len(round_.draft_tokens),
            accepted=round_.accepted,
            unused=len(round_.draft_tokens) - drafted,
            end=round_.truncation,
        )
        output.extend(round_.committed)


def _pieces(round_: Round, before: Sequence[int], decode: Callable[[Sequence[int]], str] | None) -> Iterator[Piece]:
    context = list(before)
    for node, token in zip(round_.acceptance.path, round_.committed[: round_.accepted], strict=False):
        yield Piece(Kind.ACCEPTED, token, piece_text(context, token, decode), _source(round_, node))
        context.append(token)
    if round_.rejected:
        last = round_.acceptance.path[-1] if round_.acceptance.path else -1
        for node in round_.tree.children[last + 1]:
            token = round_.draft_tokens[node]
            yield Piece(Kind.REJECTED, token, piece_text(context, token, decode), _source(round_, node))
    own = Kind.CORRECTION if round_.rejected else Kind.BONUS if round_.draft_tokens else Kind.PLAIN
    for token in round_.committed[round_.accepted :]:
        yield Piece(own, token, piece_text(context, token, decode))


def _source(round_: Round, node: int) -> Source | None:
    return round_.source[node] if round_.source else None


def piece_text(context: Sequence[int], token: int, decode: Callable[[Sequence[int]], str] | None) -> str:
    """What `token` adds to the text behind `context`: the difference of two decodings, because a token alone
    need not be valid UTF-8 and may lose its space. An unfinished character reads as U+FFFD, and whole where
    it ends.
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


def _tail(output: Sequence[int], decode: Callable[[Sequence[int]], str] | None) -> str:
    recent = list(output[-TAIL:])  # a token adds a character or more, but for parts of one
    text = "".join(f" {token}" for token in recent) if decode is None else decode(recent)
    whole = len(recent) == len(output) and len(text) <= TAIL
    return text if whole else "…" + text[-TAIL:]


# How text is shown --------------------------------------------------------------------------------

_GLYPHS = {"\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    """`text` on one line; every character that would not print, or would steer a terminal, as a glyph."""
    return "".join(_GLYPHS.get(character) or _printable(character) for character in text)


def _printable(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Cs":
        return REPLACEMENT
    return f"⟨U+{ord(character):04X}⟩" if category in ("Cc", "Cf", "Zl", "Zp") else character


def _visible_piece(text: str) -> str:
    """As `visible`, with spaces as dots where they would be overlooked: all but one before a word."""
    body = text.lstrip(" ")
    lead = len(text) - len(body)
    inner = body.rstrip(" ")
    start = " " if lead == 1 and inner else "·" * lead
    return start + visible(inner) + "·" * (len(body) - len(inner))


_ENDS = {"end_token": "■ end of text", "limit": "■ length limit"}


# Terminal -----------------------------------------------------------------------------------------

_STYLES = {
    Kind.ACCEPTED: "green underline",
    Kind.REJECTED: "red strike",
    Kind.CORRECTION: "bold blue",
    Kind.BONUS: "bold cyan",
    Kind.PLAIN: "bold",
}
_MARKS = {  # readable when styles are lost, as in a log file
    Kind.ACCEPTED: ("", ""),
    Kind.REJECTED: ("✗", ""),
    Kind.CORRECTION: ("«", "»"),
    Kind.BONUS: ("«+", "»"),
    Kind.PLAIN: ("«", "»"),
}


def terminal_lines(traced: TracedGeneration, width: int = 100) -> Iterator[Text]:
    """Header, then rounds as rich text of at most `width` cells, cut from the left: the newest part shows."""
    yield Text(f"prompt {visible(traced.prompt_id)} · {visible(traced.summary)}", style="bold")
    digits = len(str(len(traced.generation.rounds)))
    for line in trace_lines(traced):
        lead = f"{line.number:>{digits}} {line.accepted:>2}/{line.offered:<2} "
        text = Text().append(visible(line.so_far) + "│", style="dim")
        for piece in line.pieces:
            left, right = _MARKS[piece.kind]
            shown = _visible_piece(piece.text)
            space = " " * (shown.startswith(" ") and piece.kind != Kind.ACCEPTED)
            text.append(space + left + shown[len(space) :] + right, style=_STYLES[piece.kind])
        if line.unused:
            text.append(f" (+{line.unused})", style="dim")
        if line.end:
            text.append(" " + _ENDS.get(line.end, line.end), style="dim")
        yield Text().append(lead, style="dim").append_text(_cut_left(text, width - cell_len(lead)))


def _cut_left(text: Text, width: int) -> Text:
    excess = cell_len(text.plain) - width
    if excess <= 0:
        return text
    start, dropped = 0, 0
    while dropped < excess + 1 and start < len(text):  # one cell more, for the ellipsis
        dropped += cell_len(text.plain[start])
        start += 1
    return Text().append("…", style="dim").append_text(text[start:])


def terminal_legend() -> Text:
    """What the signs mean."""
    legend = Text().append("text so far│then ", style="dim")
    for kind, shown in (
        (Kind.ACCEPTED, "accepted"),
        (Kind.REJECTED, "✗rejected"),
        (Kind.CORRECTION, "«correction»"),
        (Kind.BONUS, "«+bonus»"),
    ):
        legend.append(shown, style=_STYLES[kind]).append("  ")
    return legend.append("(+n) drafted, not tested; a/n: accepted of n drafted", style="dim")


def print_trace(traces: Sequence[TracedGeneration], console: Console | None = None, rounds: int | None = None) -> None:
    """Print the traces; of each at most the first `rounds` rounds (all if None)."""
    console = console or Console()
    console.print(terminal_legend())
    for traced in traces:
        console.print()
        header, *lines = terminal_lines(traced, console.width)
        console.print(header)
        for line in lines[:rounds]:
            console.print(line, no_wrap=True, overflow="crop")
        if rounds is not None and len(lines) > rounds:
            console.print(Text(f"… {len(lines) - rounds} more rounds", style="dim"))


# HTML ---------------------------------------------------------------------------------------------

# No script, no request, whatever the text says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CSS = """
:root { color-scheme: light dark;
  --back: #fff; --text: #1f2328; --muted: #656d76; --rule: #d8dee4;
  --accepted: #00695c; --rejected: #b3261e; --own: #0b57d0; --own-back: #e8f0fe; }
@media (prefers-color-scheme: dark) { :root {
  --back: #14171c; --text: #e6e8eb; --muted: #9aa4af; --rule: #343b44;
  --accepted: #6fd6b4; --rejected: #ff9d92; --own: #9cc2ff; --own-back: #1b2b45; } }
body { background: var(--back); color: var(--text); margin: 1.5rem auto; padding: 0 1rem; max-width: 70rem;
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 0; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; }
.head, .legend, .more { color: var(--muted); }
.legend > span { margin-right: 1.2em; white-space: nowrap; display: inline-block; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-top: 1px solid var(--rule); }
th { font-weight: 600; font-size: .85rem; color: var(--muted); white-space: nowrap; }
td.count { color: var(--muted); white-space: nowrap; font-variant-numeric: tabular-nums; text-align: right; }
td.text, .prompt, .legend > span > span {
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .87rem; }
td.text { width: 100%; }
td.text, .prompt { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; }
.far, .prompt, .unused, .end { color: var(--muted); }
.accepted, .rejected, .own { padding: 0 .1em; margin: 0 .06em; text-decoration-skip-ink: none; }
.accepted { color: var(--accepted); text-decoration: underline 2px; text-underline-offset: .25em; }
.rejected { color: var(--rejected); text-decoration: line-through 2px; }
.rejected::before { content: "\\2717"; display: inline-block; text-decoration: none; }
.own { color: var(--own); background: var(--own-back); font-weight: 600;
  border: 1.5px solid currentColor; border-radius: .25em;
  -webkit-box-decoration-break: clone; box-decoration-break: clone; }
.bonus { border-style: double; border-width: 3px; }
.plain { border-style: dashed; }
.unused, .end { font-size: .9em; padding-left: .5em; }
"""
_CLASSES = {
    Kind.ACCEPTED: "accepted",
    Kind.REJECTED: "rejected",
    Kind.CORRECTION: "own",
    Kind.BONUS: "own bonus",
    Kind.PLAIN: "own plain",
}


def _span(classes: str, text: str, title: str = "") -> str:
    """The one place where text enters the page."""
    about = f' title="{html.escape(title)}"' if title else ""
    return f'<span class="{classes}"{about}>{html.escape(text)}</span>'


def trace_html(traces: Sequence[TracedGeneration], rounds: int = SHOWN_ROUNDS) -> str:
    """The page as text: of each generation at most the first `rounds` rounds."""
    legend = "".join(
        f"<span>{sign} {meaning}</span>"
        for sign, meaning in (
            (_span("accepted", "underlined"), "draft token accepted"),
            (_span("rejected", "struck"), "draft token rejected"),
            (_span("own", "boxed"), "the target&#x27;s correction"),
            (_span("own bonus", "double box"), "its bonus, every draft accepted"),
            (_span("own plain", "dashed box"), "its token, nothing drafted"),
            (_span("unused", "+n"), "drafted, not tested"),
            (_span("far", "muted"), "the text so far"),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>specdec trace</title><style>{_CSS}</style></head><body>\n"
        "<h1>Trace: what was drafted, accepted and corrected</h1>\n"
        f'<p class="legend">{legend}</p>\n'
        + "".join(_section(traced, rounds) for traced in traces)
        + "</body></html>\n"
    )


def _section(traced: TracedGeneration, rounds: int) -> str:
    prompt = visible(_tail(traced.generation.prompt, traced.decode))
    rows = []
    for line in trace_lines(traced):
        if line.number > rounds:
            break
        text = [_span("far", visible(line.so_far))] if line.so_far else []
        for piece in line.pieces:
            title = f"{piece.kind} · token {piece.token}"
            if piece.source is not None:
                title += f" · {piece.source.strategy}, choice {piece.source.rank + 1}"
            text.append(_span(_CLASSES[piece.kind], _visible_piece(piece.text), title))
        if line.unused:
            text.append(_span("unused", f"+{line.unused}", "drafted, not tested"))
        if line.end:
            text.append(_span("end", _ENDS.get(line.end, line.end)))
        counts = f'<td class="count">{line.number}</td><td class="count">{line.accepted}/{line.offered}</td>'
        rows.append(f'<tr>{counts}<td class="text">{"".join(text)}</td></tr>\n')
    hidden = len(traced.generation.rounds) - rounds
    more = f'<p class="more">… {hidden} more rounds are not shown.</p>\n' if hidden > 0 else ""
    return (
        f"<section><h2>Prompt {html.escape(visible(traced.prompt_id))}</h2>\n"
        f'<p class="head">{html.escape(visible(traced.summary))}</p>\n'
        f"<p>The prompt ends with: {_span('prompt', prompt)}</p>\n"
        "<table><thead><tr><th>round</th><th>accepted</th><th>text so far, then this round</th></tr>"
        f"</thead>\n<tbody>{''.join(rows)}</tbody></table>{more}</section>\n"
    )


def write_trace(path: Path, traces: Sequence[TracedGeneration], rounds: int = SHOWN_ROUNDS) -> Path:
    """Write the page to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace_html(traces, rounds), encoding="utf-8")
    return path
