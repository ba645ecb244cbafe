"""The style keeps its promises: a background of its own, letters that survive half a page; and every figure uses it."""

import ast
import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib import image
from matplotlib.figure import Figure
from matplotlib.text import Text

from specdec.analysis.figures import style


@style.in_style
def drawn() -> Figure:
    figure, axes = style.new_figure("a $ in a name_, no mathematics $", "40 prompts; 95% bootstrap intervals.")
    axes.plot([1, 2], [1, 2], label="line", color=style.BLUE)
    axes.set(xlabel="x, tokens", ylabel="y, seconds")
    style.legend_above(axes, 1)
    return figure


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


@pytest.mark.parametrize("path", sorted(Path(style.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_every_figure_is_made_in_the_style(path):
    tree = ast.parse(path.read_text("utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and path.name != "style.py"):
        called = [inner.func for inner in ast.walk(function) if isinstance(inner, ast.Call)]
        made = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}
        assert not made & {"subplots", "Figure"}, f"{function.name} goes past the style"
        assert "savefig" not in made or "styled" in made, f"{function.name} writes outside of the style"
        if made & {"new_figure", "new_panels"}:
            decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
            assert decorators & {"style.in_style", "in_style"}, f"{function.name} draws outside of the style"
            assert "set" in made or "set_xlabel" in made, f"{function.name} has axes without a name"
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert "pyplot" not in {alias.name for node in imports for alias in node.names}
