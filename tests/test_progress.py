"""What a long command says while it works, on a terminal and off it."""

import io
import threading

import pytest
from fixtures.small_parts import composed
from rich.console import Console

from specdec import progress
from specdec.models.load import model_path
from specdec.plan.plan import plan
from specdec.session.parts import loading


@pytest.fixture
def screen(monkeypatch):
    """`screen(terminal)` makes the console that is written to; its text is that of its file."""

    def make(terminal: bool) -> io.StringIO:
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=120)
        monkeypatch.setattr(progress, "get_console", lambda: console)
        monkeypatch.setattr(progress, "_stage_told", "")
        return text

    return make


@pytest.fixture
def clock(monkeypatch):
    """`clock(seconds)` lets time pass for all stages, and speaks as their thread would then."""
    time = [0.0]
    monkeypatch.setattr(progress, "now", lambda: time[0])
    monkeypatch.setattr(progress, "_spoke", 0.0)

    def later(seconds: float) -> None:
        time[0] += seconds
        progress.speak()

    return later


def test_off_a_terminal_a_stage_is_a_line_now_and_then(screen, clock):
    """Steps of two seconds each, below what is announced: a line after 30 s, and none before."""
    text = screen(False)
    with progress.stage("decoding", total=1000, told=False) as under_way:
        for _ in range(9):
            clock(2)
            under_way.advance(100)
        clock(12)
    assert text.getvalue() == "decoding: 900 of 1,000, 30 s, about 2 s left\n"


def test_the_innermost_stage_speaks_and_only_after_silence(screen, clock):
    text = screen(False)
    with progress.stage("Load"), progress.stage("probing", told=False):
        clock(29)
        progress.tell("found")
        clock(2)
        clock(28)
    clock(60)
    assert text.getvalue() == "Load ...\nfound\nprobing: 59 s\n"


def test_a_stage_within_one_that_has_steps_says_how_far_that_is(screen, clock):
    text = screen(False)
    with progress.stage("Prepare", total=57, told=False) as around, progress.stage("Compile", told=False):
        around.done, around.figures = 11, "eagle, tree"
        clock(31)
    assert text.getvalue() == "Compile: 31 s; Prepare: 11 of 57, 31 s; eagle, tree\n"


@pytest.mark.parametrize(("terminal", "line"), [(False, "Compile ..."), (True, "Compile, ")])
def test_the_same_stage_once_more_says_nothing(screen, terminal, line):
    """The calls of every drafter of a study follow one another; another stage in between makes it news."""
    text = screen(terminal)
    for name in ("Compile", "Compile", "Load", "Compile"):
        with progress.stage(name, told=name == "Compile"):
            pass
    assert text.getvalue().count(line) == 1
    for name in ("Decode", "Compile"):
        with progress.stage(name):
            pass
    assert text.getvalue().count(line) == 2


def test_a_stage_that_is_silent_itself_is_watched_by_a_thread(screen, monkeypatch):
    spoken = threading.Event()
    screen(False)
    monkeypatch.setattr(progress, "LINE_S", 0.01)
    monkeypatch.setattr(progress, "_SURE_S", 0.01)
    monkeypatch.setattr(progress, "speak", spoken.set)
    with progress.stage("Compile"):
        assert spoken.wait(60)
    assert not any(thread.name == "specdec-progress" for thread in threading.enumerate())


def test_a_long_stage_says_so_before_it_begins(screen, clock):
    text = screen(False)
    with progress.stage(
        "Compile", "2 calls", 2, expected=90, shorter="target.compile=false starts at once"
    ) as under_way:
        assert text.getvalue() == "Compile: 2 calls, about 90 s; target.compile=false starts at once ...\n"
        clock(40)
        under_way.advance()
        for _ in range(2):
            clock(30)
    assert text.getvalue().splitlines()[1:] == [
        "Compile: 0 of 2, 40 s, about 50 s left",
        "Compile: 1 of 2, 70 s, about 10 s left",
        "Compile: 1 of 2, 1.7 min",
    ]


def test_steps_show_that_a_stage_is_long_without_the_first_one(screen, clock):
    """The first step compiles for 20 s, the others take 50 s: of 2,001 in all, that is 28 hours."""
    text = screen(False)
    with progress.stage("medusa", total=2001, told=False, shorter="data.steps=N takes N steps") as under_way:
        for seconds in (20, 50, 50):
            progress.tell("") if seconds == 50 else None
            clock(seconds)
            under_way.advance()
    assert "medusa: 2 of 2,001, about 28 h left; data.steps=N takes N steps ..." in text.getvalue()
    assert text.getvalue().count("data.steps") == 1


def test_a_short_stage_announces_nothing(screen, clock):
    text = screen(False)
    with progress.stage("decoding", total=9, told=False, shorter="prompts.limit=N") as under_way:
        for _ in range(9):
            clock(3)
            under_way.advance()
    assert text.getvalue() == ""


def test_steps_of_an_earlier_sitting_took_no_time_of_this_one(screen, clock):
    screen(False)
    with progress.stage("hidden states", total=1000) as under_way:
        under_way.go_on_from(900)
        clock(5)
        under_way.advance(10)
        clock(5)
        under_way.advance(10)
        assert under_way.left == 40


def test_a_stage_that_fails_is_over(screen, clock):
    text = screen(False)
    with pytest.raises(ValueError), progress.stage("Load"):
        raise ValueError
    clock(60)
    assert text.getvalue() == "Load ...\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (99, "99 s"), (142, "2.4 min"), (5900, "98 min"), (6000, "1.7 h"), (97200, "27 h")],
)
def test_durations_have_two_digits(seconds, words):
    assert progress.duration(seconds) == words


def test_a_terminal_shows_a_bar(screen):
    text = screen(True)
    with progress.stage("decoding", total=2) as under_way:
        under_way.advance()
    assert "decoding" in text.getvalue() and "━" in text.getvalue() and "1 of 2, 0 s" in text.getvalue()


def test_a_stage_on_a_terminal_leaves_its_seconds(screen):
    text = screen(True)
    with progress.stage("Calibrate", "single [calls]"), progress.stage("inside"):
        pass
    assert "Calibrate: single [calls], 0.0 s" in text.getvalue() and "inside" in text.getvalue()


def test_a_stage_leaves_the_terminal_to_the_bars_of_others(screen):
    text = screen(True)
    with progress.stage("Load", "org/model", bar=False):
        assert text.getvalue() == "Load: org/model ...\n"


@pytest.mark.parametrize(("target", "said"), [("pocket", "pocket"), ("smollm2", "smollm2")])
def test_models_are_named_as_they_are_loaded(screen, monkeypatch, target, said):
    """Beside another target, `drafter.model=pocket` means the heads that come along for that one."""
    pocket = model_path("pocket")
    monkeypatch.setattr("specdec.models.model_files.installed_smollm2", lambda: pocket)  # it need not be installed
    text = screen(False)
    with loading(plan(composed("+drafter=grounded", f"target.model={target}"))):
        assert text.getvalue() == f"Load: {said} ...\n"
