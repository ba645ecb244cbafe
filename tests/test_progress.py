"""What a long command says while it works, on a terminal and off it."""

import io

import pytest
from rich.console import Console

from specdec import progress


@pytest.fixture
def screen(monkeypatch):
    """`screen(terminal)` makes the console that is written to; its text is that of its file."""

    def make(terminal: bool) -> io.StringIO:
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=60)
        monkeypatch.setattr(progress, "get_console", lambda: console)
        return text

    return make


def test_off_a_terminal_a_bar_is_a_line_now_and_then(screen, monkeypatch):
    """Ten steps of four seconds each: a line after the eighth one."""
    text, now = screen(False), [0.0]
    with progress.progress_bar() as shown:
        monkeypatch.setattr(shown, "get_time", lambda: now[0])
        shown._said = 0.0
        task = shown.add_task("decoding", total=1200)
        for step in range(10):
            now[0] += 4
            shown.update(task, completed=100) if step == 0 else shown.advance(task, 100)
    assert text.getvalue() == "decoding: 800 of 1,200, 32 s\n"


def test_a_short_step_says_nothing_off_a_terminal(screen):
    text = screen(False)
    with progress.progress_bar() as shown:
        shown.advance(shown.add_task("decoding", total=2))
    assert text.getvalue() == ""


def test_a_terminal_shows_the_bar_itself(screen):
    text = screen(True)
    with progress.progress_bar() as shown:
        shown.advance(shown.add_task("decoding", total=2))
    assert "decoding" in text.getvalue() and "1/2" in text.getvalue()


def test_a_stage_is_said_when_it_begins(screen):
    text = screen(False)
    with progress.stage("Load", "a/[b]"):
        assert text.getvalue() == "Load: a/[b] ...\n"
    assert text.getvalue().count("\n") == 1


def test_a_stage_on_a_terminal_leaves_its_seconds(screen):
    text = screen(True)
    with progress.stage("Calibrate", "single [calls]"), progress.progress_bar() as inner:
        inner.add_task("inside", total=1)
    assert "Calibrate: single [calls], 0.0 s" in text.getvalue() and "inside" in text.getvalue()


def test_a_stage_leaves_the_terminal_to_the_bars_of_others(screen):
    text = screen(True)
    with progress.stage("Load", "org/model", bar=False):
        assert text.getvalue() == "Load: org/model ...\n"
