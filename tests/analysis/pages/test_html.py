"""The report as a file: nothing is fetched, nothing breaks out, numbers and words arrive as they were."""

import re
from html import unescape
from html.parser import HTMLParser
from math import nan

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.figures import style
from specdec.analysis.pages.html import FIGURES, Chapter, _marked, cell, markdown_table, write_report
from specdec.analysis.sections import Section

EVIL = 'a <script>alert("x")</script> | `b` & <b>'


def figure(name="measured"):
    with style.styled():
        drawn, axes = style.new_figure("Title $1", "caption")
        axes.plot([1, 2], [3, 4], "o-", label=name)
        axes.bar([1, 2], [1, 2], hatch="///")
    return drawn


def chapters():
    table = pd.DataFrame({"name": [EVIL, "plain"], "value": [1234.5678, nan], "n": [12345, 1]})
    section = Section(
        "Section <1>",
        ("**Bold** and `x <y>` & more.", "- one <i>\n- two", "```\npython -m specdec.run '+a=<b>'\n```"),
        ((f"Caption {EVIL}", table),),
        (("the figure", figure()), ("the figure", figure("other"))),
    )
    return [Chapter(f"Chapter {EVIL}", (section,)), Chapter("Second", (Section("Empty"),))]


class Page(HTMLParser):
    VOID = {"meta", "br", "path", "use", "rect"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.stack, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return folder, *(path.read_text(encoding="utf-8") for path in write_report(folder, "Report", chapters()))


def test_nothing_is_loaded_links_find_their_target_and_names_may_hold_anything(written):
    _, html, _ = written
    page = Page()
    page.feed(html)
    assert page.stack == []
    assert not re.search(r"""(src|href|srcset|action|data)\s*=\s*["']?\s*(https?:)?//""", html, re.IGNORECASE)
    assert not re.search(r"url\(\s*['\"]?(?!#|data:font/)", html)
    assert "@import" not in html and "http://" not in html and "https://" not in html
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "image"}
    assert any(attributes.get("content", "").startswith("default-src 'none'") for _, attributes in page.tags)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [value[1:] for _, attributes in page.tags for key, value in attributes.items() if key.endswith("href")]
    assert links and set(links) <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)
    contents = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert contents == ["#c1", "#c1s1", "#c2", "#c2s1"]
    text = "".join(page.text)
    assert text.count('<script>alert("x")</script>') == 4  # contents, chapter, caption and cell, as text
    assert ("strong", {}) in page.tags and "x <y>" in text and "python -m specdec.run '+a=<b>'" in text
    assert "prefers-color-scheme: dark" in html and "@media print" in html
    assert html.count("@font-face") == 1


def test_marks_are_read_and_products_are_none():
    html = _marked("see *Which gamma?* or **2 * 3 * 4**, not 2*3*4, and `*x*`")
    expected = "see <em>Which gamma?</em> or <strong>2 * 3 * 4</strong>, not 2*3*4, and <code>*x*</code>"
    assert html == expected


def test_markdown_has_the_same_and_its_figures_beside_it(written):
    folder, _, markdown = written
    assert re.search(r"^# Report$", markdown, re.MULTILINE)
    figures = re.findall(r"!\[.*?\]\((.*?)\)", markdown)
    assert len(figures) == len(set(figures)) == 2
    assert all((folder / name).read_text(encoding="utf-8").startswith("<?xml") for name in figures)
    assert "<script>" not in markdown.replace("\\<script\\>", "")
    (row,) = [line for line in markdown.splitlines() if "1,234.6" in line]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4  # the cell's own bar is escaped


@pytest.mark.parametrize(
    "value, text",
    [
        *((nan, "–"), (None, "–"), (0.123456, "0.1235"), (12, "12"), (np.int64(1234567), "1,234,567")),
        *((1234.56, "1,234.6"), (True, "True"), ("1e5", "1e5"), (float("inf"), "inf")),
    ],
)
def test_cells(value, text):
    assert cell(value) == text


def test_a_folded_chapter_shows_as_many_sections_as_it_says(tmp_path):
    chapters = [
        Chapter("Open", (Section("A"),)),
        Chapter("Shut", (Section("B"),), shown=0),
        Chapter("Ajar", (Section("C"), Section("D")), shown=1),
    ]
    text, markdown = (path.read_text("utf-8") for path in write_report(tmp_path, "Title", chapters))
    opened, shut = text.split('<details class="chapter"><summary><h2 id="c2">Shut</h2></summary>')
    assert '<h3 id="c1s1">A</h3>' in opened
    order = ('<h3 id="c2s1">B</h3>', "</details>", '<h2 id="c3">Ajar</h2>', '<h3 id="c3s1">C</h3>', "1 more section")
    assert sorted(order, key=shut.index) == list(order)
    assert "details::details-content" in text.split("@media print")[1]  # on paper nothing stays folded
    assert "## Shut" in markdown


def test_points_and_bars_have_tooltips_without_a_script_and_heat_maps_are_let_through(tmp_path):
    """Heat maps are images inside the SVG: the page's own policy must not keep a browser from showing them."""
    evil = '4: <b>"1"</b>'
    with style.styled():
        drawn, axes = style.new_figure("What to see & where", "caption")
        style.point_tip(axes, 1.0, 2.0, evil)
        style.point_tip(axes, 1.0, nan, "nowhere")
        for bar in axes.bar([1, 2], [1, 2]):
            style.tip(bar, "a bar")
        axes.imshow(np.eye(3))
    names = ("map", "map_2_2", "map_2", "map")
    section = Section("Map", figures=tuple((name, drawn) for name in names))
    (path, _) = write_report(tmp_path, "Title", [Chapter("One", (section,))])
    assert len(list((tmp_path / FIGURES).iterdir())) == len(names)
    html = path.read_text("utf-8")
    for text in (html, (tmp_path / FIGURES / "01-01-map.svg").read_text("utf-8")):
        titles = re.findall(r"<title>([^<]*)</title>", text)
        assert [unescape(title) for title in titles[-4:]] == ["What to see & where", "a bar", "a bar", evil]
        assert "tip:" not in text and "<script" not in text
    assert 'href="data:image/png;base64,' in html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "img-src data:" in policy and "script" not in policy and policy.startswith("default-src 'none'")


def test_a_number_stays_on_one_line_with_its_interval_and_to_the_right(tmp_path):
    write_report(tmp_path, "Report", chapters())
    table = pd.DataFrame({"speedup": ["1.300 (1.184 to 1.441)", "1.300", "12% (9% to 14%)"], "words": "a b (c to d)"})
    (html, _) = write_report(tmp_path, "Title", [Chapter("One", (Section("Table", tables=(("All", table),)),))])
    cells = re.findall(r"<td([^>]*)>([^<]*)</td>", html.read_text("utf-8"))
    assert [bool(kind) for kind, _ in cells] == [True, False, False, False, True, False]
    assert list((tmp_path / FIGURES).iterdir()) == []  # no figure of the first report is left
    lines = markdown_table(pd.DataFrame({"a": ["x"], "b": [1.5]})).splitlines()
    assert lines == ["| a | b |", "| --- | ---: |", "| x | 1.5 |"]
