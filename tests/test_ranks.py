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


def test_a_signal_because_another_rank_ended_is_told_as_its_end(group):
    group(lambda: True)
    with pytest.raises(EnvironmentFault, match=GONE), signals.interruptible(), signals.unswallowed(), ranks.together():
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_while_the_end_of_another_rank_is_looked_for_changes_nothing(group):
    group(lambda: signal.raise_signal(signal.SIGTERM) or True)
    with pytest.raises(EnvironmentFault, match=GONE), signals.interruptible(), signals.unswallowed(), ranks.together():
        raise RuntimeError("gloo: connection reset by peer")


def test_a_signal_for_this_process_stays_one_and_so_does_the_next(group):
    group(lambda: False)
    with signals.interruptible():
        with pytest.raises(Terminated), signals.unswallowed(), ranks.together():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signals._interrupt


def test_a_keyboard_interrupt_stays_one_though_another_rank_ended_of_it_too(group):
    group(lambda: True)
    with pytest.raises(Interrupted, match="SIGINT"), signals.interruptible(), signals.unswallowed(), ranks.together():
        signal.raise_signal(signal.SIGINT)


def test_an_error_of_this_process_stays_one(group):
    group(lambda: False)
    with signals.interruptible():
        with pytest.raises(RuntimeError, match="^shapes differ$"), signals.unswallowed(), ranks.together():
            raise RuntimeError("shapes differ")
        assert signal.getsignal(signal.SIGTERM) is signals._interrupt
