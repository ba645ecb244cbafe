"""Studies: questions that take many configurations at once, answered in one run; one file each."""

from specdec.studies.base import Bench, Study, studies

__all__ = ["Bench", "Study", "studies"]
