"""The picture of a decoding, after the opening figure of Leviathan et al. (2211.17192), as one self-contained HTML
page: a line per round with the text so far, the accepted draft tokens, the rejected one and what the target wrote
instead.

Model output is only ever data here: it is escaped, and its control characters are shown as glyphs.
"""

import html
import unicodedata
from collections.abc import Sequence

from ..read.facts import Kind, Trace

REPLACEMENT = "\ufffd"
SHOWN_ROUNDS = 400  # rounds of one generation on the page
ENDS = {"end_token": "■ end of text", "limit": "■ length limit"}
_GLYPHS = {"\n": "⏎", "\t": "⇥"}


def visible(text: str) -> str:
    """Put `text` on one line; every character that would not print, or would steer a terminal, becomes a glyph."""
    shown = ""
    for character in text:
        category = unicodedata.category(character)
        if category == "Cs" or character in _GLYPHS:
            shown += _GLYPHS.get(character, REPLACEMENT)
        else:
            shown += f"⟨U+{ord(character):04X}⟩" if category in ("Cc", "Cf", "Zl", "Zp") else character
    return shown


def visible_piece(text: str) -> str:
    """Make `text` visible, with dots for spaces that would be overlooked: all but one before a word."""
    body = text.lstrip(" ")
    lead = len(text) - len(body)
    inner = body.rstrip(" ")
    start = " " if lead == 1 and inner else "·" * lead
    return start + visible(inner) + "·" * (len(body) - len(inner))


# No script, no request, whatever the text says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CSS = """
:root { color-scheme: light dark;
  --back: #fff; --text: #1f2328; --muted: #656d76; --rule: #d8dee4;
  --accepted: #00695c; --rejected: #b3261e; --own: #0b57d0; --own-back: #e8f0fe; --busy: #b26a00; }
@media (prefers-color-scheme: dark) { :root {
  --back: #14171c; --text: #e6e8eb; --muted: #9aa4af; --rule: #343b44;
  --accepted: #6fd6b4; --rejected: #ff9d92; --own: #9cc2ff; --own-back: #1b2b45; --busy: #f0b35a; } }
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
.busy { border-left: .35em solid var(--busy); padding-left: .35em; }
"""
_CLASSES = {
    Kind.ACCEPTED: "accepted",
    Kind.REJECTED: "rejected",
    Kind.CORRECTION: "own",
    Kind.BONUS: "own bonus",
    Kind.PLAIN: "own plain",
}


def _span(classes: str, text: str, title: str = "") -> str:
    """Escape `text` into a span: the one place where text enters the page."""
    about = f' title="{html.escape(title)}"' if title else ""
    return f'<span class="{classes}"{about}>{html.escape(text)}</span>'


def trace_html(traces: Sequence[Trace], rounds: int = SHOWN_ROUNDS) -> str:
    """Return the page; it shows at most the first `rounds` rounds of each generation."""
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
            (_span("busy", "striped"), "the machine was busy with other work: not timed"),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>specdec trace</title><style>{_CSS}</style></head><body>\n"
        "<h1>Trace: what was drafted, accepted and corrected</h1>\n"
        f'<p class="legend">{legend}</p>\n' + "".join(_section(trace, rounds) for trace in traces) + "</body></html>\n"
    )


def _section(trace: Trace, rounds: int) -> str:
    rows = []
    for line in trace.lines[:rounds]:
        text = [_span("far", visible(line.so_far))] if line.so_far else []
        for piece in line.pieces:
            title = f"{piece.kind} · token {piece.token}"
            if piece.strategy:
                title += f" · {piece.strategy}, choice {piece.rank + 1}"
            text.append(_span(_CLASSES[piece.kind], visible_piece(piece.text), title))
        if line.unused:
            text.append(_span("unused", f"+{line.unused}", "drafted, not tested"))
        if line.end:
            text.append(_span("end", ENDS.get(line.end, line.end)))
        strip = " busy" * line.disturbed
        counts = f'<td class="count{strip}">{line.number}</td><td class="count">{line.accepted}/{line.offered}</td>'
        rows.append(f'<tr>{counts}<td class="text">{"".join(text)}</td></tr>\n')
    hidden = len(trace.lines) - rounds
    more = f'<p class="more">… {hidden} more rounds are not shown.</p>\n' if hidden > 0 else ""
    return (
        f"<section><h2>Prompt {html.escape(visible(trace.prompt))}</h2>\n"
        f'<p class="head">{html.escape(visible(trace.summary))}</p>\n'
        f"<p>The prompt ends with: {_span('prompt', visible(trace.prompt_end))}</p>\n"
        "<table><thead><tr><th>round</th><th>accepted</th><th>text so far, then this round</th></tr>"
        f"</thead>\n<tbody>{''.join(rows)}</tbody></table>{more}</section>\n"
    )
