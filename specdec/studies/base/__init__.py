"""The contract of a study, what several studies share, and how one is run."""

from specdec.studies.base.contract import Ascending, Bench, Positive, Study, halves_of, studies

__all__ = ["Ascending", "Bench", "Positive", "Study", "halves_of", "studies"]
