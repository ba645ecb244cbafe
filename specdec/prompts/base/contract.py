"""The contract of a prompt source, and the prompts that are made of it. Knows no tokenizer: sources give text."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specdec.config import AtLeastOne, Named, typed
from specdec.registry import Registry

Counts = dict[str, dict[str, int]]  # reason -> category -> count


@typed
class SetConfig(Named):
    """The keys that every prompt set has."""

    limit: AtLeastOne | None  # number of usable prompts; null takes all
    balance: bool  # with a limit: true takes the categories in turn, false the first prompts of the source
    chat: Literal["auto", "never"]  # auto applies the tokenizer's chat template, if it has one


@dataclass(frozen=True)
class Entry:
    """A prompt before it is rendered: the user's turns as text, or literal tokens."""

    id: str
    category: str
    turns: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    reference: str | None = None  # the answer to the first turn, where the source has one


@dataclass(frozen=True)
class SourceContent:
    """The entries of a source, in its own order; `absent` counts what this machine lacks."""

    entries: Sequence[Entry]
    provenance: Mapping[str, str]
    absent: Counts = field(default_factory=dict)


class PromptSource(ABC):
    """One kind of prompt set: a `SetConfig` made by `typed`, or a class that is constructed as `cls(config)` by one."""

    def check(self) -> None:
        """Refuse a file that is missing or empty, or whose first record does not fit the keys, without reading on.
        Raises UsageError: as `read`, which finds all other faults.
        """

    @abstractmethod
    def read(self) -> SourceContent:
        """Return all entries, the same at every call. UsageError: a missing or damaged file, a wrong key."""


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `turns` are the turns of the conversation that `text` renders: user, assistant, user, ..."""

    id: str  # stable and unique within the set, e.g. stdlib_code/textwrap/TextWrapper._split
    category: str
    text: str  # "" for literal tokens
    tokens: tuple[int, ...]
    follow_ups: tuple[str, ...] = ()  # later turns, built on the baseline's answer to the one before
    turns: tuple[str, ...] = ()
    reference: str | None = None  # the right answer, to judge outputs by


_TURN = re.compile(r"/turn\d+$")


def turn_id(first: str, number: int) -> str:
    """Return the id of a later turn of a conversation."""
    return f"{first}/turn{number}"


def first_turn(id: str) -> str:
    """Return the id of the first turn of a conversation; intervals over prompts resample whole conversations."""
    return _TURN.sub("", id)


prompts: Registry[PromptSource] = Registry("prompts", "prompts")
