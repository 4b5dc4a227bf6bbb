"""A polite end: SIGTERM or SIGINT asks the loop to finish its step and save."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """Notes signals while it is entered; a second one ends the process as usual."""

    def __init__(self) -> None:
        self._caught: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._caught = signal.Signals(number).name
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def pending(self) -> str | None:
        """The signal that was caught here or in another process of the job, or None.

        All processes of a job must ask at the same step: they agree on the answer.
        """
        if jax.process_count() == 1:
            return self._caught
        from jax.experimental import multihost_utils

        caught = np.asarray(
            SIGNALS.index(signal.Signals[self._caught]) + 1 if self._caught else 0
        )
        found = int(np.max(multihost_utils.process_allgather(caught)))
        return SIGNALS[found - 1].name if found else None
