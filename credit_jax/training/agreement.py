"""Decisions of one process that all processes of a run carry out at the same step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import jax

# A process has at most two steps more, or fewer, started than another: it starts one
# when the one before the last has ended, in which all took part.
_LEAD = 4
_NUMBERS = itertools.count()


@runtime_checkable
class KeyValues(Protocol):
    """What the coordinator of a run keeps for its processes."""

    def key_value_set(self, key: str, value: str) -> None:
        """Sets a value; an error if there is one."""
        ...

    def key_value_try_get(self, key: str) -> str:
        """The value; an error if there is none."""
        ...


def coordinator() -> KeyValues:
    """The store of the coordinator of this run."""
    from jax._src.distributed import global_state

    assert global_state.client is not None, "a run of several processes has one"
    return global_state.client


@dataclass
class Agreement:
    """Carries out what any process wants at a step that all agree on.

    The first process that wants something announces it, with the number of a step that
    none has begun; each looks for announcements before a step. No collective is needed,
    and the devices wait for nothing.

    Attributes:
        number: of this agreement, counted alike in all processes.
        num_processes: of the run.
        connect: gives the store.
    """

    number: int = field(default_factory=lambda: next(_NUMBERS))
    num_processes: int = field(default_factory=jax.process_count)
    connect: Callable[[], KeyValues] = coordinator
    _round: int = 0
    _found: tuple[int, str] | None = None

    def reached(self, step: int, wanted: str | None) -> str | None:
        """What is to be done before a step, or None.

        Args:
            step: steps that this process has started so far; every process calls this
                before each.
            wanted: what this process wants, if anything.
        """
        if self.num_processes == 1:
            return wanted
        if self._found is None:
            self._found = self._look() or self._announce(step, wanted)
        if self._found is None or step < self._found[0]:
            return None
        (_, what), self._found = self._found, None
        self._round += 1
        return what

    @property
    def _key(self) -> str:
        return f"credit_jax/agreement {self.number}/{self._round}"

    def _look(self) -> tuple[int, str] | None:
        try:
            step, _, what = self.connect().key_value_try_get(self._key).partition(":")
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None
        return int(step), what

    def _announce(self, step: int, wanted: str | None) -> tuple[int, str] | None:
        if wanted is None:
            return None
        try:
            self.connect().key_value_set(self._key, f"{step + _LEAD}:{wanted}")
        except Exception as error:
            # Another process was first.
            if "ALREADY_EXISTS" not in str(error):
                raise
        return self._look()
