"""Structures that a number of draft nodes can be made into, and the one that yields most on a half of the prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specdec.prompts import first_turn
from specdec.replay.rank_accuracy import RankCounts
from specdec.structures import structures
from specdec.structures.tree import given
from specdec.text.streams import Stream
from specdec.theory.trees import best_tree

SHAPES = ("chain", "rows", "tree")
EITHER = -1
"""In place of a half of the prompts: the candidate was made without looking at any."""


@dataclass(frozen=True)
class Candidate:
    """A chain, rows or a tree of a budget.

    Attributes:
        shape: the structure's name.
        variant: its size in words.
        half: the half of the prompts that it was made for, or EITHER.
        structure: its config values.
    """

    shape: str
    budget: int
    variant: str
    half: int
    structure: Mapping[str, Any]

    @property
    def keys(self) -> dict[str, Any]:
        """The columns that tell it from other candidates of a drafter."""
        return {"shape": self.shape, "budget": self.budget, "variant": self.variant, "made_on": self.half}


def plain_shapes(budgets: Sequence[int]) -> list[Candidate]:
    """Return the chain and all rows of each budget."""
    found = []
    for n in budgets:
        found.append(Candidate("chain", n, f"gamma {n}", EITHER, {"name": "chain", "gamma": n}))
        for k in range(2, n + 1):  # one row is the chain
            if n % k == 0:
                values = {"name": "rows", "k": k, "w": n // k, "budget": n + k}
                found.append(Candidate("rows", n, f"{k} x {n // k}", EITHER, values))
    return found


def trees(counts: RankCounts, half: int, budgets: Sequence[int], depths: Sequence[int]) -> list[Candidate]:
    """Return for each budget the best trees within each depth, by what was counted on a half of the prompts."""
    found = []
    for n in budgets:
        seen: set[int] = set()
        for deepest in sorted({min(each, n) for each in depths}):
            values = given(best_tree(counts.accuracy(deepest), n, deepest).parents)
            depth = structures.build(values).gamma
            if depth not in seen:  # a limit that does not bind changes nothing
                seen.add(depth)
                found.append(Candidate("tree", n, f"depth {depth}", half, values))
    return found


def halves_of(streams: Sequence[Stream]) -> dict[str, int]:
    """Return the half of each conversation by its id: 0 and 1 alternate, which also splits neighbouring categories."""
    prompts = dict.fromkeys(first_turn(stream.id) for stream in streams)
    return {prompt: number % 2 for number, prompt in enumerate(prompts)}


def choose(table: pd.DataFrame, candidates: Mapping[str, Sequence[Candidate]]) -> pd.DataFrame:
    """Return the table `choices`: of equally good candidates the one with fewer rows, or less depth."""
    keys = ["drafter", "shape", "budget"]
    structure = {
        (label, *each.keys.values()): json.dumps(dict(each.structure))
        for label, several in candidates.items()
        for each in several
    }
    chosen = []
    for half in (0, 1):
        mine = table[(table["half"] == half) & table["made_on"].isin([EITHER, half])]
        totals = mine.groupby([*keys, "variant", "made_on"], sort=False)[["tokens", "rounds"]].sum()
        value = totals["tokens"] / totals["rounds"]
        for best in value.groupby(keys, sort=False).idxmax():
            row = dict(zip([*keys, "variant", "made_on"], best, strict=True))
            chosen.append({**row, "half": half, "structure": structure[best]})
    return pd.DataFrame(chosen)
