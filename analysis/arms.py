"""The rounds of a run by arm, a method at a gamma; of a long run one arm is in memory at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import pandas as pd

from specdec.config import BASELINE, NULL, PLAIN

K = TypeVar("K")
Arm = tuple[str, int]  # method and gamma
WORK = ["prompt", "repeat"]
TEXT = ["cell", "method", "gamma", *WORK]  # columns that tell texts apart
NAMES = dict.fromkeys(("cell", "method", "prompt"), "str")  # those of them that hold text, not counts


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
        some methods only. A null control leaves out none unless nothing but the baseline is beside it. ValueError for
        no pair.
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
        keys: dict[int, list[Arm]] = {}
        for method, gamma in self:
            if method not in PLAIN:
                keys.setdefault(gamma, []).append((method, gamma))
        return Lazy({gamma: partial(self._joined, keys[gamma]) for gamma in sorted(keys)})

    def _joined(self, keys: Sequence[Arm]) -> pd.DataFrame:
        return self[keys[0]] if len(keys) == 1 else pd.concat([self[key] for key in keys])
