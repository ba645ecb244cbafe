"""Test oracle: simulated rounds whose law of acceptance is known, for tests of estimators, tests and predictions.

Tables have the columns of the rounds table; times are zero and there is no baseline. A law gives `rounds` rounds per
prompt, none of them cut; with `tokens`, every text also ends after that many tokens, as a run's limit ends it, and the
round that meets the end is cut. Rounds offer gamma tokens.
"""

import numpy as np
import pandas as pd

METHOD = "simulated"


def iid(prompts: int, rounds: int, gamma: int, seed: int, alpha: float, tokens: int | None = None) -> pd.DataFrame:
    """Simulate the capped-geometric model, the null hypothesis of every test."""
    chance = np.full((prompts, 1, 1), alpha)
    return rounds_table(_accepted(chance, rounds, gamma, seed), gamma, tokens)


def heterogeneous(
    prompts: int, rounds: int, gamma: int, seed: int, beta: tuple[float, float], tokens: int | None = None
) -> pd.DataFrame:
    """Simulate prompts that each draw their own alpha from a beta law with these two parameters."""
    chance = first_alphas(prompts, seed, beta)[:, None, None]
    return rounds_table(_accepted(chance, rounds, gamma, seed), gamma, tokens)


def falling(
    prompts: int,
    rounds: int,
    gamma: int,
    seed: int,
    beta: tuple[float, float],
    decay: float,
    tokens: int | None = None,
) -> pd.DataFrame:
    """Simulate a feature drafter: depth k is accepted with chance alpha decay^(k-1), each prompt with its own alpha.

    The prompts' alphas, from a beta law, depend on the seed alone, so tables of several gammas are of the same prompts.
    """
    alphas = first_alphas(prompts, seed, beta)
    chance = alphas[:, None, None] * decay ** np.arange(gamma)
    return rounds_table(_accepted(chance, rounds, gamma, seed), gamma, tokens)


def first_alphas(prompts: int, seed: int, beta: tuple[float, float]) -> np.ndarray:
    """Return the prompts' alphas [P] of `falling`, at depth 1: one draft token at each position would measure them."""
    return np.random.default_rng([seed, 1]).beta(*beta, size=prompts)


def mixing(
    prompts: int, rounds: int, gamma: int, seed: int, m: float, rho: float, tokens: int | None = None
) -> pd.DataFrame:
    """Simulate rounds that each draw their own alpha from the beta law of mean m and correlation rho (0 < rho < 1)."""
    size = (1 - rho) / rho
    chance = np.random.default_rng([seed, 1]).beta(m * size, (1 - m) * size, size=(prompts, rounds, 1))
    return rounds_table(_accepted(chance, rounds, gamma, seed), gamma, tokens)


def markov(prompts: int, tokens: int, gamma: int, seed: int, a01: float, a11: float) -> pd.DataFrame:
    """Simulate greedy rounds along texts of `tokens` whose agreement is a two-state chain (see `laws.markov_law`).

    The texts depend on the seed alone, so tables of several gammas are of the same texts.
    """
    generator = np.random.default_rng([seed, 1])
    bits = np.empty((prompts, tokens), dtype=bool)
    state = generator.random(prompts) < a01 / (1 - a11 + a01)
    for position in range(tokens):
        bits[:, position] = state
        state = generator.random(prompts) < np.where(state, a11, a01)
    return along_texts(bits.astype(float), gamma, seed)


def along_texts(m: np.ndarray, gamma: int, seed: int) -> pd.DataFrame:
    """Simulate rounds of a drafter that is accepted with chance m [P, N] at each position of given texts.

    A position is tested anew by every round that reaches it. With m of zeros and ones nothing is left to chance.
    """
    generator = np.random.default_rng([seed, 2, gamma])
    prompts, size = m.shape
    padded = np.concatenate([m, np.ones((prompts, gamma))], axis=1)  # beyond the end the limit cuts, not a rejection
    position = np.zeros(prompts, dtype=int)
    accepted = np.zeros((prompts, size), dtype=int)
    for index in range(size):
        ahead = np.minimum(position, size)[:, None] + np.arange(gamma)
        passed = generator.random(ahead.shape) < np.take_along_axis(padded, ahead, axis=1)
        accepted[:, index] = np.cumprod(passed, axis=1).sum(axis=1)
        position += accepted[:, index] + 1
        if (position >= size).all():
            break
    return rounds_table(accepted, gamma, size)


def rounds_table(accepted: np.ndarray, gamma: int, tokens: int | None = None) -> pd.DataFrame:
    """Return the rounds table of accepted counts [P, R], cut after `tokens` tokens if given.

    As in a run, a draft is shortened to the tokens that may still follow it: with n tokens left it has n - 1 at most.
    """
    prompts, rounds = accepted.shape
    offered, cut = np.full(accepted.shape, gamma), np.zeros(accepted.shape, dtype=bool)
    if tokens is not None:
        before = np.concatenate([np.zeros((prompts, 1), dtype=int), np.cumsum(accepted + 1, axis=1)[:, :-1]], axis=1)
        offered = np.clip(tokens - before - 1, 0, gamma)
        accepted = np.minimum(accepted, offered)
        cut = before >= tokens
    committed = accepted + 1
    prompt, index = np.nonzero(~cut)
    s, d = accepted[prompt, index], offered[prompt, index]
    taken = committed[prompt, index]
    left = np.where(cut, 0, committed)[:, ::-1].cumsum(axis=1)[:, ::-1][prompt, index]
    names = np.array([f"p{number:05d}" for number in range(prompts)], dtype=object)
    zero = np.zeros(len(s))
    return pd.DataFrame(
        {
            "cell": "simulated",
            "method": METHOD,
            "gamma": gamma,
            "repeat": 0,
            "prompt": names[prompt],
            "category": "",
            "round": index,
            "context": 1 + np.cumsum(committed, axis=1)[prompt, index] - taken,
            "offered_nodes": d,
            "offered": d,
            "accepted": s,
            "committed": taken,
            "rejected": s < d,
            "truncation": "",
            "tokens_left": left,
            "source": "",
            "rank": 0,
            "beta": [[]] * len(s),
            **dict.fromkeys(("draft_s", "verify_s", "accept_s", "commit_s", "round_s"), zero),
        }
    )


def _accepted(chance: np.ndarray, rounds: int, gamma: int, seed: int) -> np.ndarray:
    """Return accepted counts [P, R]; `chance` broadcasts to [P, R, gamma]. Gammas draw independently."""
    generator = np.random.default_rng([seed, 2, gamma])
    passed = generator.random((len(chance), rounds, gamma)) < chance
    return np.cumprod(passed, axis=-1).sum(axis=-1)
