"""Synchronization of the processes of a run by JAX's coordination service.

No device and no collective takes part, so that processes may lag by any time. Where one
dies, `watch` or JAX's own heartbeat ends those that wait for it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from credit_jax.io.activity import activity

_LONGEST = 7 * 24 * 3600 * 1000  # milliseconds
_turns: Counter[str] = Counter()
_lock = threading.Lock()


def _global_state() -> Any:
    # What launchers and submit scripts import loads no JAX.
    from jax._src.distributed import global_state

    return global_state


def coordinator() -> Any:
    """Returns the client of JAX's coordination service: values by key, and barriers."""
    client = _global_state().client
    assert client is not None, "a run of several processes has one"
    return client


def num_processes() -> int:
    """Returns the number of processes; unlike `jax.process_count` without a backend."""
    return _global_state().num_processes


def process_number() -> int:
    """Returns the number of this process; as `num_processes`, without a backend."""
    return _global_state().process_id


def wait_for_all(subject: str, processes: Sequence[int] | None = None) -> None:
    """Blocks until all (or these) processes have called it with the same subject."""
    if num_processes() > 1:
        with activity(f"waiting for the other processes ({subject})"):
            coordinator().wait_at_barrier(_turn(subject), _LONGEST, processes)


def of_all(subject: str, text: str) -> list[str]:
    """Gathers a string from each process, in order; every process must call it."""
    if num_processes() == 1:
        return [text]
    turn = _turn(subject)
    coordinator().key_value_set(f"{turn}/{process_number()}", text)
    return [_get(f"{turn}/{number}") for number in range(num_processes())]


def of_first(subject: str, text: str) -> str:
    """Broadcasts a string of process 0; every process must call it."""
    if num_processes() == 1:
        return text
    turn = _turn(subject)
    if process_number() == 0:
        coordinator().key_value_set(turn, text)
    return _get(turn)


def _get(key: str) -> str:
    with activity("waiting for the other processes"):
        return coordinator().blocking_key_value_get(key, _LONGEST)


def _turn(subject: str) -> str:
    """Returns a key that is new in each call, and the same in every process."""
    with _lock:
        _turns[subject] += 1
        return f"credit_jax/{subject} {_turns[subject]}"
