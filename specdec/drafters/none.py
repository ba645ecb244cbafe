"""No drafter: plain autoregressive decoding through the same loop, the baseline of every run."""

from typing import TYPE_CHECKING, Literal

from specdec.config import typed
from specdec.drafters.base import Drafter, drafters
from specdec.records import EMPTY, Draft
from specdec.structures.base import Structure

if TYPE_CHECKING:
    from specdec.targets.base import Target


@typed
class NoneConfig:
    name: Literal["none"]


@drafters.register("none")
class NoDrafter(Drafter):
    """Every draft is empty; one token a round; costs nothing."""

    fills = frozenset({"chain", "rows", "tree", "dynamic"})
    replay = "copying"

    def __init__(self, config: NoneConfig, target: "Target") -> None:
        self._empty = EMPTY

    def draft(self, structure: Structure) -> Draft:
        return self._empty
