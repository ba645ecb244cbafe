"""Medusa heads (2401.10774) as FasterDecoding published them. Their number is that of the tensors: configs say 2, files
have 5.
"""

import re

from specdec.published.checkpoint_files import CheckpointFiles
from specdec.published.recognise import CheckpointFormat, formats

_BLOCK = re.compile(r"\d+\.\d+\.linear\.(weight|bias)")
_OUTPUT = re.compile(r"\d+\.\d+\.weight")


@formats.register("Medusa-1")
class Medusa1(CheckpointFormat):
    """Heads with an output layer each, apart from their target."""

    drafters = ("medusa", "blockwise")

    def matches(self, files: CheckpointFiles) -> bool:
        return any(map(_OUTPUT.fullmatch, files.tensors)) and any(map(_BLOCK.fullmatch, files.tensors))
