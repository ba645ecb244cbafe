"""The records of a decoding round by round (`traces.json`): the run writes them, pages and the terminal show them."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

from specdec.errors import UsageError


class Kind(StrEnum):
    """The fate of a token in its round. The last three are the target's own, at most one of them in a round."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"  # nothing was drafted


@dataclass(frozen=True)
class Piece:
    """One token of a round."""

    kind: Kind
    token: int
    text: str  # what the token adds to the text; never empty
    # strategy, rank: which strategy proposed a draft token, and as which of its choices (0 is the first); "" and 0 for
    # the target's own tokens
    strategy: str = ""
    rank: int = 0


@dataclass(frozen=True)
class TraceLine:
    """One round."""

    number: int
    so_far: str  # the end of the output that was committed before the round
    pieces: tuple[Piece, ...]
    offered: int
    accepted: int
    # draft tokens that were neither accepted nor rejected: behind the rejection, behind a cut, or on other branches
    unused: int
    end: str  # "end_token", "limit" or "": what ended the text in this round
    disturbed: bool = False  # other work on the machine disturbed the round


@dataclass(frozen=True)
class Trace:
    """One generation that is shown round by round, and what its header says."""

    prompt: str
    drafter: str
    structure: str  # the draft asked for in every round, in words: "gamma 4", "10 rows of 10"
    lossless: bool  # what the verifier declares
    prompt_end: str  # the end of the prompt, as text
    tokens: int  # number of tokens written
    lines: tuple[TraceLine, ...]

    @property
    def summary(self) -> str:
        """The header in words, unescaped."""
        rounds = len(self.lines)
        rate = f"{self.tokens / rounds:.2f}" if rounds else "no"
        counts = f"{rate} tokens per round ({self.tokens} tokens, {rounds} rounds)"
        return f"drafter {self.drafter} · {self.structure} · {counts} · {'' if self.lossless else 'not '}lossless"


_TRACES = TypeAdapter(list[Trace])


def read_traces(path: Path) -> list[Trace]:
    """Read `traces.json`. UsageError if it holds something else."""
    try:
        return _TRACES.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError, OSError):  # pydantic's and json's own are ValueErrors
        raise UsageError(f"{path} does not hold the traces of a run: copy it again, or run again.") from None
