"""Tests of drawn tokens against known laws that may be stopped at any time: bets whose wealth is an e-value.

A bet on a statistic f multiplies its wealth by e^(theta f(x)) / sum_y p(y) e^(theta f(y)), which is 1 in the mean where
x is drawn from p, whatever came before. So wealth, and every fixed average of wealths, is a nonnegative martingale from
1, and exceeds 1 / chance ever with at most that chance (Ville; Ramdas et al. 2210.01948, sections 2 and 3). Numbers
only: nothing here knows a server or a model.
"""

from math import log, sqrt

import numpy as np

STATISTICS = ("likeliest", "second", "rare", "copied", "end", "likelihood")
"""Statistics that are bet on: five say whether the token is the likeliest one, the second likeliest, one that is at
least a hundred times less likely than the likeliest, the one that followed the last token before, and an end token;
the last is its log-likelihood, on which a bet is one on p at another temperature."""
THETAS = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0])
"""Sizes of the bets."""
_RARE = 0.01  # of the largest probability
_QUANTILE = 1.2816  # of the normal law, at the power of 0.9 that is stated


def log_bets(p: np.ndarray, drawn: np.ndarray, copied: np.ndarray, end: int, shift: float = 0.0) -> np.ndarray:
    """Return the logarithms [N, K, T] by which each token multiplies the wealth of each statistic K and size T.

    Args:
        p: [N, V] laws in float64.
        drawn: [N] tokens.
        copied: [N] the tokens that copying would give, -1 where there is none.
        end: the end token, -1 without one.
        shift: by which the logarithm of the odds of any set of tokens may differ from those of p under a law that is
            still right; such laws multiply no wealth by more than 1 in the mean either.
    """
    rows = np.arange(len(p))
    chance = p[rows, drawn]
    top = p.argmax(1)
    others = p.copy()
    others[rows, top] = 0.0
    rare = p < _RARE * p[rows, top, None]
    marked = np.stack([top, others.argmax(1), copied, np.full(len(p), end)], 1)  # [N, 4] tokens
    share = np.where(marked >= 0, p[rows[:, None], marked], 0.0)
    share = np.insert(share, 2, (p * rare).sum(1), axis=1)[..., None]  # [N, 5, 1]
    hit = np.insert(marked == drawn[:, None], 2, rare[rows, drawn], axis=1)[..., None]
    odds = np.exp(shift * np.sign(THETAS))  # the worst that the shift allows for each bet
    share = share * odds / (1 - share + share * odds)
    bets = np.empty((len(p), len(STATISTICS), len(THETAS)))
    bets[:, :-1] = hit * THETAS - np.log1p(share * np.expm1(THETAS))
    with np.errstate(divide="ignore"):
        logarithm = np.where(p > 0, np.log(p), 0.0)
    tilted = np.where(p > 0, logarithm, -np.inf)[:, None] + THETAS[:, None] * logarithm[:, None]  # [N, T, V]
    bets[:, -1] = THETAS * logarithm[rows, drawn, None] - _log_sum(tilted, (2,)) - shift
    bets[chance == 0] = np.inf
    return bets


def log_evidence(wealth: np.ndarray) -> np.ndarray:
    """Return the logarithm [...] of the e-value of all bets, by their summed logarithms [..., G, K, T] at each place G:
    a quarter bets at every place of a text, a quarter at the first alone, and half at all places from some place on.
    """
    from_on = tails(wealth)
    parts = (log_mean(from_on[..., 0, :, :], 2), log_mean(wealth[..., 0, :, :], 2), log_mean(from_on[..., 1:, :, :], 3))
    return _log_sum(np.stack(parts, -1) + np.log([0.25, 0.25, 0.5]), (-1,))


def tails(wealth: np.ndarray) -> np.ndarray:
    """Return the wealth [..., G, K, T] of bets at all places from each on, given that at each place."""
    return wealth[..., ::-1, :, :].cumsum(-3)[..., ::-1, :, :]


def log_mean(wealth: np.ndarray, axes: int) -> np.ndarray:
    """Return the logarithm of the mean of wealths over their last axes, which is an e-value again."""
    last = tuple(range(-axes, 0))
    return _log_sum(wealth, last) - log(np.prod([wealth.shape[axis] for axis in last]))


def _log_sum(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the logarithm of the sum of exponentials, a third of the time of scipy's for few values."""
    top = values.max(axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total: np.ndarray = np.log(np.exp(values - top).sum(axes)) + top.squeeze(axes)
    return total


def detectable(draws: int, false_alarm: float) -> float:
    """Return the shift of probability between halves of a law, at every place or at the first, that is found in 9 cases
    of 10 before so many tokens are drawn where it is: the wealth of the best bet grows by 2 shift^2 in the mean, with
    deviation 2 shift, and has to pay for all other bets.
    """
    wanted = log(4 * len(STATISTICS) * len(THETAS) / false_alarm)
    return min(1.0, (_QUANTILE + sqrt(_QUANTILE**2 + 2 * wanted)) / 2 / sqrt(max(draws, 1)))
