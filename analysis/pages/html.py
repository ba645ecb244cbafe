"""Writes sections as one HTML file that needs nothing else, and as Markdown with its figures beside it.

The HTML holds its style and its figures (inline SVG), without a script. All text is escaped: names may hold anything.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from ..figures import style
from ..figures.lighter import font_face
from ..intervals import Interval
from ..sections import Section, counted

FIGURES = "report_figures"  # folder beside report.md
EMPTY = "–"  # a cell without a value
_UNFOLDED = 4  # chapters whose sections the contents list openly
CODE = "```"
_WITH_INTERVAL = re.compile(r"[-+]?[\d.,]+%? \([^ ]+ to [^ ]+\)")


@dataclass(frozen=True)
class Chapter:
    """Sections under one heading of a report."""

    title: str
    sections: tuple[Section, ...]
    shown: int | None = None  # sections that show before a reader opens the others; None for all, 0 for none


def write_report(folder: Path, title: str, chapters: Sequence[Chapter]) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` (figures in `report_figures/`) into `folder`; each figure is drawn once.
    Figures of an earlier report there are removed. OSError if the folder cannot be written.
    """
    drawn: dict[int, str] = {}  # by the figure's id: SVG with letters as text, for a page that brings their font
    blocks = [f"# {_plain(title)}"]  # of Markdown
    figures = folder / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob("*.svg"):
        old.unlink()
    for number, chapter in enumerate(chapters, 1):
        blocks.append(f"## {_plain(chapter.title)}")
        for place, section in enumerate(chapter.sections, 1):
            files: list[str] = []
            for name, figure in section.figures:  # names follow chapter and section, and are safe and unique
                stem = f"{FIGURES}/{number:02}-{place:02}-{re.sub('[^A-Za-z0-9_-]+', '_', name)}"
                while f"{stem}.svg" in files:
                    stem += "_2"
                files.append(f"{stem}.svg")
                (folder / files[-1]).write_text(style.svg(figure), encoding="utf-8")  # with outlines of letters
                with style.laid_out(figure):
                    svg = style.svg(figure, letters=True)
                # The element alone, with ids of its own: all figures of a page share one space of names.
                element = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg[svg.index("<svg") :].rstrip())
                element = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{len(drawn)}", element)
                drawn[id(figure)] = element.replace("<svg", '<svg role="img"', 1)
            blocks += section_blocks(section, "###", files)
    html, markdown = folder / "report.html", folder / "report.md"
    html.write_text(_html(title, chapters, drawn), encoding="utf-8")
    markdown.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return html, markdown


def cell(value: object) -> str:
    """Write a table's value: four significant digits, thousands with commas, intervals, a dash for NaN and None."""
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return EMPTY
    if isinstance(value, Interval):
        return f"{value:.4g}"
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    number = float(value)
    if isinstance(value, (int, np.integer)) or number.is_integer() and abs(number) >= 1000:
        return f"{int(value):,}"
    return f"{number:.4g}" if abs(number) < 1000 else f"{number:,.1f}"


STYLESHEET = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #595959; --line: #d9d9d9; --tint: #f4f5f7;
  --link: #0063a0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181c; --faint: #a8adb5; --line: #3a3f47; --tint: #22262c; --link: #6cb8ee; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.25rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin-top: 2.5rem; padding-top: .75rem; border-top: 2px solid var(--line);
  overflow-wrap: anywhere; }
nav + h2 { margin-top: 1rem; }
h3 { font-size: 1.1rem; margin-top: 2rem; }
h2 + section h3 { margin-top: .5rem; }
.chapter { border-top: 2px solid var(--line); }
.chapter > summary { cursor: pointer; padding: .6rem 0; }
.chapter > summary h2 { display: inline; font-size: 1.1rem; margin: 0; padding: 0; border: 0; }
p, li { max-width: 48rem; overflow-wrap: anywhere; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .88em; background: var(--tint);
  border-radius: 4px; }
