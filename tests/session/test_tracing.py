"""Traces of generations: what each round shows, text of awkward tokens, and that text stays text on the page and in the
terminal.
"""

import json
import re
from dataclasses import asdict
from html import unescape
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from specdec.analysis.pages.trace import trace_html, visible
from specdec.analysis.read.facts import Kind
from specdec.analysis.read.runs import read_traces
from specdec.records import Acceptance, Generation, Marks, Round, Tree, chain_tree
from specdec.session.tracing import piece_text, trace
from specdec.terminal import print_trace, terminal_lines

WORDS = [b"zero", b" one", b" two", b"\n", b"    ", b"\xc3", b"\xa9", b"\xff", b""]
WORDS += [b"\xe6\x97", b"\xa5", b" x"]
HOSTILE = [b"</span><script>alert(1)</script>", b"[bold red]", b"\x1b[31m", b'" onmouseover="x', b"&lt;"]


CLASSED = re.compile(r'<\w+ class="([^"]*)"[^>]*>([^<]*)(?=<)')


def decode(tokens, words=WORDS):
    return b"".join(words[token] for token in tokens).decode("utf-8", "replace")


def hostile(tokens):
    return decode(tokens, HOSTILE)


def make_round(draft, path, next_token, committed, rejected, tree=None, truncation=""):
    return Round(
        context=1,
        draft_tokens=tuple(draft),
        tree=tree or chain_tree(len(draft)),
        source=(),
        acceptance=Acceptance(tuple(path), next_token, rejected, tuple(draft)),
        committed=tuple(committed),
        accepted=min(len(path), len(committed)),
        rejected=rejected and len(committed) == len(path) + 1,
        truncation=truncation,
        beta=(),
        marks=Marks(0.0, 0.0, 0.0, 0.0, 0.0),
    )


def traced(*rounds, decode=decode, **header):
    tokens = tuple(token for item in rounds for token in item.committed)
    generation = Generation((0,), tokens, tuple(rounds), (0.0, 0.0), "limit")
    header = {"prompt": "p/1", "drafter": "ngram", "structure": "gamma 3", "lossless": True} | header
    return trace(generation, decode, [False] * len(rounds), **header)


REJECTING = make_round([1, 2, 4], [0], 3, [1, 3], rejected=True)
FULL = make_round([1, 2], [0, 1], 11, [1, 2, 11], rejected=False)
SILENT = make_round([], [], 1, [1], rejected=False)


@pytest.mark.parametrize(
    ("item", "kinds", "unused"),
    [
        (REJECTING, [Kind.ACCEPTED, Kind.REJECTED, Kind.CORRECTION], 1),
        (FULL, [Kind.ACCEPTED, Kind.ACCEPTED, Kind.BONUS], 0),
        (SILENT, [Kind.PLAIN], 0),
        # cut inside the accepted tokens: no correction, nothing said about what follows
        (make_round([1, 2, 4], [0, 1], 3, [1, 2], True, truncation="limit"), [Kind.ACCEPTED] * 2, 1),
    ],
)
def test_a_round_shows_what_became_of_its_tokens(item, kinds, unused):
    (line,) = traced(item).lines
    assert [piece.kind for piece in line.pieces] == kinds
    assert line.unused == unused
    assert (line.accepted, line.offered, line.end) == (item.accepted, len(item.draft_tokens), item.truncation)


def test_a_tree_shows_every_rejected_sibling_at_the_place_of_rejection():
    tree = Tree((-1, -1, 0, 0, 1))  # accepted: node 0; its children 2 and 3 fail; 1 and 4 lie elsewhere
    (line,) = traced(make_round([1, 2, 3, 4, 11], [0], 0, [1, 0], True, tree=tree)).lines
    assert [(piece.kind, piece.token) for piece in line.pieces] == [
        (Kind.ACCEPTED, 1),
        (Kind.REJECTED, 3),
        (Kind.REJECTED, 4),
        (Kind.CORRECTION, 0),
    ]
    assert line.unused == 2


def test_the_text_so_far_is_the_committed_output():
    lines = traced(REJECTING, FULL, SILENT).lines
    assert [line.so_far for line in lines] == ["", " one\n", " one\n one two x"]
    assert [line.number for line in lines] == [1, 2, 3]


@pytest.mark.parametrize(
    ("context", "token", "text"),
    [
        ([0], 1, " one"),
        ([0], 5, "\ufffd"),  # half a character
        ([0, 5], 6, "é"),  # whole where it ends, and not twice
        ([0, 9], 10, "日"),
        ([0], 7, "\ufffd"),  # never valid
        ([7], 7, "\ufffd"),
        ([7, 7], 1, " one"),  # the broken bytes before it are not shown again
        ([0], 8, "⟨8⟩"),  # adds nothing: shown by its id
    ],
)
def test_a_token_reads_as_the_difference_it_makes(context, token, text):
    assert piece_text(context, token, decode) == text


def test_a_decoder_that_drops_a_leading_space_does_not_hide_it():
    def sentencepiece(tokens):
        return decode(tokens, [b" def", b" f", b"(x)"]).removeprefix(" ")

    assert piece_text([0], 1, sentencepiece) == " f"
    assert piece_text([0, 1], 2, sentencepiece) == "(x)"


