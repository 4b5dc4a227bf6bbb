"""Processes that meet, and one that is lost."""

from __future__ import annotations

import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from credit_jax.parallel.processes import connect, coordinator
from credit_jax.parallel.processes.connect import ProcessesMissingError, meet
from credit_jax.parallel.processes.launch import Launch
from credit_jax.parallel.processes.watch import RESUME, Watch
from tests.support.processes import free_port


def launch(process: int, count: int, port: int) -> Launch:
    return Launch("the command line", process, count, f"127.0.0.1:{port}")


def errors(
    numbers: list[int], counts: list[int], *timeouts: float, port: int | None = None
) -> list[str]:
    """Returns the result of each process: "" or its error."""
    port = port or free_port()
    limits = [*timeouts, *timeouts[-1:] * len(numbers)]

    def one(process: int, count: int, timeout: float) -> str:
        try:
            for connection in meet(launch(process, count, port), timeout).values():
                connection.close()
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, numbers, counts, limits))


def test_all_come_or_one_is_missing() -> None:
    assert errors([2, 1, 0], [3, 3, 3], 20) == ["", "", ""]
    first, third = errors([0, 2], [3, 3], 0.7, 60)
    assert "1 of 3 processes did not come to 127.0.0.1:" in first
    assert "within 0.7 s: 1; see what they printed" in first
    assert third == f"the run does not start: {first}"


def test_the_coordinator_is_missing() -> None:
    (error,) = errors([1], [2], 0.5)
    assert "process 1 of 2 on" in error
    assert "got no answer from process 0" in error
    assert "Connection refused" in error
    assert "--connect-timeout" in error


def test_processes_of_another_run() -> None:
    first, other = errors([0, 1], [2, 3], 60)
    assert "came to 127.0.0.1:" in first
    assert "as 1 of 3, but this run has 2 processes" in first
    assert other == f"the run does not start: {first}"


@pytest.mark.parametrize("numbers", [[0, 1, 3, 1], [0, 3, 1, 1]])
def test_a_number_given_twice(numbers: list[int]) -> None:
    """All are told at once, also those that waited rightly."""
    first, *others = errors(numbers, [4] * 4, 60)
    assert "two processes came to 127.0.0.1:" in first
    assert "as process 1 of 4, from 127.0.0.1 and 127.0.0.1" in first
    assert "start each with a number of its own, 0 to 3: --process" in first
    assert set(others) == {f"the run does not start: {first}"}


@pytest.mark.parametrize("number", [0, 2, 7])
def test_a_number_that_no_process_has(number: int) -> None:
    """Such as a program of another version may send."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(errors, [0], [2], 60, port=port)
        with say(port, f"{number}/2\n") as connection:
            assert connection.recv(1) == b"-"
        assert f"as {number} of 2, but this run has 2" in first.result()[0]


def test_a_process_that_was_started_anew() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        rest = pool.submit(errors, [0], [3], 60, port=port)
        say(port, "1/3\n").close()
        second = pool.submit(errors, [2], [3], 60, port=port)
        time.sleep(0.2)
        assert not second.done()
        assert errors([1], [3], 60, port=port) == second.result() == [""]
        assert rest.result() == [""]


def test_connections_of_others_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Probes and scanners connect without a word, or speak HTTP."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(errors, [0], [2], 60, port=port)
        say(port, "").close()
        for words in ("GET / HTTP/1.1\r\n\r\n", "1/2"):
            with say(port, words) as scanner:
                assert scanner.recv(1) == b""
        assert errors([1], [2], 60, port=port) == [""]
        assert first.result() == [""]
    assert caplog.text.count("ignored a connection from 127.0.0.1") == 3


def test_a_run_that_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    """JAX's coordinator has the port then, and sends a frame of HTTP/2 first."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"\x00\x00\x12\x04")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            (error,) = errors([1], [2], 0.5, port=server.getsockname()[1])
    assert "a run that has begun answers there" in caplog.text
    assert "each needs a --process of its own" in caplog.text
    assert "process 1 of 2 on" in error


def say(port: int, line: str) -> socket.socket:
    """Returns a connection to a process 0 that may not listen yet."""
    for _ in range(200):
        try:
            connection = socket.create_connection(("127.0.0.1", port), 20)
        except ConnectionRefusedError:
            time.sleep(0.05)
            continue
        connection.sendall(line.encode())
        return connection
    raise AssertionError("process 0 does not listen")


def test_a_port_in_use() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} .* is in use"):
            meet(launch(0, 2, port), 1)
    assert issubclass(ProcessesMissingError, OSError), "an error of the user"


def test_a_line_for_each_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_unannounced", [launch(3, 8, 61440)])
    connect.announce()
    line = capsys.readouterr().out
    assert line.startswith("process 3 of 8 on ")
    assert ", 8 devices, started by " in line
    assert line.endswith("coordinator 127.0.0.1:61440\n")


def test_a_process_alone_asks_nobody() -> None:
    assert (coordinator.num_processes(), coordinator.process_number()) == (1, 0)
    coordinator.wait_for_all("anything")
    assert coordinator.of_all("names", "one") == ["one"]
    assert coordinator.of_first("leader", "one") == "one"


class Ended:
    """How a process of these tests ended."""

    def __init__(self) -> None:
        self.how: queue.Queue[tuple[int, str]] = queue.Queue()

    def __call__(self, code: int, text: str) -> None:
        self.how.put((code, text))


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


def close(watches: list[Watch], sockets: list[socket.socket]) -> None:
    """Closes the sockets when no thread selects among them any more."""
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    for watch in watches:
        watch._thread.join(20)
    for one in sockets:
        one.close()


@pytest.mark.parametrize("how", ["closed", "silent", "failed"])
def test_a_lost_process_ends_all(how: str) -> None:
    watches, ended, sockets = three(0.8 if how == "silent" else 60.0)
    began = time.monotonic()
    if how == "closed":
        sockets[0].close()
    elif how == "failed":
        sockets[0].sendall(b"beat\nbye 2\n")
    for one in ended:
        code, text = one.how.get(timeout=20)
        assert code == (2 if how == "failed" else RESUME)
        assert "process 2 " in text
        assert ("--resume" in text) == (how != "failed")
    assert time.monotonic() - began < 10
    close(watches, sockets)


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
    assert ended[0].how.empty()
    assert ended[1].how.empty()
    close(watches, sockets)


def test_a_process_ends_all_with_its_reason() -> None:
    watches, ended, sockets = three(60.0)
    watches[1].end_all(RESUME, "a collective failed")
    for one in ended:
        assert one.how.get(timeout=20) == (RESUME, "a collective failed")
    close(watches, sockets)
