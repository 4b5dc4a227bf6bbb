"""The processes of a run connect to process 0, which releases them together.

Each sends "PROCESS/COUNT" and waits. Process 0 answers all of them with `_GO` when all
have come, or with a reason when the run cannot start. JAX's coordinator listens on the
same port afterwards.
"""

from __future__ import annotations

import errno
import logging
import re
import select
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from credit_jax.parallel.processes.launch import Launch

_PAUSE, _LONGEST = 0.2, 5.0  # seconds between attempts, and limit of one attempt
_REST = 30.0  # seconds in which a run that is refused is told to its last processes
_GO, _REFUSED = b"+", b"-"
_LINE, _REASON = 64, 4096  # bytes of one read
_LOG = logging.getLogger("credit_jax")


class ProcessesMissingError(ConnectionError):
    """Raised if processes of a run do not connect in time."""


def meet(launch: Launch, timeout: float) -> dict[int, socket.socket]:
    """Waits until all processes have connected to process 0.

    Args:
        launch: launch of this process.
        timeout: seconds to wait for the others.

    Returns:
        Open connections by process: of process 0 to all others, of others to process 0.

    Raises:
        ProcessesMissingError: processes did not connect in time; the message lists
            them.
        ValueError: a process of another run connected, or two with the same number.
        OSError: the port of the coordinator is in use.
    """
    assert launch.coordinator is not None
    host, _, port = launch.coordinator.rpartition(":")
    address = (host.strip("[]"), int(port))
    deadline = time.monotonic() + timeout
    if launch.process == 0:
        return _gather(launch, address[1], deadline, timeout)
    return {0: _join(launch, address, deadline, timeout)}


# ------------------------------------------------------------------ process 0


def _gather(
    launch: Launch, port: int, deadline: float, timeout: float
) -> dict[int, socket.socket]:
    """In process 0: waits for all others, then releases them together."""
    come: list[socket.socket] = []
    connections: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        server = stack.enter_context(_listen(port))
        while len(connections := _waiting(connections)) < launch.num_processes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                come.append(stack.enter_context(server.accept()[0]))
                process = _number_of(come[-1], launch, connections)
            except TimeoutError as error:
                missing = _missing(launch, connections, timeout)
                _refuse(come, missing)
                raise ProcessesMissingError(missing) from error
            except ValueError as error:
                _refuse(come, str(error))
                _refuse_rest(server, launch.num_processes - 1 - len(come), str(error))
                raise
            if process is not None:
                connections[process] = come[-1]
        for connection in connections.values():
            connection.sendall(_GO)
        for connection in {server, *come} - {*connections.values()}:
            connection.close()
        stack.pop_all()
    return connections


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {socket.gethostname()}, where the processes of this "
                "run meet, is in use: by another process 0 or another run on this "
                "host, or by one that has not ended; give each process a --process of "
                "its own, or another --coordinator HOST:PORT (JAX_COORDINATOR_ADDRESS)"
            ) from error
        return socket.create_server(("", port), backlog=1024)  # no IPv6 here


def _number_of(
    connection: socket.socket, launch: Launch, connections: dict[int, socket.socket]
) -> int | None:
    """Returns the number of a process that has connected, None for anything else.

    Probes and scanners of a cluster connect, too, and send nothing or something else.

    Raises:
        ValueError: the process cannot be one of this run.
    """
    line = _first_line(connection)
    match = re.fullmatch(r"(\d+)/(\d+)\n", line)
    if match is None:
        _LOG.warning(
            "ignored a connection from %s to %s that is not of a process of a run",
            _address(connection),
            launch.coordinator,
        )
        connection.close()
        return None
    process, count = int(match[1]), int(match[2])
    if count != launch.num_processes or not 0 < process < count:
        raise ValueError(
            f"a process came to {launch.coordinator} as {process} of {count}, but "
            f"this run has {launch.num_processes} processes; another run uses this "
            "port, or the processes were started with different numbers"
        )
    if process in connections and _is_open(connections[process]):
        raise ValueError(
            f"two processes came to {launch.coordinator} as process {process} of "
            f"{count}, from {_address(connections[process])} and "
            f"{_address(connection)}; start each with a number of its own, "
            f"0 to {count - 1}: --process"
        )
    return process


