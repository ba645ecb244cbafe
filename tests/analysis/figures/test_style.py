"""The style keeps its promises: colours that colour-blind readers tell apart, a background of its own, letters that
survive half a page; and every figure of the package uses it.
"""

import ast
import re
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from specdec.analysis.figures import style

ANALYSIS = Path(style.__file__).parent
LINES = {name: getattr(style, name) for name in ("BLACK", "BLUE", "ORANGE", "GREEN", "PURPLE")}
AREAS = {name: getattr(style, name) for name in ("SKY", "YELLOW")}
SIGHT = {  # of linear RGB, severity 1.0: Machado, Oliveira and Fernandes 2009
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
DISTINCT = 18  # CIELAB; 2 is just noticeable, and these are thin lines and small symbols
LEAST_CONTRAST = 3.0  # of graphics on their ground (WCAG 1.4.11)


def linear(colour: str) -> np.ndarray:
    values = np.asarray(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB, white at D65."""
    ratio = TO_XYZ @ rgb / (TO_XYZ @ np.ones(3))
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(colour: str) -> float:
    return 1.05 / (float(TO_XYZ[1] @ linear(colour)) + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_without_red_or_green(sight):
    seen = {name: lab(np.clip(SIGHT[sight] @ linear(colour), 0, 1)) for name, colour in (LINES | AREAS).items()}
    close = {
        pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]]))
        for pair in combinations(seen, 2)
        if np.linalg.norm(seen[pair[0]] - seen[pair[1]]) < DISTINCT
    }
    assert not close


def test_lines_and_words_stand_out_from_white():
    assert all(contrast(colour) >= LEAST_CONTRAST for colour in LINES.values())
    assert contrast(style.GREY) >= 4.5  # words
    assert contrast("#ffffff") == pytest.approx(1)


def drawn() -> Figure:
    @style.in_style
    def draw() -> Figure:
        figure, axes = style.new_figure("a $ in a name_, no mathematics $", "40 prompts; 95% bootstrap intervals.")
        axes.plot([1, 2], [1, 2], label="line", color=style.BLUE)
        axes.set(xlabel="x, tokens", ylabel="y, seconds")
        style.legend_above(axes, 1)
        return figure

    return draw()


def test_png_and_svg_bring_their_own_white_ground(tmp_path):
    theme = {"savefig.facecolor": "black", "savefig.transparent": True, "text.color": "white", "xtick.color": "white"}
    with matplotlib.rc_context(theme):
        files = png, svg = style.save(drawn(), tmp_path, "figure")
        assert matplotlib.rcParams["text.color"] == "white"  # and the theme is as it was
    pixels = image.imread(png)
    again = style.save(drawn(), tmp_path, "without_theme")
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in again]
    assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all()
    assert all((pixels[row, column, :3] == 1).all() for row in (0, -1) for column in (0, -1))
    shown, size = drawn()._repr_png_()  # as a notebook shows it
    assert shown.startswith(b"\x89PNG") and size == {"width": 100 * style.WIDTH}
    assert "a $ in a name_, no mathematics $</text>" in style.svg(drawn(), letters=True)
    text = svg.read_text(encoding="utf-8")
    assert not re.search(r"<script|<image|@import|href=\"(?!#)|url\((?!#)", text)
    height, width = (72 * size for size in drawn().get_size_inches()[::-1])
    assert f'<path d="M0 {height:g}L{width:g} {height:g}L{width:g} 0L0 0z" style="fill:#ffffff"' in text  # all of it


def test_letters_survive_half_a_page():
    """At half width 10 points become 5, the smallest that print can hold."""
    figure = drawn()
    figure.draw_without_rendering()
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip()]
    assert len(sizes) > 6 and min(sizes) >= 10
    assert figure.get_size_inches()[0] == style.WIDTH


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]


def calls(node: ast.AST) -> set[str]:
    return {
        inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call)
    }


@pytest.mark.parametrize("path", sorted(ANALYSIS.glob("*.py")), ids=lambda path: path.stem)
def test_every_figure_is_made_in_the_style(path):
    if path.name == "style.py":
        return
    for function in functions(path):
        made = calls(function)
        assert not made & {"subplots", "Figure"}, f"{function.name} goes past the style"
        assert "savefig" not in made or "styled" in made, f"{function.name} writes outside of the style"
        if made & {"new_figure", "new_panels"}:
            decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
            assert decorators & {"style.in_style", "in_style"}, f"{function.name} draws outside of the style"
            assert "set" in made or "set_xlabel" in made, f"{function.name} has axes without a name"
    assert "pyplot" not in {alias.name for node in ast.walk(ast.parse(path.read_text("utf-8")))
                            if isinstance(node, ast.ImportFrom | ast.Import) for alias in node.names}  # fmt: skip
