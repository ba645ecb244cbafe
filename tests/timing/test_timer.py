"""A timer makes as many passes as asked for or as there is time for, and keeps the times of each case apart."""

from specdec import ranks
from specdec.clock import SimulatedClock
from specdec.disturbance import Watch
from specdec.sampling import generator_for
from specdec.timing.timer import Timer


def timer(calls, *limits):
    clock = SimulatedClock()
    return clock, Timer(clock, calls, generator_for(0, "timer", "cost"), *limits)


def test_warm_up_passes_are_made_and_not_counted():
    clock, made = timer(3)
    for number in made.passes(warm_up=2):
        made.time("a", lambda number=number: clock.advance(number + 1))
        made.time("b", lambda: clock.advance(0.5))
    assert made.done == 5 and made.seconds("a") == [3, 4, 5] and made.seconds("b") == [0.5] * 3
    assert made.seconds("never") == []


def test_what_was_not_done_is_forgotten():
    clock, made = timer(2)
    for number in made.passes():
        assert made.time("a", lambda number=number: clock.advance(1) or number) == number
        if number == 0:
            made.forget("a")
    assert made.seconds("a") == [1]


class Busy(Watch):
    """Says of each time in turn whether it was disturbed, then of none."""

    def __init__(self, *hits):
        self.hits = list(hits)

    def waited(self, before, after):
        return 9.0 * (self.hits.pop(0) if self.hits else 0)


def test_what_was_disturbed_is_timed_again_and_counts_as_the_others():
    clock, made = timer(3)
    clock.watch = Busy(0, 1, 0, 0)
    for number in made.passes():
        made.time("a", lambda number=number: clock.advance(5.0 if number == 1 else 1.0 + number))
    assert made.done == 4 and made.seconds("a") == [1.0, 3.0, 3.0, 4.0] and made.disturbed == 0


def test_a_machine_that_stays_busy_is_timed_no_more_than_twice_as_often():
    clock, made = timer(3)
    clock.watch = Busy(*[1] * 100)
    for _ in made.passes(warm_up=1):
        made.time("a", lambda: clock.advance(1.0))
    assert made.done == 7 and made.seconds("a") == [1.0] * 6 and made.disturbed == 1


def test_a_trial_is_made_again_while_it_is_disturbed():
    tries = iter(range(9))
    assert Busy(1, 1, 0).undisturbed(lambda: next(tries)) == 2
    assert Busy(*[1] * 9).undisturbed(lambda: next(tries)) == 7


def test_another_rank_makes_the_passes_of_rank_0_whatever_disturbs_it(monkeypatch):
    said = []
    monkeypatch.setattr(ranks, "given", lambda value: said.append(value) or value)
    clock, first = timer(3)
    clock.watch = Busy(1, 1)
    for _ in first.passes():
        first.time("a", lambda: clock.advance(1.0))
    assert said == [True] * 5 + [False]
    monkeypatch.setattr(ranks, "given", lambda value: said.pop(0))
    clock, other = timer(3, 2.0)
    for _ in other.passes():
        other.time("a", lambda: clock.advance(1.0))
    assert other.done == first.done == 5