def _first_line(connection: socket.socket) -> str:
    """Returns what a connection sends first, "" if nothing comes in time."""
    connection.settimeout(_LONGEST)
    try:
        return connection.recv(_LINE).decode("ascii", "replace")
    except OSError:
        return ""


def _waiting(connections: dict[int, socket.socket]) -> dict[int, socket.socket]:
    """Returns those of processes that still wait; others may be started anew."""
    return {
        number: connection
        for number, connection in connections.items()
        if _is_open(connection)
    }


def _is_open(connection: socket.socket) -> bool:
    # A process that waits sends nothing until its connection ends.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _address(connection: socket.socket) -> str:
    try:
        return connection.getpeername()[0].removeprefix("::ffff:")
    except OSError:
        return "an unknown host"


def _missing(launch: Launch, come: Iterable[int], timeout: float) -> str:
    missing = {*range(1, launch.num_processes)} - {*come}
    return (
        f"{len(missing)} of {launch.num_processes} processes did not come "
        f"to {launch.coordinator} within {timeout:g} s: "
        f"{_listed(missing)}; see what they printed and whether their "
        "hosts reach this one, or give them more time: --connect-timeout"
    )


def _listed(numbers: set[int]) -> str:
    """Formats the first eight of some numbers."""
    first = ", ".join(str(number) for number in sorted(numbers)[:8])
    return first + (", ..." if len(numbers) > 8 else "")


def _refuse(connections: Iterable[socket.socket], reason: str) -> None:
    """Tells processes that wait why the run does not start."""
    for connection in connections:
        with suppress(OSError):
            connection.sendall(_REFUSED + reason.encode())


def _refuse_rest(server: socket.socket, count: int, reason: str) -> None:
    """Tells so many processes that have not come yet, as far as they come soon."""
    deadline = time.monotonic() + _REST
    with suppress(TimeoutError):
        for _ in range(count):
            server.settimeout(max(0.01, deadline - time.monotonic()))
            with server.accept()[0] as connection:
                _refuse([connection], reason)
                _first_line(connection)


# ------------------------------------------------------------ other processes


def _join(
    launch: Launch, address: tuple[str, int], deadline: float, timeout: float
) -> socket.socket:
    """In other processes: connects to process 0 and waits until it releases them."""
    who = f"process {launch.process} of {launch.num_processes}"
    cause: OSError | None = None
    while (rest := deadline - time.monotonic()) > 0:
        try:
            return _come(launch, address, rest)
        except OSError as error:
            if isinstance(error, _OccupiedError) and not isinstance(cause, type(error)):
                _LOG.warning("%s waits at %s: %s", who, launch.coordinator, error)
            cause = error
        time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
    raise ProcessesMissingError(
        f"{who} on {socket.gethostname()} got no answer from process 0 at "
        f"{launch.coordinator} within {timeout:g} s ({cause}); see what process 0 "
        "printed and whether this host reaches it, or give more time: --connect-timeout"
    ) from cause


def _come(launch: Launch, address: tuple[str, int], rest: float) -> socket.socket:
    """Connects once, and returns the connection when process 0 releases this process.

    Raises:
        OSError: it does not, but may in another attempt.
        ValueError: it refuses to.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(
            socket.create_connection(address, min(_LONGEST, rest))
        )
        connection.sendall(f"{launch.process}/{launch.num_processes}\n".encode())
        connection.settimeout(rest)
        answer = connection.recv(1)
        if answer != _GO:
            raise _reason(answer, connection)
        stack.pop_all()
    return connection


class _OccupiedError(ConnectionError):
    """Raised if something other than a waiting process 0 answers at its address."""


def _reason(answer: bytes, connection: socket.socket) -> OSError | ValueError:
    """Returns the error of a process that was not released."""
    if not answer:
        return ConnectionError("it ended before all processes had come")
    if answer == _REFUSED:
        text = b"".join(iter(lambda: connection.recv(_REASON), b"")).decode()
        return ValueError(f"the run does not start: {text}")
    # JAX's coordinator, on the same port: its run may be about to end.
    return _OccupiedError(
        "a run that has begun answers there, or another program; if it is this run, "
        "another process has this number: each needs a --process of its own"
    )
