"""The contract of a study, what several studies share, and how one is run."""

from specdec.studies.base.contract import Bench, Study, studies

__all__ = ["Bench", "Study", "studies"]
