"""Builders of rounds and generations tables: small made-up outputs with every column of the real ones."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

DURATIONS = {"draft_s": 0.003, "verify_s": 0.0225, "accept_s": 0.0004, "commit_s": 0.0005, "round_s": 0.0274}

RoundsBuilder = Callable[..., pd.DataFrame]


def build_rounds(
    outputs: Mapping[str, Sequence[int]],
    gamma: int,
    method: str = "ngram",
    repeat: int = 0,
    censored: Mapping[str, Sequence[int]] | None = None,
    offered: Mapping[str, Sequence[int]] | None = None,
    category: str = "code",
    durations: Mapping[str, float] = DURATIONS,
) -> pd.DataFrame:
    """Rounds of one generation per prompt from accepted counts; `censored` counts end in a cut round each."""
    rows = []
    prompts = list(dict.fromkeys([*outputs, *(censored or {})]))
    for prompt in prompts:
        whole = list(outputs.get(prompt, []))
        cut = list((censored or {}).get(prompt, []))
        offers = (offered or {}).get(prompt, [gamma] * (len(whole) + len(cut)))
        for index, (accepted, offer) in enumerate(zip([*whole, *cut], offers, strict=True)):
            is_cut = index >= len(whole)
            rows.append(
                {
                    "cell": "cell",
                    "method": method,
                    "gamma": gamma,
                    "repeat": repeat,
                    "prompt": prompt,
                    "category": category,
                    "round": index,
                    "context": 10 + index,
                    "offered_nodes": offer,
                    "offered": offer,
                    "accepted": accepted,
                    "committed": accepted if is_cut else accepted + 1,
                    "rejected": not is_cut and accepted < offer,
                    "truncation": "limit" if is_cut else "",
                    "source": "",
                    "rank": 0,
                    "beta": [],
                    **durations,
                }
            )
    table = pd.DataFrame(rows)
    left = table[::-1].groupby("prompt")["committed"].cumsum()[::-1]
    return table.assign(tokens_left=left)


@pytest.fixture
def make_rounds() -> RoundsBuilder:
    return build_rounds


@pytest.fixture
def from_counts() -> RoundsBuilder:
    """Rounds of one prompt, shuffled, from the number of rounds with 0, 1, ... gamma accepted tokens."""

    def build(counts: Sequence[int], censored: Sequence[int] = ()) -> pd.DataFrame:
        accepted = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
        outputs = {"p": accepted.tolist()}
        return build_rounds(outputs, len(counts) - 1, censored={"p": censored})

    return build


@pytest.fixture
def d4() -> pd.DataFrame:
    """Data set D4 of THEORY 6: gamma 4, four prompts."""
    outputs = {
        "a": [4, 4, 3, 4, 0, 4, 4, 2],
        "b": [0, 1, 0, 0, 2, 0, 1, 0],
        "c": [4, 0, 4, 1, 4, 4, 0, 3],
        "d": [1, 1, 2, 0, 1, 0, 0, 4],
    }
    return build_rounds(outputs, 4)


@pytest.fixture
def simulate() -> RoundsBuilder:
    """Simulated rounds: every prompt has its own alpha, or one alpha per depth."""

    def build(alphas: np.ndarray, rounds: int, gamma: int, generator: np.random.Generator) -> pd.DataFrame:
        """`alphas` [P] per prompt, or [P, gamma] per prompt and depth."""
        chance = np.broadcast_to(np.reshape(alphas, (len(alphas), 1, -1)), (len(alphas), rounds, gamma))
        accepted = np.cumprod(generator.random(chance.shape) < chance, axis=-1).sum(axis=-1)
        return build_rounds({f"p{i:03}": row.tolist() for i, row in enumerate(accepted)}, gamma)

    return build


@pytest.fixture
def make_generations() -> RoundsBuilder:
    """The generations table that belongs to some rounds."""

    def build(rounds: pd.DataFrame, prefill_s: float = 0.01, flagged: Sequence[str] = ()) -> pd.DataFrame:
        keys = ["cell", "method", "gamma", "repeat", "prompt", "category"]
        table = rounds.groupby(keys, as_index=False).agg(
            tokens=("committed", "sum"), rounds=("round", "size"), decode_s=("round_s", "sum")
        )
        return table.assign(prefill_s=prefill_s, flagged=table["prompt"].isin(list(flagged)))

    return build
