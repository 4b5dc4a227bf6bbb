"""SIGTERM, SIGINT, SIGUSR1 and a time limit end a run after a step, resumable."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

from credit_jax.io.activity import answered, description, log_line
from credit_jax.parallel.processes.coordinator import of_all
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.parallel.processes.watch import end_all

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
TIME_LIMIT = "--stop-after"
_REASONS = (*(number.name for number in SIGNALS), TIME_LIMIT)


class StopRequests:
    """Catches the first signal; a second one ends the process as usual.

    Attributes:
        has_work: whether there is something to save; if not, the first signal ends the
            process, which may compile for minutes.
    """

    def __init__(
        self,
        stop_at: float | None = None,
        *,
        promise: str = "the run is saved and ends after the update in progress",
    ) -> None:
        """Sets the time limit.

        Args:
            stop_at: time at which the run is to end, by `time.monotonic`; None for no
                limit.
            promise: what follows a signal, for the line that acknowledges it.
        """
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """`caught` of this or another process of the run.

        All processes of a run call it at the same place.
        """
        requests = of_all("stop requests", self.caught or "")
        return next((reason for reason in _REASONS if reason in requests), None)
