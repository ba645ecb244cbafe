"""A tensor-parallel run whose other process ended says so, be it told first by a lost connection or by torchrun."""

import os
import signal
import socket

import pytest

from specdec import ranks, signals
from specdec.errors import EnvironmentFault, Interrupted, Terminated

GONE = r"^Rank 1 of the 2 processes of this tensor-parallel run ended"


@pytest.fixture
def group(monkeypatch):
    """`group(ended)` has this process and another one meet, of which `ended()` says whether it is gone."""

    def meet(ended):
        here = socket.gethostname()
        monkeypatch.setattr(ranks, "_group", ranks._Group(None, [(here, os.getpid()), (here, -1)]))
        monkeypatch.setattr(ranks, "_ended", lambda process: ended())
        monkeypatch.setattr(ranks, "_NOTICED_S", 0.0)
        monkeypatch.setattr(ranks, "count", lambda: 2)

    return meet


def told() -> None:
    signal.raise_signal(signal.SIGTERM)


def failing(message: str = "gloo: connection reset by peer") -> None:
    raise RuntimeError(message)


@pytest.mark.parametrize(
    ("ended", "act", "error", "match"),
    [
        (lambda: True, told, EnvironmentFault, GONE),  # by torchrun, because another rank ended
        (lambda: told() or True, failing, EnvironmentFault, GONE),  # and a signal while that end is looked for
        (lambda: False, told, Terminated, "SIGTERM"),  # for this process
        (lambda: True, lambda: signal.raise_signal(signal.SIGINT), Interrupted, "SIGINT"),  # which ended the other, too
        (lambda: False, lambda: failing("shapes differ"), RuntimeError, "^shapes differ$"),  # of this process
    ],
)
def test_an_end_of_another_rank_is_told_as_that_and_all_else_stays_what_it_is(group, ended, act, error, match):
    group(ended)
    with signals.interruptible():
        with pytest.raises(error, match=match), signals.unswallowed(), ranks.together():
            act()
        if error in (Terminated, RuntimeError):  # the next signal is one, too
            assert signal.getsignal(signal.SIGTERM) is signals._interrupt
