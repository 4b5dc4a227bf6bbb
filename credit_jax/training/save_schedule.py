"""Schedule of the saves within an epoch, and the time that saving takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class SaveSchedule:
    """Decides when to save, by the number of updates and by the clock.

    Attributes:
        every_steps: updates between saves; None for none.
        every_minutes: minutes between saves; 0 for none.
        leads: whether this process checks the clock; exactly one process of a run does.
        clock: monotonic time in seconds.
    """

    every_steps: int | None = None
    every_minutes: float = 0.0
    leads: bool = True
    clock: Callable[[], float] = time.monotonic
    _updates: int = 0
    _has_saved: bool = False
    _saved_at: float = field(init=False)
    _began_at: float = field(init=False)
    _total: float = 0.0
    _asked: float = 0.0

    def __post_init__(self) -> None:
        self._saved_at = self._began_at = self.clock()

    def updated(self) -> None:
        """Counts an update that has ended."""
        self._updates += 1

    @property
    def due_by_steps(self) -> bool:
        """Whether enough updates have ended; the same in all processes."""
        return self.every_steps is not None and self._updates >= self.every_steps

    @property
    def due_by_clock(self) -> bool:
        """Whether enough time has passed; False in processes that do not lead."""
        if not self.leads or not self.every_minutes or not self._updates:
            return False
        return self.minutes >= self.every_minutes

    @property
    def minutes(self) -> float:
        """Minutes since the last save, or since the start."""
        return (self.clock() - self._saved_at) / 60

    def minutes_ago(self, name: str) -> dict[str, float]:
        """`minutes` by this name; {} before the first save of this command."""
        return {name: self.minutes} if self._has_saved else {}

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Wraps a save: restarts the schedule, and adds up the time of saving."""
        began = self.clock()
        yield
        self._updates, self._saved_at = 0, self.clock()
        self._has_saved = True
        self._total += self._saved_at - began

    @property
    def total_seconds(self) -> float:
        """Seconds that training was blocked by saving since the start."""
        return self._total

    @property
    def percent(self) -> float:
        """Percentage of the time since the start that saving has blocked training."""
        return 100 * self._total / max(self.clock() - self._began_at, 1e-9)

    def seconds(self) -> float:
        """Seconds that training was blocked by saving since the last call."""
        blocked, self._asked = self._total - self._asked, self._total
        return blocked
