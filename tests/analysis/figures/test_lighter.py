"""Lighter figures show what matplotlib drew, shape by shape, and the font of a page has every letter of its figures."""

import re
from base64 import b64decode
from io import BytesIO, StringIO
from xml.etree import ElementTree

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from specdec.analysis.figures import style
from specdec.analysis.figures.lighter import SVG, XLINK, font_face, lighter

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="module")
def figure() -> Figure:
    """A figure with all that ours are made of: lines, markers, whiskers, hatches, areas, an image, turned letters."""
    with style.styled():
        drawn, axes = style.new_panels("At γ 4: 2.48 & more", "5 prompts <b>", 6.0, 2)
        axes[0, 0].errorbar([1, 2, 3], [1.1, 2.7, 1.9], yerr=0.3, fmt="o--", color=style.BLUE, label="measured")
        axes[0, 0].bar([1, 2], [1, 2], hatch="///", color=style.GREEN, edgecolor="white", label="bar")
        axes[0, 0].barh([1], [0.5], hatch="--", color=style.PURPLE, edgecolor="white")
        axes[0, 0].fill_between([1, 2, 3], [0, 1, 0], [1, 2, 3], color=style.SKY, alpha=0.3)
        axes[0, 0].set(ylabel="turned ×0.82", xlabel="plain")
        axes[0, 0].text(1, 1, " 2.52", weight="bold")
        style.point_tip(axes[0, 0], 2.0, 2.7, "a point")
        style.point_tip(axes[0, 0], 3.0, 1.9, "another")
        axes[1, 0].imshow(np.eye(3))
        style.legend_above(axes[0, 0], 2)
    return drawn


def shown(svg: str) -> list[tuple[str, list[float]]]:
    """All that is painted, in order: what it looks like without its numbers, and its numbers."""
    root = ElementTree.fromstring(svg[svg.index("<svg") :])
    by_id = {element.attrib["id"]: element for element in root.iter() if "id" in element.attrib}
    painted: list[tuple[str, list[float]]] = []

    def described(element: ElementTree.Element) -> str:
        """Write an element with what it refers to in place of names."""
        parts = [element.tag.rpartition("}")[2], " ".join((element.text or "").split())]
        for key, value in sorted(element.attrib.items()):
            if key == "id":
                continue
            if key == f"{{{XLINK}}}href" and value.startswith("#"):
                value = described(by_id[value[1:]])
            if key == "style":  # the page has one rule for the font
                value = ";".join(sorted(each.strip() for each in value.split(";") if "font-family" not in each))
            value = re.sub(r"url\(#([^)]+)\)", lambda found: described(by_id[found[1]]), value)
            value = re.sub(r"rotate\(-?0 [^)]*\)", "", value)
            parts += [key.rpartition("}")[2], value] if value else []
        return " ".join([*parts, *(described(child) for child in element if child.tag != f"{{{SVG}}}g")])

    def walk(element: ElementTree.Element, around: str) -> None:
        if element.tag in (f"{{{SVG}}}g", f"{{{SVG}}}svg"):
            outer = element.tag == f"{{{SVG}}}svg"
            own = {} if outer else {key: value for key, value in element.attrib.items() if key != "id"}
            frame = ElementTree.Element("g", own)
            for child in element:
                walk(child, around + (described(frame) if own else ""))
        elif element.tag != f"{{{SVG}}}defs":
            text = re.sub(r"([A-Za-z,();:])", r" \1 ", around + described(element))
            look = re.sub(r"\s+", "", NUMBER.sub(" ", text))
            painted.append((look, [float(each) for each in NUMBER.findall(text)]))

    walk(root, "")
    return painted


@pytest.mark.slow
@pytest.mark.parametrize("letters", [False, True], ids=["outlines", "letters"])
def test_every_shape_stays_where_it_was(figure, letters):
    stream = StringIO()
    with style.styled():
        style.matplotlib.rcParams["svg.fonttype"] = "none" if letters else "path"
        FigureCanvasSVG(figure).print_svg(stream, metadata=style.UNSIGNED)
    before = stream.getvalue()
    after = lighter(before)
    assert len(after) < 0.75 * len(before)
    first, second = shown(before), shown(after)
    assert len(first) == len(second) > 40
    for (look, numbers), (lighter_look, rounded) in zip(first, second, strict=True):
        assert lighter_look == look
        assert rounded == pytest.approx(numbers, abs=0.0051)


def test_letters_are_text_on_a_page_and_outlines_in_a_file(figure):
    inline, outlined = style.svg(figure, letters=True), style.svg(figure)
    assert "turned ×0.82</text>" in inline and "<text" not in outlined
    assert 2 * len(inline) < len(outlined)
    for svg in (inline, outlined):
        assert svg.count("<title>") == 3 and "<title>a point</title>" in svg and "comment" not in svg
    faces = re.findall(r"font-weight: (\w+); src: url\(data:font/woff;base64,([^)]+)\)", font_face([inline, inline]))
    fonts = {weight: set(TTFont(BytesIO(b64decode(data))).getBestCmap()) for weight, data in faces}
    assert fonts["bold"] >= {ord(letter) for letter in " 2.52"} and ord("γ") not in fonts["bold"]
    assert fonts["normal"] >= {ord(letter) for letter in "At γ 4: 2.48 & more5 prompts <b>turned ×0.82plainmeasuredbar"}
    assert len(font_face([inline])) < 30_000 and font_face([]) == ""
