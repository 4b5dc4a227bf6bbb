"""Signals and a time limit end a run after a step that all processes agree on."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from credit_jax.io.activity import answered, description, log_line
from credit_jax.parallel.processes.coordinator import coordinator, num_processes, of_all
from credit_jax.parallel.processes.watch import RESUME, end_all

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
TIME_LIMIT = "--stop-after"
_REASONS = (*(number.name for number in SIGNALS), TIME_LIMIT)


class StopRequests:
    """Catches the first signal; a second one ends the process as usual."""

    def __init__(
        self,
        stop_at: float | None = None,
        *,
        promise: str = "the run is saved and ends after the update in progress",
    ) -> None:
        """Sets the limit by `time.monotonic`, and what the answer to a signal says."""
        # Without work to save the first signal ends the process, which may compile for
        # minutes.
        self.has_work = True
        self._stop_at = stop_at
        self._promise = promise
        self._answered = ExitStack()
        self._caught: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
            self._answered.enter_context(answered(self._answer))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore_handlers()
        self._answered.close()

    def _answer(self, name: str) -> str:
        if not self.has_work:
            line = f"{name}: the run ends at once, with nothing to save yet"
            end_all(RESUME, line)
            log_line(line)
            os._exit(RESUME)
        doing = f"; now {text}" if (text := description()) else ""
        return f"{name}: {self._promise}{doing}. A second signal ends it at once."

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._caught = signal.Signals(number).name
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    @property
    def caught(self) -> str | None:
        """Name of the signal caught in this process, `TIME_LIMIT`, or None."""
        if self._caught is None and self._stop_at is not None:
            return TIME_LIMIT if time.monotonic() >= self._stop_at else None
        return self._caught

    def of_any_process(self) -> str | None:
        """`caught` of any process of the run; all call it at the same place."""
        requests = of_all("stop requests", self.caught or "")
        return next((reason for reason in _REASONS if reason in requests), None)


# The numbers of steps that two processes have started differ by at most two: a process
# starts a step only after the last but one has ended, and all processes take part in
# every step.
_LEAD = 4
_NUMBERS = itertools.count()


@dataclass
class Agreement:
    """Makes all processes carry out a request of any of them before the same step."""

    # Number of this agreement, the same in all processes.
    number: int = field(default_factory=lambda: next(_NUMBERS))
    # Number of processes of the run.
    num_processes: int = field(default_factory=num_processes)
    connect: Callable[[], Any] = coordinator  # returns the key-value store
    # The first process with a request announces a step that no process has started;
    # every process looks for it before each step. No collective is needed, and devices
    # do not wait.
    _round: int = 0
    _agreed: tuple[int, str] | None = None

    def reached(self, step: int, request: str | None) -> str | None:
        """Returns the request to carry out before the next step, or None."""
        # Every process calls this before each step, with the number of started ones.
        if self.num_processes == 1:
            return request
        if self._agreed is None:
            self._agreed = self._look()
        if self._agreed is None and request is not None:
            # Where another process was first, its request is the one.
            self._try("ALREADY_EXISTS", "key_value_set", f"{step + _LEAD}:{request}")
            self._agreed = self._look()
        if self._agreed is None or step < self._agreed[0]:
            return None
        (_, subject), self._agreed = self._agreed, None
        self._round += 1
        return subject

    def _look(self) -> tuple[int, str] | None:
        announced = self._try("NOT_FOUND", "key_value_try_get")
        if announced is None:
            return None
        step, _, subject = announced.partition(":")
        return int(step), subject

    def _try(self, expected: str, method: str, *values: str) -> Any:
        """Calls a method of the store for the key; None after the expected error."""
        key = f"credit_jax/agreement {self.number}/{self._round}"
        try:
            return getattr(self.connect(), method)(key, *values)
        except Exception as error:
            if expected not in str(error):
                raise
            return None
