"""The rounds table as analysis reads it: one row per round, its columns, its order and its sums per prompt.

A generation is one output: the rows that share GENERATION, in the order of `round`. Written by measurement;
nothing here knows how.
"""

import numpy as np
import pandas as pd

from specdec.config import BASELINE, ORIGINAL

GENERATION = ["cell", "method", "gamma", "repeat", "prompt"]
COLUMNS = (
    *GENERATION,
    "category",
    "round",  # from 0 within the generation
    "context",  # tokens in context when the round starts, the root included
    "offered_nodes",
    "offered",  # deepest depth offered, gamma_i; 0 without a proposal
    "accepted",  # s_i, accepted draft tokens that count
    "committed",
    "rejected",  # d_i, a rejection was observed
    "truncation",  # "", "end_token" or "limit"
    "tokens_left",  # n_i, tokens committed in this round and all later ones
    "source",
    "rank",
    "beta",  # list of floats, one per tested position; may be empty
    "draft_s",
    "verify_s",
    "accept_s",
    "commit_s",
    "round_s",  # seconds, at least the sum of the four
)


def check_rounds(rounds: pd.DataFrame) -> None:
    """ValueError, with the first offending row, for missing columns or rows that contradict themselves."""
    missing = [column for column in COLUMNS if column not in rounds.columns]
    if missing:
        raise ValueError(f"the rounds table lacks the columns {', '.join(missing)}")
    observed = rounds["rejected"].astype(bool)
    faults = {
        "accepts more tokens than were offered": rounds["accepted"] > rounds["offered"],
        "has a rejection although every offered token was accepted": observed
        & (rounds["accepted"] >= rounds["offered"]),
        "commits more tokens than are left": rounds["committed"] > rounds["tokens_left"],
        "offers more than its gamma": rounds["offered"] > rounds["gamma"],
    }
    for fault, rows in faults.items():
        if rows.any():
            row = rounds.loc[rows.idxmax(), [*GENERATION, "round"]]
            raise ValueError(f"round {row['round']} of prompt {row['prompt']!r} (gamma {row['gamma']}) {fault}")


def drafted(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with a drafter, of rounds or of generations: without plain decoding by the target or its original."""
    return table[~table["method"].isin([BASELINE, ORIGINAL])]


def in_order(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows sorted by generation, then by round."""
    return rounds.sort_values([*GENERATION, "round"], kind="stable", ignore_index=True)


def distinct_generations(rounds: pd.DataFrame) -> pd.DataFrame:
    """Without the repeats of a prompt whose rounds all equal an earlier repeat's.

    Repeats of a deterministic generation tell more about time but nothing more about acceptance; counted as
    new evidence they would make every interval too narrow and every test too eager.
    """
    outcome = ["offered", "accepted", "rejected"]
    seen: set[tuple[object, ...]] = set()
    kept: list[np.ndarray] = []
    ordered = in_order(rounds)
    outcomes = ordered[outcome].to_numpy(dtype=np.int64)
    for key, rows in ordered.groupby(GENERATION, sort=True).indices.items():
        cell, method, gamma, _, prompt = key
        signature = (cell, method, gamma, prompt, outcomes[rows].tobytes())
        if signature not in seen:
            seen.add(signature)
            kept.append(rows)
    return ordered.iloc[np.sort(np.concatenate(kept))].reset_index(drop=True) if kept else ordered


def shared_work(rounds: pd.DataFrame) -> pd.DataFrame:
    """Only the (prompt, repeat) pairs that every method and gamma has done: totals over the same work.

    An interrupted run has done a prompt with some methods only. ValueError if the arms share no pair.
    """
    arms = rounds[["method", "gamma"]].drop_duplicates()
    pairs = rounds[["method", "gamma", "prompt", "repeat"]].drop_duplicates()
    done_by = pairs.groupby(["prompt", "repeat"]).size()
    shared = done_by.index[done_by == len(arms)]
    if shared.empty:
        raise ValueError("the baseline and the speculative rounds have no prompt in common")
    return rounds[pd.MultiIndex.from_frame(rounds[["prompt", "repeat"]]).isin(shared)]


def prompt_sums(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sums per prompt (index), repeats pooled: counts, and seconds per verb.

    Columns: rounds, tokens (committed), accepted (K), rejected (R), tested (K + R), offered (depth), nodes,
    proposals (rounds with an offer), draft_s, verify_s, accept_s, commit_s, round_s.
    """
    columns = pd.DataFrame(
        {
            "prompt": rounds["prompt"],
            "rounds": 1,
            "tokens": rounds["committed"],
            "accepted": rounds["accepted"],
            "rejected": rounds["rejected"].astype(int),
            "tested": rounds["accepted"] + rounds["rejected"].astype(int),
            "offered": rounds["offered"],
            "nodes": rounds["offered_nodes"],
            "proposals": (rounds["offered"] > 0).astype(int),
        }
        | {name: rounds[name] for name in ("draft_s", "verify_s", "accept_s", "commit_s", "round_s")}
    )
    return columns.groupby("prompt", sort=True).sum().astype(float)
