"""Names for studies of one kind, and the panels of figures that show them side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..figures import style
from ..sections import FinishedStudy


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


@style.in_style
def panels(
    title: str,
    caption: str,
    draw: Mapping[str, Callable[[Axes], None]],
    height: float,
    legend: tuple[int, int],
    axis_labels: tuple[str, str],
) -> Figure:
    """Return a figure with a panel for each study side by side, in lines of two, whose axes are equal.

    draw: by label, what draws a panel; height: inches of a line of panels; legend: lines and columns of the one legend
    of all panels, which stands above them; axis_labels: below and beside.
    """
    columns = 1 if len(draw) == 1 else 2
    lines, above = -(-len(draw) // columns), 0.26 * legend[0]
    figure, axes = style.new_panels(
        title, caption, 1.6 + above + height * lines, lines + 1, columns, sharex=True, sharey=True,
        height_ratios=[above, *[height] * lines],
    )  # fmt: skip
    for each in axes[0]:
        each.remove()  # it would share its scale, and so its few ticks, with the panels
    top = figure.add_subplot(axes[1, 0].get_gridspec()[0, :])
    for each in (top, *axes[1:].flat[len(draw) :]):
        each.set_axis_off()
    used = list(axes[1:].flat[: len(draw)])
    for panel in used[-columns:]:
        panel.tick_params(labelbottom=True)
    handles: dict[str, Artist] = {}
    for panel, (label, drawn) in zip(used, draw.items(), strict=True):
        drawn(panel)
        panel.set_title(style.wrapped(label, 36), fontsize=11)
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    for panel in used[-columns:]:
        panel.set_xlabel(axis_labels[0])
    for panel in used[::columns]:
        panel.set_ylabel(axis_labels[1])
    shown = top.legend(
        handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(-0.06, 0.0), ncols=legend[1], fontsize=10
    )
    shown.set_in_layout(False)  # the panels keep their width
    return figure
