"""SIGTERM, SIGINT and SIGUSR1 end a run after a step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequests:
    """Catches the first signal; a second one ends the process as usual."""

    def __init__(self) -> None:
        self._caught: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore_handlers()

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
        """Name of the signal caught in this process, or None."""
        return self._caught

    def of_any_process(self) -> str | None:
        """Name of the signal caught in this or another process of the run, or None.

        A collective: all processes of a run must call it at the same time.
        """
        if jax.process_count() == 1:
            return self._caught
        from jax.experimental import multihost_utils

        caught = np.asarray(
            SIGNALS.index(signal.Signals[self._caught]) + 1 if self._caught else 0
        )
        found = int(np.max(multihost_utils.process_allgather(caught)))
        return SIGNALS[found - 1].name if found else None
