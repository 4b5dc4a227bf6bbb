"""When a process of a run dies, the others exit with a reason."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from credit_jax.parallel.processes.watch import RESUME, Watch


class Ended:
    """How a process of these tests ended."""

    def __init__(self) -> None:
        self.how: list[tuple[int, str]] = []
        self._event = threading.Event()

    def __call__(self, code: int, text: str) -> None:
        self.how.append((code, text))
        self._event.set()

    def wait(self) -> tuple[int, str]:
        assert self._event.wait(20)
        return self.how[0]


def three(silence: float) -> tuple[list[Watch], list[Ended], list[socket.socket]]:
    """The watches of processes 0 and 1, how they ended, and the socket of process 2."""
    pairs = [socket.socketpair() for _ in range(2)]
    ended = [Ended(), Ended()]
    watches = [
        Watch({1: pairs[0][0], 2: pairs[1][0]}, silence, end=ended[0]),
        Watch({0: pairs[0][1]}, silence, end=ended[1]),
    ]
    for watch in watches:
        watch.start()
    return watches, ended, [pairs[1][1], *pairs[0], pairs[1][0]]


@pytest.mark.parametrize("how", ["closed", "silent", "failed"])
def test_a_lost_process_ends_all(how: str) -> None:
    _, ended, sockets = three(0.8 if how == "silent" else 60.0)
    began = time.monotonic()
    if how == "closed":
        sockets[0].close()
    elif how == "failed":
        sockets[0].sendall(b"beat\nbye 2\n")
    for one in ended:
        code, text = one.wait()
        assert code == (2 if how == "failed" else RESUME)
        assert "process 2 " in text
        assert ("--resume" in text) == (how != "failed")
    assert time.monotonic() - began < 10
    for one in sockets:
        one.close()


def test_processes_that_end_well_are_not_missed() -> None:
    watches, ended, sockets = three(60.0)
    leaving = threading.Thread(target=watches[1].leave, args=(0,))
    leaving.start()
    leaving.join(0.2)
    assert leaving.is_alive(), "it waits for the others"
    sockets[0].sendall(f"bye {RESUME}\n".encode())
    watches[0].leave(0)
    leaving.join(20)
    assert not leaving.is_alive()
    for watch in watches:
        watch._thread.join(20)
        assert not watch._thread.is_alive()
    assert not ended[0].how
    assert not ended[1].how
    for one in sockets:
        one.close()


def test_a_process_ends_all_with_its_reason() -> None:
    watches, ended, sockets = three(60.0)
    watches[1].end_all(RESUME, "a collective failed")
    for one in ended:
        assert one.wait() == (RESUME, "a collective failed")
    for one in sockets:
        one.close()
