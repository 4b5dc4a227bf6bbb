"""Decisions of one process that all processes of a run carry out at the same step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from credit_jax.parallel.processes.coordinator import coordinator, num_processes

# The numbers of steps that two processes have started differ by at most two: a process
# starts a step only after the last but one has ended, and all processes take part in
# every step.
_LEAD = 4
_NUMBERS = itertools.count()


@dataclass
class Agreement:
    """Makes all processes carry out a request of any of them before the same step.

    The first process with a request announces it, together with the number of a step
    that no process has started; every process looks for announcements before each step.
    No collective is needed, and the devices do not wait.

    Attributes:
        number: number of this agreement, the same in all processes.
        num_processes: number of processes of the run.
        connect: returns the key-value store.
    """

    number: int = field(default_factory=lambda: next(_NUMBERS))
    num_processes: int = field(default_factory=num_processes)
    connect: Callable[[], Any] = coordinator
    _round: int = 0
    _agreed: tuple[int, str] | None = None

    def reached(self, step: int, request: str | None) -> str | None:
        """Returns the request to carry out before the next step, or None.

        Args:
            step: number of steps that this process has started so far. Every process
                calls this method before each step.
            request: request of this process, or None.
        """
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
