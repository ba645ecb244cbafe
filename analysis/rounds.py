"""The rounds table, one line per round: its columns and order, its sums by prompt, and its rounds by arm.

A generation is one output: the lines that share GENERATION, in the order of `round`. An arm is a method at a gamma; one
of a long run is in memory at a time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd

from specdec.config import BASELINE, NULL, PLAIN

K = TypeVar("K")
Arm = tuple[str, int]  # method and gamma
GENERATION = ["cell", "method", "gamma", "repeat", "prompt"]
WORK = ["prompt", "repeat"]
TEXT = ["cell", "method", "gamma", *WORK]  # columns that tell texts apart
NAMES = dict.fromkeys(("cell", "method", "prompt"), "str")  # those of them that hold text, not counts
SECONDS = ("draft_s", "verify_s", "accept_s", "commit_s", "round_s")  # the last is at least the sum of the others
RESTORE = "restore_s"  # the part of commit_s that brings back a target's state; only where its layers keep one
COLUMNS = (
    *GENERATION,
    "category",
    "round",  # from 0 within the generation
    "context",  # tokens in context when the round starts, the root included
    "offered_nodes",
    "offered",  # greatest depth offered; 0 without a proposal
    "accepted",  # accepted draft tokens that count
    "committed",
    "rejected",  # True if a rejection was observed
    "truncation",  # "", "end_token" or "limit"
    "tokens_left",  # tokens committed in this round and all later ones
    "source",
    "rank",
    "beta",  # list of floats, one per tested position; may be empty
    *SECONDS,
)
COUNTED = tuple(name for name in COLUMNS if name not in ("context", "source", "rank", "beta"))  # what statistics read


def check_columns(names: Collection[str]) -> None:
    """Raise ValueError for columns that a rounds table lacks."""
    missing = [column for column in COUNTED if column not in names]
    if missing:
        raise ValueError(f"the rounds table lacks the columns {', '.join(missing)}")


def check_rounds(rounds: pd.DataFrame) -> None:
    """Raise ValueError, naming the first wrong line, for missing columns or lines that contradict themselves."""
    check_columns(rounds.columns)
    observed = rounds["rejected"].astype(bool)
    faults = {
        "accepts more tokens than were offered": rounds["accepted"] > rounds["offered"],
        "has a rejection although every offered token was accepted": observed
        & (rounds["accepted"] >= rounds["offered"]),
        "commits more tokens than are left": rounds["committed"] > rounds["tokens_left"],
        "offers more than its gamma": rounds["offered"] > rounds["gamma"],
    }
    for fault, wrong in faults.items():
        if wrong.any():
            first = rounds.loc[wrong.idxmax(), [*GENERATION, "round"]]
            raise ValueError(f"round {first['round']} of prompt {first['prompt']!r} (gamma {first['gamma']}) {fault}")


def check_once(rounds: pd.DataFrame) -> None:
    """Raise ValueError if a round is there twice: somebody joined tables of several gammas, or of several runs."""
    twice = rounds.duplicated([*GENERATION, "round"])
    if twice.any():
        row = rounds[twice].iloc[0]
        raise ValueError(
            f"round {row['round']} of prompt {row['prompt']!r} stands twice at gamma {row['gamma']}, so rounds of "
            f"several gammas or runs are mixed in the cell {row['cell']!r}: give every gamma its own value in the "
            "column gamma, and every run its own file"
        )


def drafted(table: pd.DataFrame) -> pd.DataFrame:
    """Keep the lines with a drafter, of rounds or of generations: no plain decoding."""
    return table[~table["method"].isin(PLAIN).to_numpy()]


def numbered(table: pd.DataFrame, columns: Sequence[str] = GENERATION) -> np.ndarray:
    """Return a number [R] for each line, equal where these columns are and ordered as they are."""
    number, size = np.zeros(len(table), dtype=np.int64), 1
    for column in columns:
        values = table[column].astype("category").cat  # codes in the order of the values
        count = max(1, len(values.categories))
        size *= count
        number *= count
        number += values.codes.to_numpy()
    return number.astype(np.int32) if size < 1 << 31 else number


def in_order(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sort by generation, then by round."""
    columns = [*GENERATION, "round"]
    narrow = all(isinstance(kind, pd.CategoricalDtype) or kind.kind == "i" for kind in rounds[columns].dtypes)
    if narrow and not (np.diff(numbered(rounds, columns)) < 0).any():
        return rounds  # as `read_arms` gives them
    return rounds.sort_values(columns, kind="stable", ignore_index=True)


def distinct_generations(rounds: pd.DataFrame) -> pd.DataFrame:
    """Leave out the repeats of a prompt whose rounds all equal those of an earlier repeat: they tell more about time
    but nothing about acceptance, and counted they would make every interval too narrow.
    """
    ordered = in_order(rounds)
    if ordered["repeat"].nunique() < 2:
        return ordered
    outcomes = ordered[["offered", "accepted", "rejected"]].to_numpy(dtype=np.int64)
    places = ordered.groupby(GENERATION, sort=True).indices
    texts = pd.DataFrame(list(places), columns=GENERATION).drop(columns="repeat")
    again = texts.assign(outcome=[outcomes[own].tobytes() for own in places.values()]).duplicated()
    kept = [own for own, copy in zip(places.values(), again, strict=True) if not copy]
    return ordered.iloc[np.sort(np.concatenate(kept))].reset_index(drop=True)


