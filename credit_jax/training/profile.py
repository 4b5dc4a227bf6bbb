"""A trace of some updates for xprof: `--profile 100:105`."""

from __future__ import annotations

import re
from pathlib import Path

import jax


class Profile:
    """Traces the updates first to last of this command, counted from 1."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        """Names the folder of the traces, and the updates, both included."""
        self._folder, self._first, self._last = folder, first, last
        self._running = self._began = False

    def before(self, update: int) -> bool:
        """Whether to finish the pending updates and `switch` before a next update."""
        return update == self._first or (self._running and update == self._last + 1)

    def switch(self, update: int) -> None:
        """Begins or ends the trace, to be called while nothing runs on the devices."""
        if update == self._first and not self._running:
            jax.profiler.start_trace(str(self._folder))
            self._running = self._began = True
        elif self._running:
            self.close()

    @property
    def note(self) -> str | None:
        """A line for the user if no update was traced."""
        if self._began:
            return None
        return (
            f"note: --profile {self._first}:{self._last} traced nothing, as this "
            f"command ended before its update {self._first}"
        )

    def close(self) -> None:
        """Ends the trace if it is running."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False


def parse_updates(text: str) -> tuple[int, int]:
    """First and last update of "FIRST:LAST".

    >>> parse_updates("100:105")
    (100, 105)
    """
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise ValueError(
        f"--profile must be FIRST:LAST, updates counted from 1, such as 100:105, got "
        f"{text!r}"
    )
