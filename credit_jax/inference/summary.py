"""What a campaign did, and how long it took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Times:
    """How long a campaign took, in seconds.

    Attributes:
        unroll: steps on the devices, the first one, which is compiled, left out.
        read: initial states and forcing, beside the other two.
        write: copies to the host, and files.
        total: from the end of the first step to the end.
    """

    unroll: float
    read: float
    write: float
    total: float

    @property
    def idle(self) -> float:
        """Share of the total in which the devices had nothing to do."""
        return max(0.0, 1 - self.unroll / self.total) if self.total > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """What a campaign did.

    Attributes:
        num_forecasts: that were made.
        num_done: that were there already.
        missing: values that were not finite, by variable.
        times: see `Times`.
        stopped: what ended it before the last group; None if it came to its end.
    """

    num_forecasts: int
    num_done: int
    missing: dict[str, int]
    times: Times
    stopped: str | None = None


@dataclass
class DeviceClock:
    """Adds up when the devices were busy; steps run one after the other.

    Attributes:
        busy: seconds, those of the first step left out.
    """

    busy: float = 0.0
    _first_end: float = 0.0
    _last_end: float = 0.0

    def wait(self, dispatched: float, result: Any) -> None:
        """Waits for a step that was started at some time."""
        jax.block_until_ready(result)
        now = time.perf_counter()
        if self._first_end:
            self.busy += now - max(dispatched, self._last_end)
        self._first_end, self._last_end = self._first_end or now, now

    @property
    def total(self) -> float:
        """Seconds since the end of the first step; 0 before it."""
        return time.perf_counter() - self._first_end if self._first_end else 0.0
