"""Summary of a campaign: counts and durations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class CampaignTimes:
    """Durations of the parts of a campaign, in seconds.

    Attributes:
        unroll: steps on the devices, except the first one, which includes compilation;
            also those before the start dates of perturbed members.
        read: initial states and forcing, concurrent with the others.
        write: copies to the host, and files.
        total: time from the end of the first step to the end.
    """

    unroll: float
    read: float
    write: float
    total: float

    @property
    def idle(self) -> float:
        """Fraction of the total in which the devices were idle."""
        return max(0.0, 1 - self.unroll / self.total) if self.total > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """Result of a campaign.

    Attributes:
        num_forecasts: number of forecasts made.
        num_done: number of forecasts that were already done.
        missing: values that were not finite, by variable.
        times: see `CampaignTimes`.
        stopped: reason why it ended before the last group; None if it is complete.
    """

    num_forecasts: int
    num_done: int
    missing: dict[str, int]
    times: CampaignTimes
    stopped: str | None = None


@dataclass
class DeviceClock:
    """Adds up the time that the devices were busy; steps run one after the other.

    Attributes:
        busy: seconds, without the first step.
        awaited: seconds for which copies to the host waited for the devices.
    """

    busy: float = 0.0
    awaited: float = 0.0
    _first_end: float = 0.0
    _last_end: float = 0.0

    def wait(self, dispatched: float, result: Any) -> None:
        """Waits for the result of a step dispatched at a time of `perf_counter`."""
        jax.block_until_ready(result)
        now = time.perf_counter()
        if self._first_end:
            self.busy += now - max(dispatched, self._last_end)
        self._first_end, self._last_end = self._first_end or now, now

    def ready(self, result: Any) -> Any:
        """Returns a result when it is computed, and counts the time until then."""
        start = time.perf_counter()
        jax.block_until_ready(result)
        self.awaited += time.perf_counter() - start
        return result

    @contextmanager
    def spin_up(self) -> Iterator[None]:
        """Counts the time of steps before the start dates, unless they are the first.

        No other steps may run meanwhile, but the last ones that were started before.
        """
        start = time.perf_counter()
        yield
        if self._first_end:
            start = max(start, self._last_end)
            self._last_end = time.perf_counter()
            self.busy += self._last_end - start

    @property
    def total(self) -> float:
        """Seconds since the end of the first step; 0 before it."""
        return time.perf_counter() - self._first_end if self._first_end else 0.0
