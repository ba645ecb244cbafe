"""The rounds table, one line per round: its columns and order, and its sums by prompt.

A generation is one output: the lines that share GENERATION, in the order of `round`.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from specdec.config import PLAIN

GENERATION = ["cell", "method", "gamma", "repeat", "prompt"]
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


def numbered(table: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Return a number [R] for each line, equal where these columns are and ordered as they are."""
    number, size = np.zeros(len(table), dtype=np.int64), 1
    for column in columns:
        values = table[column]
        if isinstance(values.dtype, pd.CategoricalDtype):
            codes, count = values.cat.codes.to_numpy(), len(values.cat.categories)
        else:
            codes, distinct = pd.factorize(values, sort=True)
            count = len(distinct)
        size *= max(1, count)
        number *= max(1, count)
        number += codes
    return number.astype(np.int32) if size < 1 << 31 else number


def in_order(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sort by generation, then by round."""
    columns = [*GENERATION, "round"]
    narrow = all(isinstance(kind, pd.CategoricalDtype) or kind.kind == "i" for kind in rounds[columns].dtypes)
    if narrow and not (np.diff(numbered(rounds, columns)) < 0).any():
        return rounds  # as `read_arms` gives them
    return rounds.sort_values(columns, kind="stable", ignore_index=True)


def distinct_generations(rounds: pd.DataFrame) -> pd.DataFrame:
    """Leave out the repeats of a prompt whose rounds all equal those of an earlier repeat.

    They tell more about time but nothing about acceptance: counted, they would make every interval too narrow.
    """
    if rounds["repeat"].nunique() < 2:
        return in_order(rounds)
    outcome = ["offered", "accepted", "rejected"]
    seen: set[tuple[object, ...]] = set()
    kept: list[np.ndarray] = []
    ordered = in_order(rounds)
    outcomes = ordered[outcome].to_numpy(dtype=np.int64)
    for key, places in ordered.groupby(GENERATION, sort=True).indices.items():
        cell, method, gamma, _, prompt = key
        signature = (cell, method, gamma, prompt, outcomes[places].tobytes())
        if signature not in seen:
            seen.add(signature)
            kept.append(places)
    return ordered.iloc[np.sort(np.concatenate(kept))].reset_index(drop=True) if kept else ordered


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
    first = ~rounds["prompt"].duplicated().to_numpy()
    categories = rounds.loc[first, ["prompt", "category"]].astype("str").set_index("prompt")["category"]
    return categories.sort_index()


def counts_by_prompt(rounds: pd.DataFrame, values: np.ndarray, size: int) -> pd.DataFrame:
    """Return how many rounds of each prompt (index) have each of the values 0 to `size` - 1 (columns)."""
    codes, prompts = pd.factorize(rounds["prompt"], sort=True)
    counts = np.bincount(codes * size + values, minlength=len(prompts) * size).reshape(len(prompts), size)
    return pd.DataFrame(counts, index=pd.Index(prompts.astype("str"), name="prompt"))
