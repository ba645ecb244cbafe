"""Sets finished studies of one kind side by side, and makes the chapters of a report of studies."""

from collections.abc import Callable, Sequence

from ..pages.html import Chapter
from ..sections import FinishedStudy, Section
from .ablation_sets import ablation_sets
from .grid_sets import grid_sets
from .labels import Labelled, labelled
from .topk_sets import topk_sets

BESIDE: dict[str, Callable[[Sequence[Labelled]], list[Section]]] = {
    "topk": topk_sets,
    "ablation": ablation_sets,
    "grid": grid_sets,
}


def side_by_side(studies: Sequence[FinishedStudy]) -> list[Section]:
    """Return what the studies of each kind say together, where there are several of a kind that can be compared."""
    sections: list[Section] = []
    for kind, compare in BESIDE.items():
        same = [study for study in studies if study.kind == kind]
        if len(same) > 1:
            sections += compare(labelled(same))
    return sections


def study_chapters(studies: Sequence[FinishedStudy]) -> list[Chapter]:
    """Make one chapter for each study, after one that sets those of a kind side by side. UsageError: see
    `FinishedStudy.findings`.
    """
    chapters = [
        Chapter(f"Study {each.kind}: {each.about.title}, {each.about.prompts}", each.findings().sections)
        for each in studies
    ]
    together = side_by_side(studies)
    return [Chapter("Studies side by side", tuple(together)), *chapters] if together else chapters
