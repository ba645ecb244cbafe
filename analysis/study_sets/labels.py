"""Names for studies of one kind, and the panels of figures that show them side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..figures import style
from ..findings import FinishedStudy


@dataclass(frozen=True)
class Labelled:
    """A study with a name that tells it from the others beside it: its prompt set, and the model where these differ."""

    label: str
    study: FinishedStudy


def labelled(studies: Sequence[FinishedStudy]) -> list[Labelled]:
    """Return studies with their names; equal ones are numbered in the order of the studies."""
    titles = {study.about.title for study in studies}
    names = [
        study.about.prompts if len(titles) == 1 else f"{study.about.prompts}, {study.about.title}" for study in studies
    ]
    found = []
    for at, (name, study) in enumerate(zip(names, studies, strict=True)):
        number = names[: at + 1].count(name)
        found.append(Labelled(name if names.count(name) == 1 else f"{name} ({number})", study))
    return found


def settings(studies: Sequence[Labelled]) -> str:
    """Return the titles of the studies, each once, for figures."""
    return "; ".join(dict.fromkeys(each.study.about.title for each in studies))


def caveats(studies: Sequence[Labelled]) -> list[str]:
    """Return what limits the conclusions; a sentence that holds for several studies names all of them."""
    said: dict[str, list[Labelled]] = {}
    for each in studies:
        about = each.study.about
        for text in about.caveats(each.study.tables["skipped"]):
            said.setdefault(text.replace(f"prompts of {about.prompts}", "prompts of {}"), []).append(each)
    found = []
    for text, those in said.items():
        names = ", ".join(each.label for each in those)
        found.append(text.replace("{}", names) if "{}" in text else f"{names}: {text}")
    return found


@dataclass(frozen=True)
class Panels:
    """Panels of a figure.

    Attributes:
        every: the panels in order.
        left, bottom: those at the left, and those with none below.
        top: hidden axes above all, for the legend.
    """

    figure: Figure
    every: list[Axes]
    left: list[Axes]
    bottom: list[Axes]
    top: Axes

    def label(self, below: str, beside: str) -> None:
        """Name both axes."""
        for panel in self.bottom:
            panel.set_xlabel(below)
        for panel in self.left:
            panel.set_ylabel(beside)

    def legend(self, columns: int) -> None:
        """Write one legend for all panels above them."""
        handles: dict[str, Artist] = {}
        for panel in self.every:
            handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        legend = self.top.legend(
            handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(-0.06, 0.0), ncols=columns, fontsize=10
        )
        legend.set_in_layout(False)  # the panels keep their width


def panels(title: str, caption: str, count: int, height: float, legend_lines: int) -> Panels:
    """Return a figure with `count` panels side by side, in lines of two, whose axes are equal; call it in the style.

    Args:
        height: inches of a line of panels.
        legend_lines: lines of the legend, which stands above all panels.
    """
    columns = 1 if count == 1 else 2
    lines = -(-count // columns)
    above = 0.26 * legend_lines
    figure, axes = style.new_panels(
        title, caption, 1.6 + above + height * lines, lines + 1, columns, sharex=True, sharey=True,
        height_ratios=[above, *[height] * lines],
    )  # fmt: skip
    for each in axes[0]:
        each.remove()  # it would share its scale, and so its few ticks, with the panels
    top = figure.add_subplot(axes[1, 0].get_gridspec()[0, :])
    for each in (top, *axes[1:].flat[count:]):
        each.set_axis_off()
    used = list(axes[1:].flat[:count])
    for each in used[-columns:]:
        each.tick_params(labelbottom=True)
    return Panels(figure, used, used[::columns], used[-columns:], top)
