"""What is being done, and when the last line was printed."""

import threading

import pytest

from credit_jax.io import activity as module
from credit_jax.io.activity import (
    activity,
    description,
    line_written,
    live_display,
    seconds_without_line,
    silence,
)


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    line_written()
    return now


def test_activities_are_named_from_the_outermost_on(clock):
    assert description() == ""
    with activity("epoch 1/3"):
        clock[0] += 100
        with activity("compiling step, XLA"):
            clock[0] += 75
            assert description() == "epoch 1/3: compiling step, XLA (1 min 15 s)"
        assert description() == "epoch 1/3 (2 min 55 s)"
    assert description() == ""


def test_an_activity_ends_with_an_error():
    with pytest.raises(ValueError, match="no"), activity("reading"):
        raise ValueError("no")
    assert description() == ""


def test_other_threads_are_not_followed():
    seen = []

    def work():
        with activity("writing in the background"):
            seen.append(description())

    with activity("training"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == ["training (0 s)"]


def test_lines_are_missed_unless_another_process_or_a_bar_shows_them(clock):
    clock[0] += 40
    assert seconds_without_line() == 40
    with live_display():
        clock[0] += 40
        assert seconds_without_line() == 0
    assert seconds_without_line() == 0
    clock[0] += 5
    assert seconds_without_line() == 5
    silence()
    assert seconds_without_line() == 0
    silence(is_silent=False)
    line_written()
    assert seconds_without_line() == 0
