"""What a command is doing at the moment, as one line of its log.

Code that may take long names its work by `activity`; a `heartbeat.Heartbeat` prints the
description when nothing else has been printed for a while.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class _Log:
    """State of the log of this process.

    Attributes:
        works: (text, `time.monotonic` at its beginning) of what is being done,
            outermost first.
        written_at: time at which the last line was printed.
        is_silent: whether another process of the run prints.
        num_bars: live displays on a terminal, which show the activity themselves.
    """

    works: list[tuple[str, float]] = field(default_factory=list)
    written_at: float = field(default_factory=time.monotonic)
    is_silent: bool = False
    num_bars: int = 0


_log = _Log()


@contextmanager
def activity(text: str) -> Iterator[None]:
    """Names what the main thread does in the block; other threads are not followed.

    Args:
        text: such as "reading batch 3", for a line that continues those around it.
    """
    if not in_main_thread():
        yield
        return
    entry = text, time.monotonic()
    _log.works.append(entry)
    try:
        yield
    finally:
        # Blocks of generators may end in another order.
        if entry in _log.works:
            _log.works.remove(entry)


def in_main_thread() -> bool:
    """Whether the caller runs in the main thread."""
    return threading.current_thread() is threading.main_thread()


def description() -> str:
    """Returns what is being done, and for how long; "" if nothing was named.

    >>> with activity("epoch 1/3"), activity("reading batch 1"):
    ...     description()
    'epoch 1/3: reading batch 1 (0 s)'
    """
    works = [*_log.works]
    if not works:
        return ""
    seconds = duration_text(time.monotonic() - works[-1][1])
    return f"{': '.join(text for text, _ in works)} ({seconds})"


def duration_text(seconds: float) -> str:
    """Formats a duration in whole seconds.

    >>> duration_text(42.4), duration_text(135), duration_text(7260)
    ('42 s', '2 min 15 s', '2 h 1 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def line_written() -> None:
    """Notes that a line was printed, so that no heartbeat follows soon."""
    _log.written_at = time.monotonic()


def seconds_without_line() -> float:
    """Seconds since the last line; 0 where lines are not wanted."""
    if _log.is_silent or _log.num_bars:
        return 0.0
    return time.monotonic() - _log.written_at


def silence(*, is_silent: bool = True) -> None:
    """Sets whether this process leaves the log to another one of the run."""
    _log.is_silent = is_silent


def is_silent() -> bool:
    """Whether another process of the run writes the log."""
    return _log.is_silent


@contextmanager
def live_display() -> Iterator[None]:
    """Wraps a live display on a terminal, which lines would garble."""
    _log.num_bars += 1
    try:
        yield
    finally:
        _log.num_bars -= 1
        line_written()


def log_line(text: str) -> None:
    """Prints a line about the progress on stderr, as stdout may be a document."""
    print(text, file=sys.stderr, flush=True)
    line_written()
