"""Builders of rounds and generations tables: small made-up outputs with every column of the real ones."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.account.gap_account import Account
from specdec.analysis.intervals import Interval
from specdec.analysis.read.runs import Run, _in_folder

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


@pytest.fixture
def make_account() -> Callable[..., Account]:
    """An account with the given factors; an interval is 1% either way unless given, and without width around 1."""

    def build(
        factors: Mapping[str, float],
        intervals: Mapping[str, tuple[float, float]] | None = None,
        prompts: int = 20,
        time: Mapping[str, float] | None = None,
    ) -> Account:
        terms = dict(time or {"g": 0.15, "v": 1.125, "o": 0.095})
        values = {**factors, "speedup": prod(factors.values()), **terms}
        margin = {name: 0.01 * (value != 1) for name, value in values.items()}
        bounds = {name: ((1 - margin[name]) * value, (1 + margin[name]) * value) for name, value in values.items()}
        bounds |= intervals or {}
        return Account(
            alpha=0.8,
            gamma=5,
            prompts=prompts,
            speedup=values["speedup"],
            factors=dict(factors),
            tokens_per_round=3.3,
            omega_bar=factors["omega"],
            replay_tokens_per_round=None,
            t1_s=0.020,
            t_ar_s=0.021,
            time=terms,
            intervals={name: Interval(value, *bounds[name], 0.95, prompts) for name, value in values.items()},
        )

    return build


@pytest.fixture
def worked_example(make_account) -> Account:
    """THEORY 8: alpha .8, gamma 5, tau 3.30, D 3, T_v 22.5, T_o 1.9, t1 20, t_AR 21 ms."""
    g, v, o = 0.15, 1.125, 0.095
    factors = {
        "omega": 3.68928,
        "offered": 1.0,
        "dependence": 3.3 / 3.68928,
        "draft": 1 / (1 + g),
        "verify": (1 + g) / (v + g),
        "overhead": (v + g) / (v + g + o),
        "baseline": 1.05,
    }
    return make_account(factors)


@pytest.fixture
def stored_run(tmp_path: Path) -> Callable[..., Run]:
    """A run on disk: rounds, generations and an environment. `files` adds others, or leaves one out (None)."""

    def build(
        rounds: pd.DataFrame | None,
        drafter: str = "ngram",
        hardware: str = "EPYC",
        model: str = "1234abcd",
        prompts: str = "p",
        texts: Mapping[str, Sequence[int]] | None = None,
        files: Mapping[str, str | None] | None = None,
        **params: str,
    ) -> Run:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        environment = {"cpu": {"model": hardware}, "model": {"dtype": "float32", "sha256": model}}
        contents: dict[str, str | None] = {
            "environment.json": json.dumps(environment | {"prompts": {"sha256": prompts}})
        }
        if rounds is not None:
            rounds.to_parquet(folder / "rounds.parquet", index=False)
            rows = [
                {"method": "baseline", "prompt": prompt, "prompt_token_ids": list((texts or {}).get(prompt, [1]))}
                for prompt in sorted(set(rounds["prompt"]))
            ]
            contents["generations.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
        for name, content in (contents | dict(files or {})).items():
            if content is not None:
                (folder / name).write_text(content, encoding="utf-8")
        known = {"drafter.name": drafter, "target.model": "pocket", "structure.gamma": "2"}
        known |= {key.replace("__", "."): value for key, value in params.items()}
        return Run(folder.name, str(folder), "FINISHED", known, {}, {}, partial(_in_folder, folder))

    return build