def test_a_token_after_a_long_context_costs_a_short_decoding():
    seen = []
    piece_text(list(range(5000)), 1, lambda tokens: seen.append(len(tokens)) or "")
    assert max(seen) < 50


def test_without_a_tokenizer_the_ids_are_shown():
    item = traced(REJECTING, FULL, decode=None)
    assert [piece.text for piece in item.lines[0].pieces] == [" 1", " 2", " 3"]
    assert item.lines[1].so_far == " 1 3"


def test_invisible_characters_become_glyphs():
    assert visible("a\n\tb") == "a⏎⇥b"
    assert visible("\x1b[31m\r\u202e\ud800") == "⟨U+001B⟩[31m⟨U+000D⟩⟨U+202E⟩\ufffd"


def test_a_trace_survives_its_file(tmp_path):
    items = [traced(REJECTING, FULL), traced(make_round([4, 3], [0, 1], 1, [4, 3, 1], False), decode=hostile)]
    path = tmp_path / "traces.json"
    path.write_text(json.dumps([asdict(item) for item in items]))
    assert read_traces(path) == items


def test_the_page_carries_header_legend_and_rounds_in_both_themes_without_the_network():
    page = trace_html([traced(REJECTING, FULL, SILENT)])
    assert not re.search(r"(?:https?:)?//\w|url\(|@import|<script|<link|\bsrc=", page)
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page
    assert "Prompt p/1" in page
    assert "drafter ngram · gamma 3 · 2.00 tokens per round (6 tokens, 3 rounds) · lossless" in page
    assert "not lossless" in trace_html([traced(REJECTING, lossless=False)])
    legend, _, rounds = page.partition("text so far, then this round")
    shown = {(kind, unescape(text)) for kind, text in CLASSED.findall(rounds)}
    assert shown >= {("accepted", " one"), ("rejected", " two"), ("own", "⏎"), ("own bonus", " x")}
    assert shown >= {("own plain", " one"), ("far", " one⏎")}
    explained = {kind for kind, _ in CLASSED.findall(legend)}
    assert explained >= {"accepted", "rejected", "own", "own bonus", "own plain", "unused", "far"}


def test_no_text_of_a_model_or_a_prompt_becomes_markup():
    rounds = [make_round([0, 1, 2], [0], 3, [0, 3], True), make_round([4, 2], [0, 1], 1, [4, 2, 1], False)]
    page = trace_html([traced(*rounds, decode=hostile, prompt="</h2><img src=x onerror=alert(1)>", drafter="<b>")])
    tags = "html head meta title style body h1 h2 p span section table thead tbody tr th td !doctype"
    elements = re.findall(r"<([^\s/>]+)([^>]*)>", page)
    assert {tag.lower() for tag, _ in elements} <= set(tags.split())
    attributes = {name for _, inside in elements for name in re.findall(r'([\w-]+)="', inside)}
    assert attributes <= {"lang", "charset", "http-equiv", "content", "name", "class", "title"}
    assert "</span><script>alert(1)</script>" in unescape(page) and "\x1b" not in page


def test_spaces_that_would_be_overlooked_are_dots():
    indented = traced(make_round([4, 3], [0, 1], 1, [4, 3, 1], False))
    assert "····⏎" in list(terminal_lines(indented))[1].plain


def printed(traces, rounds=None, **console):
    stream = StringIO()
    print_trace(traces, Console(file=stream, **console), rounds=rounds)
    return stream.getvalue()


def test_the_terminal_is_readable_without_colour():
    text = printed([traced(REJECTING, FULL, SILENT)], width=100)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[-3].split("│")[1] == " one ✗two«⏎» (+1)"
    assert lines[-2].split("│") == ["2  2/2   one⏎", " one two «+x»"]
    assert lines[-1].split("│")[1] == " «one»"


def test_the_terminal_never_takes_text_for_markup_or_control():
    rounds = [make_round([1, 2], [0], 1, [1, 1], True)]
    text = printed([traced(*rounds, decode=hostile, prompt="[red]x[/nope]")], width=100)
    assert text.count("[bold red]") == 2
    assert "[red]x[/nope]" in text
    assert "⟨U+001B⟩[31m" in text
    coloured = printed([traced(*rounds, decode=hostile)], width=100, force_terminal=True)
    colours = "0 1 2 4;32 9;31 1;34 1;36"
    assert set(re.findall(r"\x1b\[([\d;]*)m", coloured)) <= set(colours.split())


@pytest.mark.parametrize("width", [30, 80])
def test_long_lines_lose_their_oldest_part(width):
    wide = [b"\xe6\x97\xa5"] * 2 + [b" word"] * 10
    item = traced(*[FULL] * 60, decode=lambda tokens: decode(tokens, wide))
    lines = list(terminal_lines(item, width))[1:]
    assert all(cell_len(line.plain) <= width for line in lines)
    assert cell_len(lines[-1].plain) >= width - 1
    assert "…" in lines[-1].plain
    assert lines[-1].plain.endswith("»")


def test_more_rounds_than_wanted_are_counted():
    long = [traced(*[SILENT] * 9)]
    page = trace_html(long, rounds=5)
    assert page.count("<tr>") == 6 and "4 more rounds" in page
    assert (printed(long, width=80) + printed([], width=80)).count("│ «one»") == 9
    assert "… 7 more rounds" in printed(long, rounds=2, width=80)