code { padding: .1em .3em; }
pre { padding: .75rem 1rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
nav { background: var(--tint); border-radius: 8px; padding: .5rem 1rem; font-size: .93rem; }
nav ul { margin: .3rem 0; padding-left: 1.2rem; }
nav ul ul { columns: 2; }
nav li details { display: inline; }
nav summary { cursor: pointer; color: var(--faint); }
nav li summary { display: inline; margin-left: .5rem; }
.table { overflow-x: auto; margin: 1.25rem 0; max-width: 100%; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding-bottom: .35rem; font-size: .95em; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
.whole { white-space: nowrap; }
td { min-width: 4.5rem; }
figure { margin: 1.25rem 0; max-width: 42rem; background: #fff; border-radius: 8px; padding: .25rem; }
figure svg { display: block; width: 100%; height: auto; }
figure text { font-family: "Figures", "DejaVu Sans", sans-serif; white-space: pre; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem;
  align-items: start; margin: 1.25rem 0; }
.figures figure { margin: 0; }
@media (max-width: 40rem) {
  body { padding: .75rem .75rem 3rem; font-size: 15px; }
  h1 { font-size: 1.3rem; }
  h2 { font-size: 1.15rem; }
  nav ul ul { columns: 1; }
  nav ul, p + ul, section > ul { padding-left: 1.1rem; }
  th, td { padding: .3rem .5rem; }
  table { font-size: .82rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  figure, tr, pre { break-inside: avoid; }
  h2, h3, caption, summary { break-after: avoid; }
  .table { overflow: visible; break-inside: auto; }
  table { font-size: 7.5pt; width: 100%; }
  th, td { padding: .15rem .3rem; min-width: 0; overflow-wrap: anywhere; white-space: normal; }
  thead th, .number, .whole { white-space: normal; }
  .figures { grid-template-columns: 1fr 1fr; }
  figure { max-width: 12cm; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
}
"""
# The browser itself is told to load nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"  # heat maps; letters of figures


def _html(title: str, chapters: Sequence[Chapter], drawn: Mapping[int, str]) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLESHEET}{font_face(list(drawn.values()))}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        '<nav aria-label="Contents"><details><summary>Contents</summary><ul>',
    ]
    folded = len(chapters) > _UNFOLDED
    for number, chapter in enumerate(chapters, 1):
        parts.append(f'<li><a href="#c{number}">{escape(chapter.title)}</a>')
        parts.append("<details><summary>sections</summary><ul>" if folded else "<ul>")
        for place, section in enumerate(chapter.sections, 1):
            parts.append(f'<li><a href="#c{number}s{place}">{escape(section.title)}</a></li>')
        parts.append("</ul></details></li>" if folded else "</ul></li>")
    parts.append("</ul></details></nav>")
    for number, chapter in enumerate(chapters, 1):
        heading = f'<h2 id="c{number}">{escape(chapter.title)}</h2>'
        shown = len(chapter.sections) if chapter.shown is None else chapter.shown
        parts += [heading] if chapter.shown != 0 else []
        for place, section in enumerate(chapter.sections, 1):
            if place == shown + 1:
                others = counted(len(chapter.sections) - shown, "more section")
                parts.append(f'<details class="chapter"><summary>{others if shown else heading}</summary>')
            parts.append(f'<section>\n<h3 id="c{number}s{place}">{escape(section.title)}</h3>')
            parts += [_paragraph(text) for text in section.text]
            tables = [_table(caption, table) for caption, table in section.tables]
            figures = [f"<figure>{drawn[id(figure)]}</figure>" for _, figure in section.figures]
            figures = ['<div class="figures">', *figures, "</div>"] if len(figures) > 1 else figures
            parts += [*figures, *tables] if section.figures_first else [*tables, *figures]
            parts.append("</section>")
        if shown < len(chapter.sections):
            parts.append("</details>")
    return "\n".join([*parts, "</body>", "</html>", ""])


def _paragraph(text: str) -> str:
    """Write a paragraph of a section: a fenced block, a list if every line is an item, else running text."""
    if text.startswith(CODE):
        body = text.removeprefix(CODE).removesuffix(CODE).partition("\n")[2].rstrip("\n")
        return f"<pre>{escape(body)}</pre>"
    lines = text.splitlines()
    if lines and all(line.startswith("- ") for line in lines):
        return "<ul>" + "".join(f"<li>{_marked(line[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{_marked(text)}</p>"


def _marked(text: str) -> str:
    """Escape text and mark **bold**, *emphasis* and `code`; what stands in code stays as it is."""
    marked = ""
    for number, part in enumerate(re.split(r"(`[^`]+`)", text)):
        if number % 2:  # code
            marked += f"<code>{escape(part[1:-1])}</code>"
        else:
            strong = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(part))
            # No product of numbers is emphasis.
            marked += re.sub(r"(?<![\w*])\*(?=[^\s*])([^*]+)(?<=\S)\*(?![\w*])", r"<em>\1</em>", strong)
    return marked


def _table(caption: str, table: pd.DataFrame) -> str:
    attribute = [' class="number"' if pd.api.types.is_numeric_dtype(kind) else "" for kind in table.dtypes]
    head = "".join(f"<th{kind}>{escape(str(name))}</th>" for name, kind in zip(table.columns, attribute, strict=True))
    body = ""
    for line in table.itertuples(index=False, name=None):
        body += "<tr>"
        for text, kind in zip(map(cell, line), attribute, strict=True):
            whole = ' class="whole"' if not kind and _WITH_INTERVAL.fullmatch(text) else kind  # stays on one line
            body += f"<td{whole}>{escape(text)}</td>"
        body += "</tr>\n"
    return (
        f'<div class="table"><table><caption>{_marked(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def section_blocks(section: Section, heading: str, files: Sequence[str]) -> list[str]:
    """Write a section as blocks of Markdown. heading: "##" or "###"; files: where its figures are, beside the page."""
    blocks = [f"{heading} {_plain(section.title)}"]
    blocks += [text if text.startswith(CODE) else _without_tags(text) for text in section.text]
    tables = [block for caption, table in section.tables for block in (_without_tags(caption), markdown_table(table))]
    named = zip(section.figures, files, strict=True)
    figures = [f"![{_plain(name.replace('_', ' '))}]({file})" for (name, _), file in named]
    return [*blocks, *figures, *tables] if section.figures_first else [*blocks, *tables, *figures]


def markdown_table(table: pd.DataFrame) -> str:
    """Write a pipe table whose cells cannot break out of it."""
    head, *lines = (
        "| " + " | ".join(_plain(cell(value)) for value in line) + " |"
        for line in (tuple(table.columns.map(str)), *table.itertuples(index=False, name=None))
    )
    marks = ("---:" if pd.api.types.is_numeric_dtype(kind) else "---" for kind in table.dtypes)
    return "\n".join([head, f"| {' | '.join(marks)} |", *lines])


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _without_tags(text: str) -> str:
    """Keep a paragraph that is Markdown already from opening an HTML element; it may be bold."""
    return re.sub(r"`[^`]+`|<", lambda found: "&lt;" if found[0] == "<" else found[0], text)