def prompt_sums(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of each prompt (index), repeats pooled: rounds, tokens (committed), accepted, rejected, tested
    (accepted and rejected), offered (depth), nodes, proposals (rounds with an offer), and the seconds of each verb;
    lost_s and restore_s where they are known.
    """
    codes, prompts = pd.factorize(rounds["prompt"], sort=True)

    def total(values: pd.Series | None = None) -> np.ndarray:
        return np.bincount(codes, weights=None if values is None else values, minlength=len(prompts)).astype(float)

    # A column after the other: together they would take several times the memory of the rounds.
    sums = {name: total(rounds[name]) for name in ("accepted", "offered", *SECONDS, "rejected")}
    sums |= {name: total(rounds[name]) for name in ("lost_s", RESTORE) if name in rounds}
    counts = {"rounds": total(), "tokens": total(rounds["committed"]), "tested": sums["accepted"] + sums["rejected"]}
    last = {"nodes": total(rounds["offered_nodes"]), "proposals": total(rounds["offered"] > 0)}
    return pd.DataFrame({**sums, **counts, **last}, index=pd.Index(prompts.astype("str"), name="prompt"))


def prompt_categories(rounds: pd.DataFrame) -> pd.Series:
    """Return the category of each prompt (index)."""
    first = rounds[["prompt", "category"]].drop_duplicates("prompt").astype("str")
    return first.set_index("prompt")["category"].sort_index()


def counts_by_prompt(rounds: pd.DataFrame, values: np.ndarray, size: int) -> pd.DataFrame:
    """Return how many rounds of each prompt (index) have each of the values 0 to `size` - 1 (columns)."""
    codes, prompts = pd.factorize(rounds["prompt"], sort=True)
    counts = np.bincount(codes * size + values, minlength=len(prompts) * size).reshape(len(prompts), size)
    return pd.DataFrame(counts, index=pd.Index(prompts.astype("str"), name="prompt"))


class Lazy(Mapping[K, pd.DataFrame]):
    """Tables that are made each time they are asked for."""

    def __init__(self, makers: Mapping[K, Callable[[], pd.DataFrame]]) -> None:
        self._makers = makers

    def __getitem__(self, key: K) -> pd.DataFrame:
        return self._makers[key]()

    def __iter__(self) -> Iterator[K]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Arms(Lazy[Arm]):
    """The rounds of each arm, in the order of methods and gammas; and `texts`, a line for each text that was written:
    cell, method, gamma, prompt, repeat, tokens, rounds.
    """

    def __init__(self, makers: Mapping[Arm, Callable[[], pd.DataFrame]], texts: pd.DataFrame) -> None:
        super().__init__(makers)
        self.texts = texts

    @classmethod
    def of(cls, rounds: pd.DataFrame) -> "Arms":
        """Take apart a table that is in memory."""
        texts = rounds.groupby(TEXT, sort=False, observed=True)["committed"]
        parts = rounds.groupby(["method", "gamma"], sort=True, observed=True)
        arms = {(str(method), int(gamma)): arm for (method, gamma), arm in parts}
        return cls(
            {key: partial(arms.__getitem__, key) for key in arms},
            texts.agg(tokens="sum", rounds="size").reset_index().astype(NAMES),
        )

    def shared(self) -> "Arms":
        """Keep the (prompt, repeat) pairs that every arm has done, as an interrupted run has decoded some prompts with
        some methods only. A null control leaves out none unless only the baseline is beside it. ValueError for no pair.
        """
        needed = {arm for arm in self if arm[0] != NULL} if any(method not in PLAIN for method, _ in self) else {*self}
        texts = self.texts.drop_duplicates(TEXT[1:])
        texts = texts[[arm in needed for arm in zip(texts["method"], texts["gamma"], strict=True)]]
        done = texts.groupby(WORK, sort=False).size()
        pairs = done.index[done == len(needed)]
        if pairs.empty:
            raise ValueError("the baseline and the speculative rounds have no prompt in common")
        if len(pairs) == len(done) == len(self.texts.drop_duplicates(WORK)):
            return self

        def within(make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
            rounds = make()
            return rounds[pd.MultiIndex.from_frame(rounds[WORK].astype({"prompt": "str"})).isin(pairs)]

        makers = {key: partial(within, self._makers[key]) for key in self}
        return Arms(makers, self.texts[pd.MultiIndex.from_frame(self.texts[WORK]).isin(pairs)])

    def of_methods(self, methods: Sequence[str]) -> "Arms":
        """Keep the arms of these methods."""
        makers = {key: partial(self.__getitem__, key) for key in self if key[0] in methods}
        return Arms(makers, self.texts[self.texts["method"].isin(list(methods))])

    def plain(self, method: str = BASELINE) -> pd.DataFrame:
        """Return the rounds of the baseline, or of the original: no line where it has not decoded."""
        keys = [key for key in self if key[0] == method]
        return self._joined(keys) if keys else next(iter(self.values())).iloc[:0]

    def by_gamma(self) -> Mapping[int, pd.DataFrame]:
        """Return the rounds with a drafter at each gamma, the smallest first."""
        keys = [key for key in self if key[0] not in PLAIN]
        gammas = sorted({gamma for _, gamma in keys})
        return Lazy({gamma: partial(self._joined, [key for key in keys if key[1] == gamma]) for gamma in gammas})

    def _joined(self, keys: Sequence[Arm]) -> pd.DataFrame:
        return self[keys[0]] if len(keys) == 1 else pd.concat([self[key] for key in keys])
