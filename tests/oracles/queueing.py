"""A server under load (theory.md 7.4): its step, its capacity, when it is stable, and waiting times of simple queues.

Floats or arrays in, floats or arrays out; ValueError for arguments outside their range.
"""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, nonnegative, positive


def saturation(batch: ArrayLike, tokens_per_round: ArrayLike, step_s: ArrayLike) -> Values:
    """Return the tokens per second of a server whose slots are always full and that prefills nothing: B tau / t.

    Args:
        batch: sequences in a step, B.
        tokens_per_round: expected tokens that a sequence commits in a step, tau; 1 without drafts.
        step_s: seconds of a step, t(B, gamma): draft, call on B (gamma + 1) tokens, and the rest.
    """
    b, tau = count(batch, "batch", minimum=1), positive(tokens_per_round, "tokens_per_round")
    return (b * tau / positive(step_s, "step_s"))[()]


def capacity(batch: ArrayLike, rounds: ArrayLike, step_s: ArrayLike, prefill_s: ArrayLike) -> Values:
    """Return the requests per second that a server with always full slots finishes: 1 / (prefill + rounds x t / B).

    A request takes the server for its own prefill, which stops all others, and for its share of each step.

    Args:
        rounds: mean rounds of a request, about its output tokens over tokens per round.
        prefill_s: mean seconds of the prefill of a request.
    """
    share = positive(rounds, "rounds") * positive(step_s, "step_s") / count(batch, "batch", minimum=1)
    return (1 / (nonnegative(prefill_s, "prefill_s") + share))[()]


def utilisation(rate: ArrayLike, most: ArrayLike) -> Values:
    """Return rho = rate / capacity. The queue has a steady state where it is below 1; from 1 on it grows for ever."""
    return (nonnegative(rate, "rate") / positive(most, "most"))[()]


def mean_wait(rate: ArrayLike, mean_s: ArrayLike, second_moment: ArrayLike) -> Values:
    """Return the mean seconds before service in an M/G/1 queue: rate E[S^2] / (2 (1 - rho)) (Pollaczek, Khinchine).

    E[S^2] is S^2 for constant service (M/D/1) and 2 S^2 for exponential service (M/M/1). Infinity from rho = 1 on.

    Args:
        rate: Poisson arrivals per second.
        mean_s, second_moment: E[S] and E[S^2] of the service time.
    """
    arrivals, second = nonnegative(rate, "rate"), nonnegative(second_moment, "second_moment")
    rho = arrivals * positive(mean_s, "mean_s")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rho < 1, arrivals * second / (2 * (1 - rho)), np.inf)[()]


def shared_processor_s(service_s: ArrayLike, rate: ArrayLike, mean_s: ArrayLike) -> Values:
    """Return the mean seconds under processor sharing of a job that needs `service_s` alone: s / (1 - rho).

    The limit of a server with many slots whose step takes as long as it has sequences; infinity from rho = 1 on.
    """
    rho = nonnegative(rate, "rate") * positive(mean_s, "mean_s")
    with np.errstate(divide="ignore"):
        return np.where(rho < 1, nonnegative(service_s, "service_s") / np.where(rho < 1, 1 - rho, 1), np.inf)[()]
