"""Processes connect, or exit with a reason; two of them train as one."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from credit_jax.parallel.processes.connect import (
    ProcessesMissingError,
    _meet,
    described,
)
from credit_jax.parallel.processes.launch import Launch
from tests.support.processes import free_port


def launch(process: int, count: int, port: int) -> Launch:
    return Launch("the command line", process, count, f"127.0.0.1:{port}")


def meet(numbers: list[int], counts: list[int], timeout: float) -> list[str]:
    """Returns the result of each process: "" or its error."""
    port = free_port()

    def one(process: int, count: int) -> str:
        try:
            for connection in _meet(launch(process, count, port), timeout).values():
                connection.close()
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, numbers, counts))


def test_all_come() -> None:
    assert meet([2, 1, 0], [3, 3, 3], timeout=20) == ["", "", ""]


def test_one_is_missing() -> None:
    first, third = meet([0, 2], [3, 3], timeout=0.7)
    assert "1 of 3 processes did not come to 127.0.0.1:" in first
    assert "within 0.7 s: 1; see what they printed" in first
    assert "process 2 of 3 on" in third
    assert "got no answer from process 0" in third


def test_the_coordinator_is_missing() -> None:
    (error,) = meet([1], [2], timeout=0.5)
    assert "(Connection refused)" in error or "Connection refused" in error
    assert "--connect-timeout" in error


def test_processes_of_another_run() -> None:
    for error in meet([0, 1], [2, 3], timeout=20):
        assert "came to 127.0.0.1:" in error
        assert "as 1 of 3, but this run has 2 processes" in error


@pytest.mark.parametrize("numbers", [[0, 1, 1], [1, 1, 0]])
def test_two_processes_of_one_number_end_at_once(numbers: list[int]) -> None:
    began = time.monotonic()
    for error in meet(numbers, [3, 3, 3], timeout=60):
        assert "two processes came to 127.0.0.1:" in error
        assert "as 1 of 3; each process needs a number of its own, 0 to 2" in error
    assert time.monotonic() - began < 30, "they did not wait for the third"


def test_a_process_that_ended_may_come_again() -> None:
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(_meet, launch(0, 3, port), 20)]
        with _reached(port) as connection:
            connection.sendall(b"1/3\n")
        others += [pool.submit(_meet, launch(n, 3, port), 20) for n in (1, 2)]
        for other in others:
            for connection in other.result().values():
                connection.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"1/3"])
def test_whoever_probes_the_port_is_ignored(sent: bytes) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_meet, launch(0, 2, port), 20)
        with _reached(port) as connection:
            connection.sendall(sent)
        for connections in (_meet(launch(1, 2, port), 20), first.result()):
            for connection in connections.values():
                connection.close()


def _reached(port: int) -> socket.socket:
    """Connects to a port as soon as somebody listens there."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 20)
        except ConnectionRefusedError:
            time.sleep(0.01)


def test_a_port_in_use() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} .* is in use"):
            _meet(launch(0, 2, port), 1)
    assert issubclass(ProcessesMissingError, OSError), "an error of the user"


def test_a_line_for_each_process() -> None:
    line = described(launch(3, 8, 61440), 4)
    assert line.startswith("process 3 of 8 on ")
    assert ", 4 devices, started by " in line
    assert line.endswith("coordinator 127.0.0.1:61440")
