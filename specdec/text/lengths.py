"""Accepted lengths as they are published, by position of a text or by round, for replay and import alike: what counts
as one, and first entries that stand for the prefill. Knows neither drafters nor tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.text.lines import BadLine

LENGTHS = "acc_len"  # the key of the lengths below a drafter's key: {"acc_eagle": {"acc_len": [...]}}
LARGEST = 2**31 - 1
CHANCE = 1e-3  # below it, ones at the start of every text are no chance


def whole(value: Any) -> int | None:
    """Return a whole number, 3.0 being 3; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value)


def whole_numbers(where: str, name: str, value: Any, least: int = 0, first: int | None = None) -> tuple[int, ...]:
    """Return a list of whole numbers of `least` or more, the first one of `first` or more. BadLine names the fault."""
    if not isinstance(value, list | tuple):
        raise BadLine(f"{where}: {name} must be a list of whole numbers, found a {type(value).__name__}.")
    if set(map(type, value)) == {int} and least <= min(value) and max(value) <= LARGEST:
        return tuple(value)  # nearly every list, at once
    found = []
    for index, item in enumerate(value):
        number, bound = whole(item), first if first is not None and index == 0 else least
        if number is None or not bound <= number <= LARGEST:
            raise BadLine(f"{where}: {name}[{index}] must be a whole number of {bound} or more, found {item!r:.40}.")
        found.append(number)
    return tuple(found)


def drafters_of(record: Any) -> list[str]:
    """Return the keys of a line below which lengths by position stand; none for a line of another form."""
    items = record.items() if isinstance(record, Mapping) else ()
    return [key for key, item in items if isinstance(item, Mapping) and LENGTHS in item]


def lengths_by_position(where: str, key: str, value: Any, tokens: int | None = None) -> tuple[int, ...]:
    """Return the lengths of one drafter by position, from below `acc_len`: the most tokens that a round which starts
    there commits, the target's own included; the first may be a placeholder, and so 0 (`FirstLengths`). Raises BadLine:
    other than whole numbers from 1 on, or not one for each of the text's `tokens`, where it is known.
    """
    name = f"{key}.{LENGTHS}"
    lengths = whole_numbers(where, name, value, least=1, first=0)
    if tokens is not None and len(lengths) != tokens:
        raise BadLine(
            f"{where}: {name} has {len(lengths):,} entries for {tokens:,} generated tokens: the lengths are of another "
            "run than the text, so they cannot be replayed along it (python -m specdec.report --import reads them "
            "without it)."
        )
    return lengths


@dataclass
class FirstLengths:
    """First entries of the lengths of many texts: are they placeholders for the token of the prefill?

    Sources that write the prefill as a round give it a 0, a 1 or the length of the prompt. A 0 is no length at all; so
    is a prompt's length that is beyond every other entry; that every text begins with a 1 is taken for a placeholder
    where it has a chance below `CHANCE`, by the share of ones among all other entries.
    """

    texts: int = 0
    zeros: int = 0
    ones: int = 0
    prompts: int = 0  # as long as the prompt, and beyond every other entry
    others: int = 0  # entries that are not the first
    other_ones: int = 0

    def add(self, lengths: Sequence[int], prompt_tokens: int | None = None) -> None:
        """Count one text. Lengths include the target's own token."""
        if not lengths:
            return
        first, rest = lengths[0], lengths[1:]
        self.texts += 1
        self.zeros += first == 0
        self.ones += first == 1
        self.prompts += prompt_tokens is not None and first == prompt_tokens > max(rest, default=LARGEST)
        self.others += len(rest)
        self.other_ones += sum(length == 1 for length in rest)

    @property
    def are_placeholders(self) -> bool:
        if not self.texts or self.zeros + self.ones + self.prompts < self.texts:
            return False
        if self.zeros or self.prompts:
            return True
        return self.others > 0 and (self.other_ones / self.others) ** self.texts < CHANCE

    def note(self, name: str) -> str:
        """Return what the first entries of the lengths of this name are, and how they are counted."""
        kinds = {"0": self.zeros, "1": self.ones, "the length of the prompt": self.prompts}
        values = " or ".join(kind for kind, number in kinds.items() if number)
        return (
            f"The first entry of {name} is {values} in every text: it stands for the token that the prefill gives, not "
            f"for a draft. Its round counts as one that accepted nothing, once for each of {self.texts:,} texts."
        )
