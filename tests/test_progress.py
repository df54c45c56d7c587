"""A bar on a terminal with rich, else lines, and not too many of them."""

import io
import sys
import time
from contextlib import closing

import pytest

from gnvpro.progress import Display, duration


def pretend_terminal(monkeypatch):  # no fixture: pytest replaces sys.stderr between set-up and test
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "150")


def test_lines_are_rare_and_tell_the_time_left(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with closing(Display("dcr", "samples", seconds_between=10)) as display:
        display.start(100, done=40)
        for done in range(41, 61):
            clock[0] += 1.5
            display.update(done)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "dcr: 47 of 100 samples, 1 min 20 s left"  # 53 samples at 1.5 s each, to the even second
    assert len(said) == 2


def test_the_final_line_is_never_left_out(capsys):
    display = Display("dcr", "samples", seconds_between=1e9)
    display.start(2)
    display.update(1)
    display.update(2)
    assert capsys.readouterr().err == "dcr: 2 of 2 samples, 0 s left\n"


def test_a_terminal_shows_a_bar_with_text_and_notes_as_they_are(capsys, monkeypatch):
    pytest.importorskip("rich", reason="the bar needs rich")
    pretend_terminal(monkeypatch)
    with closing(Display("dcr", "samples")) as display:
        display.start(100, done=40)
        display.update(60, "some text", "a line")
        display.note("in [brackets]")
    said = capsys.readouterr().err
    for part in ("dcr", "60/100 samples", "some text", "in [brackets]"):
        assert part in said
    assert "a line" not in said
    assert not display.bar.live.is_started


def test_lines_are_printed_on_a_terminal_without_rich_or_to_another_stream(monkeypatch):
    pytest.importorskip("rich", reason="the bar needs rich")
    pretend_terminal(monkeypatch)
    assert Display("dcr", "samples", io.StringIO()).bar is None
    assert Display("dcr", "samples").bar is not None
    monkeypatch.setitem(sys.modules, "rich", None)
    assert Display("dcr", "samples").bar is None


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "7 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text
