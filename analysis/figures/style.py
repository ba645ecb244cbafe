"""The look of every figure: colours that colour-blind readers can tell apart, letters that stay legible at half the
width of a page, a caption, and a background that is white and opaque, because the pages of GitHub, MLflow and notebooks
may be dark. Uses matplotlib, but neither pyplot nor any global state of it.
"""

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape, unescape
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .lighter import lighter

# The palette of Okabe and Ito, but with a darker purple (Tol's wine): without red or green receptors, theirs and
# lighter ones look like the blue or the green. Lines differ by dash or marker too.
BLACK, BLUE, ORANGE, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#009E73", "#882255"
SKY, YELLOW = "#56B4E9", "#E69F00"  # for areas only: too light for lines or words on white
GREY, LIGHT = "#595959", "#D9D9D9"

Dash = str | tuple[float, tuple[float, ...]]
DOTTED: Dash = (0, (1, 1.5))


class Look(NamedTuple):
    """The marks of a line or a group of bars. No two differ by colour alone. Hatches are of lines: dots, of which SVG
    draws each as eight curves, weigh a hundred times as much.
    """

    colour: str
    marker: str
    dash: Dash
    hatch: str = ""


LOOKS = (  # the first line of a picture, the second, ...
    Look(BLUE, "o", "-"),
    Look(ORANGE, "D", "--", "//"),
    Look(GREEN, "^", "-.", "xx"),
    Look(PURPLE, "v", (0, (5, 1, 1, 1, 1, 1)), "--"),
    Look(GREY, "s", ":", "\\\\"),
)
STRUCTURES = {  # a structure looks alike in all pictures
    "chain": Look(BLACK, "o", "-"),
    "rows": Look(BLUE, "D", "--"),
    "tree": Look(ORANGE, "^", "-."),
    "dynamic": Look(GREEN, "v", ":"),
}


def look(place: int) -> Look:
    """Return the look of the line at `place`, from 0; looks begin again after the last."""
    return LOOKS[place % len(LOOKS)]


WIDTH, HEIGHT, DPI = 6.4, 4.8, 160  # inches; at half width the smallest text is still 5 points
LETTERS = 84  # in a line of a legend; six of them are the space that each line or bar beside a name takes

RC: dict[str, Any] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.7,
    "lines.linewidth": 2.2,
    "lines.markersize": 7,
    "errorbar.capsize": 4,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "specdec",  # equal figures give equal files
}
UNSIGNED = {"Creator": None, "Date": None, "Format": None, "Type": None}  # metadata of an SVG without date and program


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style inside the context, whatever theme the user has; their settings come back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the white letters of a dark theme could not be read on a white background
        matplotlib.rcParams.update(RC)
        yield


in_style = styled()  # decorates a function that draws


class StyledFigure(Figure):
    """A figure that shows itself in a notebook, without pyplot or a magic command."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = BytesIO()
        with styled():
            self.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue(), {"width": round(self.get_size_inches()[0] * 100)}


def new_figure(title: str, caption: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, a title above and a caption below. Call it inside the style."""
    figure = StyledFigure(figsize=(WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    figure.suptitle(wrapped(title, 62), x=0.015, ha="left", fontsize=12.5)
    if caption:
        figure.supxlabel(wrapped(caption, 82), x=0.015, ha="left", fontsize=10, color=GREY, linespacing=1.3)
    return figure, axes


def new_panels(
    title: str, caption: str, height: float, rows: int, columns: int = 1, **grid: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure like `new_figure`, with axes [rows, columns]; `grid` goes to `Figure.subplots`."""
    figure, whole = new_figure(title, caption, height)
    whole.remove()
    return figure, figure.subplots(rows, columns, squeeze=False, **grid)


def legend_above(axes: Axes, columns: int) -> None:
    """Put a legend between title and axes, where it hides nothing, in so many columns, fewer if names are long."""
    longest = max((len(name) for name in axes.get_legend_handles_labels()[1]), default=1)
    fitting = min(columns, max(1, LETTERS // (longest + 6)))
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=fitting, columnspacing=1.4, handlelength=2.0,
                handletextpad=0.5)  # fmt: skip


def wrapped(text: str, characters: int) -> str:
    """Break the lines of `text`, and keep matplotlib from reading a $ in it as the start of mathematics."""
    lines = (textwrap.fill(line, characters, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join(lines).replace("$", r"\$")


_TIP = "tip:"  # begins the id of an artist that has a tooltip; the text follows


def tip(artist: Artist, text: str) -> None:
    """Give a drawn artist a tooltip: a title element in the SVG, which browsers show without any script."""
    artist.set_gid(_TIP + escape(" ".join(text.split())))


def point_tip(axes: Axes, across: float, up: float, text: str) -> None:
    """Give the point at (`across`, `up`) a tooltip: an invisible mark above all others, large enough to be met."""
    if np.isfinite([across, up]).all():
        mark = axes.scatter([across], [up], s=200, color=BLACK, alpha=0.0, linewidths=0, zorder=20, label="_tooltip")
        mark.set_in_layout(False)
        tip(mark, text)


def svg(figure: Figure, letters: bool = False) -> str:
    """Return the figure as SVG with its tooltips, without a date and without the name of a program. `letters` stay text
    for a page that brings their font (`lighter.font_face`); otherwise they are outlines, so that a file of its own
    looks the same where the font is lacking.
    """
    stream, canvas = StringIO(), figure.canvas
    with styled():
        matplotlib.rcParams["svg.fonttype"] = "none" if letters else "path"
        FigureCanvasSVG(figure).print_svg(stream, metadata=UNSIGNED)
    figure.set_canvas(canvas)
    # An attribute escapes what `tip` escaped once more; what is left belongs into an element.
    tips = re.compile(f'<g id="{_TIP}([^"]*)">')
    text = tips.sub(lambda found: f"<g><title>{unescape(found[1])}</title>", stream.getvalue())
    name = escape(" ".join(figure.get_suptitle().replace(r"\$", "$").split()), quote=False)
    return lighter(re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}<title>{name}</title>", text, count=1))


@contextmanager
def laid_out(figure: Figure) -> Iterator[None]:
    """Keep the layout of the last drawing inside the context: finding it is most of the time of a drawing."""
    engine = figure.get_layout_engine()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


def save(figure: Figure, folder: Path | str, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.svg into `folder` and return their paths. `savefig` would draw everything twice, once
    to measure it; the layout here is found while drawing.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", name).lstrip(".")  # a name, whatever a table holds; never a path
    png, vector = target / f"{name}.png", target / f"{name}.svg"
    with styled():
        figure.set_dpi(DPI)
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    with laid_out(figure):
        vector.write_text(svg(figure), encoding="utf-8")
    return png, vector
