"""Asks before decoding whether a run's results will fit on the disk: they are lost with it when it is full."""

import shutil
from pathlib import Path

from specdec.config import MeasurementConfig
from specdec.errors import EnvironmentFault
from specdec.session.parts import Parts

_TOKEN_BYTES = 100  # of a written token: its round in two tables, its id, its text
_PAGE_BYTES = 32 << 20  # reports, figures, traces and the tracking database


def check_space(folder: Path, parts: Parts, measurement: MeasurementConfig) -> None:
    """Refuse a run whose results would not fit where its folder is.

    Raises:
        EnvironmentFault: less is free than the run may write.
    """
    texts = sum(1 + len(prompt.follow_ups) for prompt in parts.prompts.prompts) * measurement.repeats
    tokens = texts * (len(parts.plain) + len(parts.speculative)) * min(measurement.limit, parts.target.context_length)
    needed, free = tokens * _TOKEN_BYTES + _PAGE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentFault(
            f"The disk of {folder} has {free / 2**20:,.0f} MB free, and this run may write {needed / 2**20:,.0f} MB: "
            "free some space, write elsewhere with hydra.run.dir=FOLDER, or lower prompts.limit."
        )
