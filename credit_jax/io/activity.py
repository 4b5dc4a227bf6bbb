"""What a command is doing at the moment, as a line of its log, and answers to signals.

Code that may take long names its work by `activity`. A `Heartbeat` is a thread that
prints the description when nothing else has been printed for a while, and answers
signals at once: Python runs signal handlers in the main thread alone, between two of
its instructions, so that while XLA compiles, for minutes, nobody would answer Ctrl-C.
The thread reads the wakeup file descriptor, to which the signal is written as soon as
it arrives.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any


@dataclass
class _ActivityLog:
    """State of the log of this process."""

    # (text, `time.monotonic` at its beginning) of what is being done, outermost first.
    works: list[tuple[str, float]] = field(default_factory=list)
    # Time at which the last line was printed.
    written_at: float = field(default_factory=time.monotonic)
    is_silent: bool = False  # whether another process of the run prints
    num_bars: int = 0  # live displays on a terminal, which show the activity themselves
    changed_at: float = field(default_factory=time.monotonic)  # begin or end of a work
    # (seconds, function of the description) of `hang_limit`.
    limit: tuple[float, Callable[[str], None]] | None = None


_log = _ActivityLog()


@contextmanager
def activity(text: str) -> Iterator[None]:
    """Names what the main thread does in the block; other threads are not followed."""
    if not in_main_thread():
        yield
        return
    entry = text, time.monotonic()
    _log.changed_at = entry[1]
    _log.works.append(entry)
    try:
        yield
    finally:
        _log.changed_at = time.monotonic()
        # Blocks of generators may end in another order.
        if entry in _log.works:
            _log.works.remove(entry)


@contextmanager
def hang_limit(seconds: float, end: Callable[[str], None]) -> Iterator[None]:
    """Limits the time without the begin or the end of a work, within a `Heartbeat`."""
    # 0 is no limit; `end` gets the description of the work, in the heartbeat's thread.
    _log.limit, _log.changed_at = (seconds, end) if seconds else None, time.monotonic()
    try:
        yield
    finally:
        _log.limit = None


def in_main_thread() -> bool:
    """Whether the caller runs in the main thread."""
    return threading.current_thread() is threading.main_thread()


def description() -> str:
    """Returns what is being done, and for how long: "epoch 1/3: reading (0 s)"."""
    works = [*_log.works]
    if not works:
        return ""
    seconds = duration_text(time.monotonic() - works[-1][1])
    return f"{': '.join(text for text, _ in works)} ({seconds})"


def duration_text(seconds: float) -> str:
    """Formats a duration in whole seconds: "42 s", "2 min 15 s", "2 h 1 min"."""
    full = int(seconds)
    if full < 60:
        return f"{full} s"
    if full < 3600:
        return f"{full // 60} min {full % 60} s"
    return f"{full // 3600} h {full % 3600 // 60} min"


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
    # Who read stderr may be gone; signals are answered all the same.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
    line_written()


SECONDS = 30.0  # without a line of the log, after which the activity is printed
_LOOK = 0.5  # seconds between two looks at the clock
_OVER = b"\0"  # ends the thread; signals begin with 1
_GRACE = 5.0  # seconds for the main thread to take an interrupt


@dataclass
class _Claim:
    """A part of a command that ends in an orderly way after a signal."""

    answer: Callable[[str], str]  # name of the signal -> line to print
    is_used: bool = False  # whether a signal has arrived; the next one ends the process


_claims: list[_Claim] = []


@contextmanager
def answered(answer: Callable[[str], str]) -> Iterator[None]:
    """Declares that the block handles the first signal itself."""
    claim = _Claim(answer)  # is called in the thread of the heartbeat
    _claims.append(claim)
    try:
        yield
    finally:
        _claims.remove(claim)


class Heartbeat:
    """Prints what is being done when the log is quiet, and acknowledges signals."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_taken = threading.Event()
        self._previous: dict[int, Any] = {}
        self.has_answered = False

    def __enter__(self) -> Heartbeat:
        silence(is_silent=False)
        line_written()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # In a thread other than the main one signals are left alone.
        self._follows = in_main_thread()
        if self._follows:
            self._old_wakeup = signal.set_wakeup_fd(
                self._writer, warn_on_full_buffer=False
            )
            # Only signals with a handler in Python are written to the descriptor.
            for number, default, handler in (
                (signal.SIGINT, signal.default_int_handler, self._interrupt),
                # The thread ends the process, also while the main thread compiles.
                (signal.SIGTERM, signal.SIG_DFL, lambda *_: None),
            ):
                if signal.getsignal(number) is default:
                    self._previous[number] = signal.signal(number, handler)
        _active.append(self)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _active.remove(self)
        self._leave_signals()
        os.write(self._writer, _OVER)
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _leave_signals(self) -> None:
        if self._follows:
            signal.set_wakeup_fd(self._old_wakeup)
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._is_taken.set()
        signal.default_int_handler(number, frame)

    # ------------------------------------------------------------- the thread

    def _run(self) -> None:
        received = b""
        while not received.endswith(_OVER):
            ready, _, _ = select.select([self._reader], [], [], _LOOK)
            received = os.read(self._reader, 64) if ready else b""
            for number in received.removesuffix(_OVER):
                if number in (signal.SIGINT, signal.SIGTERM) or _claims:
                    self._answer(number)
            limit, end = _log.limit or (math.inf, log_line)
            if time.monotonic() - _log.changed_at > limit:
                end(description())
            if seconds_without_line() >= SECONDS:
                log_line(description() or f"{self._name} is running")

    def _answer(self, number: int) -> None:
        name = signal.Signals(number).name
        if _claims and not _claims[-1].is_used:
            _claims[-1].is_used = True
            log_line(_claims[-1].answer(name))
            return
        if number not in self._previous and not _claims:
            return  # the program around this command has a handler of its own
        self.has_answered = True
        if number == signal.SIGINT:
            log_line("interrupted")
            if self._is_taken.wait(_GRACE):
                return
        else:
            log_line(f"ended by {name}")
        # Ends this process by a signal, from any thread. `signal.signal` works in the
        # main thread alone, which does not answer.
        ctypes.CDLL(None).signal(number, None)
        os.kill(os.getpid(), number)


_active: list[Heartbeat] = []


def _forget() -> None:
    """Keeps a forked process from answering its signals through this one's pipe."""
    while _active:
        _active.pop()._leave_signals()
    _claims.clear()


os.register_at_fork(after_in_child=_forget)
