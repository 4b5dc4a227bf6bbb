"""What the processes of a run tell each other through JAX's coordinator.

Neither devices nor collectives take part, so a process may be late by any time: another
one that is gone ends those that wait (`watch`), or JAX's own heartbeat does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

_LONGEST = 7 * 24 * 3600 * 1000  # milliseconds
_turns: Counter[str] = Counter()
_lock = threading.Lock()


@runtime_checkable
class Coordinator(Protocol):
    """The client of JAX's coordination service: values by key, and barriers."""

    def key_value_set(self, key: str, value: str) -> None:
        """Sets a value; an error if there is one."""
        ...

    def key_value_try_get(self, key: str) -> str:
        """The value; an error if there is none."""
        ...

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """The value, once there is one."""
        ...

    def wait_at_barrier(
        self,
        barrier_id: str,
        timeout_in_ms: int,
        process_ids: Sequence[int] | None = None,
    ) -> None:
        """Returns when these processes, or all, have come to the barrier."""
        ...


def coordinator() -> Coordinator:
    """The client of this process, which belongs to a run of several."""
    from jax._src.distributed import global_state

    assert global_state.client is not None, "a run of several processes has one"
    return global_state.client


def num_processes() -> int:
    """Processes of this run; unlike `jax.process_count`, it starts no backend."""
    from jax._src.distributed import global_state

    return global_state.num_processes


def process_number() -> int:
    """Number of this process; unlike `jax.process_index`, it starts no backend."""
    from jax._src.distributed import global_state

    return global_state.process_id


def wait_for_all(what: str, processes: Sequence[int] | None = None) -> None:
    """Returns when every process of the run has come here.

    Args:
        what: names the place; the same in every process.
        processes: wait for these alone, this one among them.
    """
    if num_processes() > 1:
        coordinator().wait_at_barrier(_turn(what), _LONGEST, processes)


def of_all(what: str, text: str) -> list[str]:
    """A text of each process, by their numbers; each process calls it with its own.

    Args:
        what: names the place; the same in every process.
        text: of this process.
    """
    if num_processes() == 1:
        return [text]
    turn = _turn(what)
    coordinator().key_value_set(f"{turn}/{process_number()}", text)
    return [_get(f"{turn}/{number}") for number in range(num_processes())]


def of_first(what: str, text: str) -> str:
    """The text of process 0; every process calls it.

    Args:
        what: names the place; the same in every process.
        text: of this process; only that of process 0 counts.
    """
    if num_processes() == 1:
        return text
    turn = _turn(what)
    if process_number() == 0:
        coordinator().key_value_set(turn, text)
    return _get(turn)


def _get(key: str) -> str:
    return coordinator().blocking_key_value_get(key, _LONGEST)


def _turn(what: str) -> str:
    """A key that is new each time, and the same in every process."""
    with _lock:
        _turns[what] += 1
        return f"credit_jax/{what} {_turns[what]}"
