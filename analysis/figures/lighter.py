"""Makes SVG text of matplotlib lighter without changing what is seen, and brings the font that its letters need. What
weighs are letters drawn as outlines, coordinates to a millionth of a point, names that nothing refers to, and shapes
defined anew for each use.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from html import unescape
from io import BytesIO
from xml.etree import ElementTree

from fontTools import subset
from matplotlib.font_manager import FontProperties, findfont

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
FONT = "DejaVu Sans"
DIGITS = 2  # of a coordinate, in points: a hundredth is a third of the finest pixel of any screen
_PLACES = ("d", "x", "y", "width", "height")  # attributes that hold coordinates and lengths
_DECIMAL = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_MOVED = re.compile(r"translate\([^)]*\)")
_URL = re.compile(r"(?<=url\(#)[^)]+(?=\))")
_HREF = f"{{{XLINK}}}href"  # colours begin with # too, elsewhere
_OWN_FONT = re.compile(r"font-family:[^;]*;?")  # a page has one rule for it
_UNTURNED = re.compile(r"\s*rotate\(-?0 [^)]*\)")
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def lighter(svg: str) -> str:
    """Return the SVG document `svg`, which looks the same, with shorter coordinates and names: comments and indentation
    go, groups that say nothing dissolve, a shape that is defined again refers to the first.
    """
    start = svg.index("<svg")
    root = ElementTree.fromstring(svg[start:])
    # Places are rounded, and the white space around children goes.
    for element in root.iter():
        if element.tag != f"{{{SVG}}}text":
            element.text = element.text if (element.text or "").strip() else None
            for child in element:
                child.tail = None
        for key in _PLACES:
            if key in element.attrib and element.tag != f"{{{SVG}}}svg":
                element.set(key, _DECIMAL.sub(_rounded, element.attrib[key]))
        if "d" in element.attrib:
            element.set("d", re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(element.attrib["d"].split())))
        if "style" in element.attrib:
            brief = re.sub(r"([:;])\s+", r"\1", element.attrib["style"])
            element.set("style", _OWN_FONT.sub("", brief).rstrip(";"))
        if "transform" in element.attrib:
            moved = _MOVED.sub(lambda found: _DECIMAL.sub(_rounded, found[0]), element.attrib["transform"])
            element.set("transform", _UNTURNED.sub("", moved).strip())
            if not element.attrib["transform"]:
                del element.attrib["transform"]
    # A definition that repeats an earlier one goes, and what referred to it refers to that one.
    first, instead = dict[str, str](), dict[str, str]()
    for definitions in root.iter(f"{{{SVG}}}defs"):
        for shape in list(definitions):
            name = shape.attrib.pop("id", None)
            if name is None:
                continue
            kept = first.setdefault(ElementTree.tostring(shape, encoding="unicode"), name)
            shape.set("id", name)
            if kept != name:
                instead[name] = kept
                definitions.remove(shape)
    # Ids that nothing refers to go, and the others get the shortest names there are.
    used: dict[str, str] = {}

    def shortest(name: str) -> str:
        return used.setdefault(instead.get(name, name), f"i{len(used)}")

    for element in root.iter():
        for key, value in element.attrib.items():
            url = _URL.sub(lambda found: shortest(found[0]), value)
            element.set(key, f"#{shortest(value[1:])}" if key == _HREF and value.startswith("#") else url)
    for element in root.iter():
        name = element.attrib.pop("id", None)
        if name in used:
            element.set("id", used[name])
    _dissolve(root)
    return svg[:start] + ElementTree.tostring(root, encoding="unicode") + "\n"


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _dissolve(root: ElementTree.Element) -> None:
    """Replace groups and definitions without attribute or tooltip by what they hold, and drop the empty ones."""
    for element in root:
        _dissolve(element)
    kept: list[ElementTree.Element] = []
    for element in root:
        empty = element.tag in (f"{{{SVG}}}g", f"{{{SVG}}}defs") and not len(element)
        bare = element.tag == f"{{{SVG}}}g" and not element.attrib and element.find(f"{{{SVG}}}title") is None
        kept += [] if empty else list(element) if bare else [element]
    root[:] = kept


def font_face(figures: Iterable[str]) -> str:
    """Return the CSS that brings the font `Figures` as data, with the letters that the figures of a page show, which
    are SVG elements by `style.svg(figure, letters=True)`.
    """
    letters: dict[str, set[str]] = {}
    for style, text in (found for figure in figures for found in re.findall(r"<text\b([^>]*)>([^<]*)</text>", figure)):
        letters.setdefault("bold" if re.search(r"\b(bold|700)\b", style) else "normal", set()).update(unescape(text))
    # Matplotlib spaces letters by the font's kerning alone, without hints.
    options = subset.Options(flavor="woff", hinting=False, layout_features=["kern"])
    options.drop_tables += ["FFTM"]  # FontForge's own; fontTools warns of what it does not know
    faces = []
    for weight, used in sorted(letters.items()):
        font = subset.load_font(findfont(FontProperties(family=FONT, weight=weight)), options)
        subsetter = subset.Subsetter(options)
        subsetter.populate(text="".join(sorted(used)))
        subsetter.subset(font)
        stream = BytesIO()
        subset.save_font(font, stream, options)
        data = b64encode(stream.getvalue()).decode("ascii")
        source = f"url(data:font/woff;base64,{data})"
        faces.append(f'@font-face {{ font-family: "Figures"; font-weight: {weight}; src: {source}; }}\n')
    return "".join(faces)
